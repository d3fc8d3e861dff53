"""The way to a host's SSH server: a TCP connection, or a ``ProxyCommand``.

This module must not import paramiko, because the first connections are made while paramiko is imported.
"""

from __future__ import annotations

import errno
import signal
import socket
import threading
import time

from launcher.backends.programs import SubprocessPipe
from launcher.backends.ssh.options import HostOptions, SshError, reason_of
from launcher.common.errors import TransportError
from launcher.common.text import last_line

_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
#: The options by which the kernel notices a dead connection.
_KEEPALIVE = {
    # Seconds of silence before the first probe.
    socket.TCP_KEEPIDLE: 15,
    # Seconds between two probes.
    socket.TCP_KEEPINTVL: 5,
    # The number of lost probes.
    socket.TCP_KEEPCNT: 4,
    # Milliseconds for which sent data may stay unacknowledged.
    socket.TCP_USER_TIMEOUT: 30_000,
}
#: The time for a ProxyCommand to end after a signal.
_PROXY_END_SECONDS = 1.0


def tcp_socket(options: HostOptions, seconds: float) -> socket.socket:
    """Connect to the first address of a host that accepts a connection.

    Args:
        options: The options of the host.
        seconds: The time limit for all addresses together.

    Raises:
        SshError: The host has no address, or none of them accepts a connection.
    """
    deadline, place = time.monotonic() + seconds, options.place
    family = _FAMILIES.get(options.address_family, socket.AF_UNSPEC)
    # For a name that is not bytes, Python would load its tables of international names, which takes 10 ms.
    name = options.address.encode() if options.address.isascii() else options.address
    try:
        found = socket.getaddrinfo(name, options.port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # A name that is too long raises a UnicodeError.
        may_pass = isinstance(error, OSError) and error.errno == socket.EAI_AGAIN
        reason = "no name server answers" if may_pass else "no such name"
        advice = "check the spelling, or give HostName in ~/.ssh/config"
        raise SshError(f"{options.address!r} was not found ({reason}); {advice}", may_pass) from error
    failure: OSError = TimeoutError()
    for number, (family, _, _, _, address) in enumerate(found):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # The addresses that are left share the time that is left.
            sock.settimeout(max(0.001, (deadline - time.monotonic()) / (len(found) - number)))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    if isinstance(failure, TimeoutError):
        text = f"no answer from {place} within {seconds:g}s; is it up, is a firewall between?"
    elif failure.errno == errno.ECONNREFUSED:
        text = f"{place} refused the connection; does an ssh server run there, on this port?"
    elif failure.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        text = f"no route to {place}; is it up and on a network that this machine reaches?"
    else:
        text = f"{place} cannot be connected to: {reason_of(failure)}"
    raise SshError(text, may_pass=True) from failure


class ProxyCommand(SubprocessPipe):
    """A running ``ProxyCommand``: a command line for a shell, as in OpenSSH.

    Args:
        command: The command line, with its tokens such as ``%h`` replaced.

    Raises:
        SshError: The command cannot be started.
    """

    def __init__(self, command: str) -> None:
        """Start the command in a process group of its own."""
        try:
            super().__init__(f"its ProxyCommand {command!r}", ["/bin/sh", "-c", command])
        except TransportError as error:
            raise SshError(str(error)) from error
        #: Held by `close`, which several threads may call.
        self._lock = threading.Lock()
        #: The last line of its stderr, which `close` sets.
        self.last_line = ""

    def close(self) -> None:
        """End the command and the processes of its group, and keep the last line of its stderr.

        Whoever uses the socket closes the socket. A second call does nothing.
        """
        with self._lock:
            if not self._stderr.closed:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    self.kill(number)
                    self.wait(_PROXY_END_SECONDS)
                self.last_line = last_line(self.stderr())
                self._stderr.close()

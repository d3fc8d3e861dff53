"""Why a host can't be reached: one line that names the place and says what to try."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

from paramiko import ChannelException, SSHException
from paramiko.ssh_exception import IncompatiblePeer

from launcher.errors import TransportError

#: The reason code of a server that forbids forwarding (RFC 4254, 5.1).
_PROHIBITED = 1


class HostFailure(TransportError):
    """One host can't be connected to.

    Args:
        text: one line, without the name of the host.
        may_pass: another attempt may succeed.
    """

    def __init__(self, text: str, may_pass: bool = False) -> None:
        super().__init__(text)
        self.may_pass = may_pass


class Place(NamedTuple):
    """Address and port of an SSH server."""

    address: str
    port: int

    def __str__(self) -> str:
        """``10.0.0.3:22``, ``[fe80::1]:22``."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def name_not_found(place: Place, error: Exception) -> HostFailure:
    """The name of the host can't be resolved."""
    passing = isinstance(error, OSError) and error.errno == socket.EAI_AGAIN
    reason = "no name server answers" if passing else "no such name"
    return HostFailure(
        f"{place.address!r} was not found ({reason}); check the spelling, or give HostName in ~/.ssh/config",
        passing,
    )


def connect_failed(place: Place, error: OSError, seconds: float) -> HostFailure:
    """The TCP connection failed."""
    if isinstance(error, TimeoutError):
        text = f"no answer from {place} within {seconds:g} s; is it up, is a firewall between?"
    elif error.errno == errno.ECONNREFUSED:
        text = f"{place} refused the connection; does an ssh server run there, on this port?"
    elif error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        text = f"no route to {place}; is it up and on a network that this machine reaches?"
    else:
        text = f"{place} can't be connected to: {reason_of(error)}"
    return HostFailure(text, may_pass=True)


def handshake_failed(
    place: Place, error: Exception, version: str, ended: bool, late: bool, seconds: float
) -> HostFailure:
    """The connection is there, the SSH handshake failed.

    Args:
        place: where.
        error: raised by paramiko.
        version: what the server announced; empty if nothing came.
        ended: the server closed the connection.
        late: the time limit has passed.
        seconds: the time limit.
    """
    if isinstance(error, IncompatiblePeer):
        return HostFailure(f"the ssh server at {place} has no cipher or key exchange in common: {error}")
    if ended or isinstance(error, (EOFError, ConnectionError)):
        when = "during the key exchange" if version else "before its ssh server said anything"
        return HostFailure(
            f"{place} closed the connection {when}; is it too busy (MaxStartups), or refuses this machine?",
            True,
        )
    if late and not version:
        return HostFailure(
            f"{place} accepted the connection and sent nothing for {seconds:g} s; is that an ssh server?",
            True,
        )
    if late:
        return HostFailure(f"the ssh server at {place} stopped answering for {seconds:g} s", True)
    if not version:
        return HostFailure(f"{place} is not an ssh server: {reason_of(error)}")
    return HostFailure(f"the ssh server at {place} failed: {reason_of(error)}", isinstance(error, OSError))


def gateway_refused(place: Place, gateway: str, error: Exception) -> HostFailure:
    """A gateway can't connect, or does not connect, to the next host."""
    if isinstance(error, ChannelException) and error.code == _PROHIBITED:
        return HostFailure(f"its gateway {gateway} forbids connections to {place} (AllowTcpForwarding)")
    reason = (error.text if isinstance(error, ChannelException) else reason_of(error)).lower()
    return HostFailure(
        f"its gateway {gateway} can't connect to {place} ({reason}); is it up, and is that its "
        "address as the gateway sees it?",
        True,
    )


def unexpected(error: Exception) -> str:
    """Anything else, mostly a limit of this machine."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"no connection can be made here: {reason_of(error)} (`ulimit -n` is the limit)"
    return f"no connection can be made: {type(error).__name__}: {reason_of(error)}"


def reason_of(error: Exception) -> str:
    """The text of an exception on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    text = str(error)
    if isinstance(error, SSHException):
        text = text.removeprefix("Error reading SSH protocol banner")
    return " ".join(text.split()) or type(error).__name__

"""Tells whether a host of the user's list is this machine, where tasks start without a connection.

Two machines may have one host name. So a host with the name of this machine is this machine only if the name
leads to one of its addresses.
"""

from __future__ import annotations

import functools
import os
import pwd
import socket
import threading
from collections.abc import Sequence

from launcher.job import Host, is_loopback

#: Seconds for an answer about this machine's own name; without an answer, no other machine has it.
_LIMIT = 2.0


def is_here(host: Host) -> bool:
    """Tell whether a host is this machine. Only a host with the name of this machine takes time."""
    if host.user is not None or host.port is not None:
        return False
    name = os.uname().nodename
    if is_loopback(host.name):
        return True
    return host.name in (name, name.partition(".")[0]) and _leads_here(host.name)


@functools.cache
def _leads_here(name: str) -> bool:
    """Tell whether the name that a connection by SSH would use leads to this machine, or nowhere."""
    addresses = _addresses(_ssh_name(name))
    return not addresses or any(map(_is_own, addresses))


def _ssh_name(name: str) -> str:
    """Return the ``HostName`` that the user's ssh_config gives a host; the name itself if it gives none."""
    import subprocess  # it is slow, and few launches need it

    config, home = os.path.expanduser("~/.ssh/config"), ""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user id without an account
        pass
    # ssh itself does not look at $HOME.
    file = ["-F", config] if os.path.exists(config) and os.path.expanduser("~") != home else []
    try:
        done = subprocess.run(
            ["ssh", *file, "-G", "--", name], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT
        )
    except (OSError, subprocess.TimeoutExpired):
        return name
    lines = (line.split(" ", 1) for line in done.stdout.decode("utf-8", "surrogateescape").splitlines())
    return next((line[1] for line in lines if line[0] == "hostname" and len(line) == 2), name)


def _addresses(name: str) -> Sequence[str]:
    """Return the addresses of a name; none if nobody knows them in time."""
    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM))
        except (OSError, UnicodeError):
            return

    thread = threading.Thread(target=ask, name="own address", daemon=True)
    thread.start()
    thread.join(_LIMIT)
    return tuple(found)


def _is_own(address: str) -> bool:
    """Tell whether an address belongs to an interface of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True

"""Tells whether a host of the user's list is this machine, where tasks start without a connection.

Two machines may have one host name. So a host with the name of this machine is this machine only if the name
leads to one of its addresses. The modules that this takes are imported only for such hosts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from launcher.job import Host, is_loopback

#: Both ``ssh`` and ``getent`` are asked about the name of this machine. They may ask a name server.
_ANSWER_TIMEOUT_SECONDS = 2.0


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
    try:
        name = _ssh_name(name)
    except TimeoutError:  # the connection will tell
        return False
    addresses = _addresses(name)
    return not addresses or any(map(_is_own, addresses))


def _ssh_name(name: str) -> str:
    """Return the ``HostName`` that the user's ssh_config gives a host.

    Returns:
        The name itself if there is no such line.

    Raises:
        TimeoutError: ssh does not answer in time.
    """
    import pwd
    import subprocess

    from launcher.backends.ssh_query import ask_ssh

    try:
        printed = ask_ssh(["--", name], pwd.getpwuid(os.getuid()).pw_dir, _ANSWER_TIMEOUT_SECONDS).stdout
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    except (KeyError, OSError):  # ssh knows no user without an account; or there is no ssh
        return name
    words = (line.split() for line in printed.decode("utf-8", "surrogateescape").splitlines())
    return next((found[1] for found in words if len(found) == 2 and found[0] == "hostname"), name)


def _addresses(name: str) -> Sequence[str]:
    """Return the addresses of a name.

    Another process looks them up, because it can be ended when that takes too long. A thread can't, and an
    agent can't be forked from a process that has threads.

    Returns:
        No addresses if the name has none, or if the answer takes too long.
    """
    import subprocess

    argv = ["getent", "ahosts", name]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split()[0].decode("ascii", "replace") for line in done.stdout.splitlines() if line.strip()]


def _is_own(address: str) -> bool:
    """Tell whether an address belongs to an interface of this machine."""
    import socket

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True

"""Tells whether a host of the user's list is this machine, where tasks start without a connection.

Two machines may have the same host name. So a host with the name of this machine is this machine only if the
name leads to one of its addresses. The modules that this needs are imported only for such hosts.
"""

from __future__ import annotations

import functools
import os
import socket

from launcher.job import Host, is_loopback


def is_here(host: Host) -> bool:
    """Return whether a host is this machine. Only a host with the name of this machine takes time."""
    # A user or a port asks for a connection by SSH, even to this machine.
    if host.user is not None or host.port is not None:
        return False
    if is_loopback(host.name):
        return True
    own_name = os.uname().nodename
    short_name, _, _ = own_name.partition(".")
    return host.name in (own_name, short_name) and _leads_here(host.name)


@functools.cache
def _leads_here(name: str) -> bool:
    """Return whether the name that a connection by SSH would use leads to this machine, or nowhere.

    The answer is cached, because it may take seconds to look the name up, and several callers ask.

    Args:
        name: The name of this machine. The user's ssh_config may lead a connection to another machine.
    """
    from launcher.backends.ssh_query import addresses_of, host_name_of  # noqa: PLC0415 - imports subprocess

    try:
        name = host_name_of(name)
    except TimeoutError:  # The connection over SSH will show where the name leads.
        return False
    addresses = addresses_of(name)
    # A name that has no address leads to no other machine, either.
    return not addresses or any(map(_is_own, addresses))


def _is_own(address: str) -> bool:
    """Return whether an address belongs to an interface of this machine, because a socket can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True

"""Why a host can't be had, in words: name it, say where it was tried, and what to try."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

from paramiko import ChannelException, SSHException
from paramiko.ssh_exception import ConfigParseError, IncompatiblePeer

from launcher.errors import TransportError

#: What a server answers that may not connect anywhere (RFC 4254, 5.1).
_PROHIBITED = 1


class HostFailure(TransportError):
    """One host can't be connected to.

    Args:
        text: one line; who fails puts its name before it.
        may_pass: whether it is worth another attempt.
    """

    def __init__(self, text: str, may_pass: bool = False) -> None:
        super().__init__(text)
        self.may_pass = may_pass


class Place(NamedTuple):
    """Where a host is tried."""

    address: str
    port: int

    @property
    def where(self) -> str:
        """``10.0.0.3:22``, ``[fe80::1]:22``."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def of_name(place: Place, error: Exception) -> HostFailure:
    """The name can't be resolved."""
    passing = isinstance(error, OSError) and error.errno == socket.EAI_AGAIN
    reason = "no name server answers" if passing else "no such name"
    return HostFailure(
        f"{place.address!r} was not found ({reason}); check the spelling, or give HostName in ~/.ssh/config",
        passing,
    )


def of_socket(place: Place, error: OSError, seconds: float) -> HostFailure:
    """There is no connection to it."""
    where = place.where
    if isinstance(error, TimeoutError):
        return HostFailure(
            f"no answer from {where} within {seconds:g} s; is it up, is a firewall between?", True
        )
    if error.errno == errno.ECONNREFUSED:
        return HostFailure(
            f"{where} refused the connection; does an ssh server run there, on this port?", True
        )
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return HostFailure(f"no route to {where}; is it up and on a network that this machine reaches?", True)
    return HostFailure(f"{where} can't be connected to: {(error.strerror or str(error)).lower()}", True)


def of_handshake(
    place: Place, error: Exception, said: str, ended: bool, late: bool, seconds: float
) -> HostFailure:
    """It was connected to, but the ssh servers's part did not come.

    Args:
        place: where.
        error: what paramiko made of it.
        said: the version that the server announced, empty if it did not come so far.
        ended: whether it has closed the connection.
        late: whether time was up.
        seconds: the time it had.
    """
    where = place.where
    if isinstance(error, IncompatiblePeer):
        return HostFailure(f"the ssh server at {where} speaks no cipher or key exchange that we do: {error}")
    if ended or isinstance(error, (EOFError, ConnectionError)):
        when = "during the key exchange" if said else "before its ssh server said anything"
        return HostFailure(
            f"{where} closed the connection {when}; is it too busy (MaxStartups), does it turn us away?", True
        )
    if late and not said:
        return HostFailure(
            f"{where} took the connection, and said nothing for {seconds:g} s; is that an ssh server?", True
        )
    if late:
        return HostFailure(f"the ssh server at {where} stopped answering for {seconds:g} s", True)
    if not said:
        return HostFailure(f"{where} is not an ssh server: {_plain(error)}")
    return HostFailure(f"the ssh server at {where} failed: {_plain(error)}", isinstance(error, OSError))


def of_gateway(place: Place, gateway: str, error: Exception) -> HostFailure:
    """A gateway can't, or will not, connect to the next host."""
    if isinstance(error, ChannelException) and error.code == _PROHIBITED:
        return HostFailure(
            f"its gateway {gateway} does not let us through to {place.where} (AllowTcpForwarding)"
        )
    reason = error.text.lower() if isinstance(error, ChannelException) else _plain(error).lower()
    return HostFailure(
        f"its gateway {gateway} can't connect to {place.where} ({reason}); is it up, and is that its "
        "address as the gateway sees it?",
        True,
    )


def unforeseen(error: Exception) -> str:
    """Whatever else may be: this machine has no descriptor left, say."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"no connection can be made here: {_plain(error).lower()} (`ulimit -n` allows how many)"
    return f"no connection can be made: {type(error).__name__}: {_plain(error)}"


def by_way_of(failure: HostFailure, way: str) -> HostFailure:
    """The same of a host that is reached through something, which may be what is wrong.

    Args:
        failure: of what came through.
        way: in words; empty: nothing is between.
    """
    return HostFailure(f"{failure}; it is reached through {way}", failure.may_pass) if way else failure


def _plain(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError):
        text = error.strerror or text
    if isinstance(error, SSHException) and not isinstance(error, ConfigParseError):
        text = text.removeprefix("Error reading SSH protocol banner")
    return " ".join(text.split()) or type(error).__name__

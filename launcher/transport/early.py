"""Agents that come up while the launcher is still getting ready: together that is half the time."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.errors import TransportError
from launcher.job import Host
from launcher.transport.base import Link, Transport

#: Seconds for an agent that nobody wants after all; it has nothing to end.
_LAST_WAIT = 10.0


class EarlyAgents:
    """Opens links at once and hands them out later: a transport of its own.

    As a context it lets go of those that were never asked for.

    Args:
        transport: opens them.
        hosts: on which.
    """

    def __init__(self, transport: Transport, hosts: Iterable[Host]) -> None:
        self._opened: dict[str, Link | TransportError] = {}
        try:
            for host in hosts:
                self._opened[host.name] = _opened(transport, host)
        except BaseException:
            self._let_go()
            raise

    def open(self, host: Host) -> Link:
        """The link to ``host``; see `Transport.open`."""
        found = self._opened.pop(host.name)
        if isinstance(found, TransportError):
            raise found
        return found

    @property
    def agents(self) -> list[tuple[int, int]]:
        """Of the agents that nobody has asked for yet what is in their watermarks, and the guardian's pid."""
        links = [link for link in self._opened.values() if hasattr(link, "number") and hasattr(link, "pid")]
        return [(link.number, link.pid) for link in links]

    def __enter__(self) -> EarlyAgents:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        links = [link for link in self._opened.values() if not isinstance(link, TransportError)]
        self._opened.clear()
        for link in links:
            link.hang_up()
        for link in links:
            link.wait(_LAST_WAIT)
            link.close()


def _opened(transport: Transport, host: Host) -> Link | TransportError:
    try:
        return transport.open(host)
    except TransportError as error:
        return error

"""Programs run on any host of a launch, be it this machine or another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.cli.places import is_here
from launcher.errors import TransportError
from launcher.job import Host
from launcher.transport.localerrand import LocalErrands

if TYPE_CHECKING:
    from launcher.luggage.base import Errand, Errands


class Everywhere:
    """Errands on this machine and on others.

    Args:
        hosts: all of them; those that are this machine may have names of their own.
        others: runs errands on all others; ``None``: there are none.
    """

    def __init__(self, hosts: Sequence[Host], others: Errands | None) -> None:
        self._here = frozenset(host.name for host in hosts if is_here(host))
        self._local = LocalErrands()
        self._others = others

    def errand(self, host: str, entry: str, arguments: object) -> Errand:
        """See `launcher.transport.base.Errands`."""
        return self._by(host).errand(host, entry, arguments)

    def redial(self, host: str) -> None:
        """See `launcher.luggage.base.Errands`."""
        self._by(host).redial(host)

    def patience(self, host: str) -> float:
        """See `launcher.luggage.base.Errands`."""
        return self._by(host).patience(host)

    def _by(self, host: str) -> Errands:
        if host in self._here:
            return self._local
        if self._others is None:
            raise TransportError(f"{host}: there is no connection to it")
        return self._others

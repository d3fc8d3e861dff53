"""Connecting anew, and waiting for errands."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Protocol

from launcher.errors import TransportError
from launcher.transport.base import Errand, Errands


class Dialling(Errands, Protocol):
    """Connections to hosts that can be made again."""

    def redial(self, host: str) -> None:
        """Connect to a host anew: errands to come use the new connection. Waits, for a bounded time.

        Raises:
            TransportError: it can't be reached.
        """


def await_errand(errand: Errand, seconds: float) -> None:
    """Wait until it has something to say, or so long."""
    poll = select.poll()
    poll.register(errand, select.POLLIN)
    poll.poll(seconds * 1000)


class Redial(threading.Thread):
    """One try to connect to a host again, and to start an errand there.

    Args:
        fleet: connects.
        host: its name.
        entry, arguments: the errand.
        done: called at the end, whatever it is.
    """

    def __init__(
        self, fleet: Dialling, host: str, entry: str, arguments: object, done: Callable[[], None]
    ) -> None:
        super().__init__(name=f"ssh-{host}-redial", daemon=True)
        self._fleet, self._host = fleet, host
        self._entry, self._arguments = entry, arguments
        self._done = done
        self._lock = threading.Lock()
        self._wanted = True
        self._errand: Errand | None = None
        self.over = False
        #: Why there is no errand.
        self.error = ""

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            self._fleet.redial(self._host)
            self._keep(self._fleet.errand(self._host, self._entry, self._arguments))
        except TransportError as error:
            self.error = str(error)
        finally:
            self.over = True
            self._done()

    def _keep(self, errand: Errand) -> None:
        with self._lock:
            if self._wanted:
                self._errand = errand
            else:
                errand.close()

    def take(self) -> Errand | None:
        """The errand, now or never: one that is started later is closed at once."""
        with self._lock:
            self._wanted = False
            return self._errand

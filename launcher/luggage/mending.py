"""Connections that break while files travel are made anew, for as long as tasks would wait for theirs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from launcher.errors import ConnectionLost, TransportError
from launcher.luggage.base import Errands
from launcher.luggage.talk import Cancelled

T = TypeVar("T")

#: Seconds between two tries to connect, at first and at most.
_PAUSE, _LONGEST_PAUSE = 0.2, 1.0
#: Seconds that are tried even where a host has been away for longer than that is worth.
_LEAST = 5.0
#: How often in a row a connection may break before anything more has arrived for good.
_MOST_IN_VAIN = 5
_LOOK = 0.1


def persistently(
    errands: Errands,
    host: str,
    visit: Callable[[], T],
    gained: Callable[[], tuple[int, int]],
    wanted: Callable[[], bool],
    tell: Callable[[str], None],
) -> T:
    """Visit a host, and again on a new connection when one breaks.

    Args:
        errands: on all hosts.
        host: which.
        visit: goes on where the one before was broken off; raises ConnectionLost if it is, too.
        gained: rises with what a broken visit need not bring again.
        wanted: asked now and then; false ends it with `Cancelled`.
        tell: gets a line for the user when the connection is lost, and when it is back.

    Raises:
        TransportError: the host failed, or stays away; names it.
        Cancelled: nobody wants it.
    """
    vain, best = 0, (-1, 0)
    while True:
        try:
            return visit()
        except ConnectionLost as error:
            vain = 0 if gained() > best else vain + 1
            best = max(best, gained())
            if vain == _MOST_IN_VAIN:
                text = f"{_bare(host, error)}, {vain} times before anything more was complete"
                raise TransportError(f"{host}: {text}") from error
            _mend(errands, host, _bare(host, error), wanted, tell)


def _mend(
    errands: Errands, host: str, why: str, wanted: Callable[[], bool], tell: Callable[[str], None]
) -> None:
    """Connect to the host again, or give it up when the time is over."""
    since = time.monotonic()
    until = since + max(errands.patience(host), _LEAST)
    tell(f"{host}: connection lost ({why}); trying again for {until - since:.0f} s")
    pause = _PAUSE
    while (failure := _try(errands, host, until, wanted)) is not None:
        if time.monotonic() + pause >= until:
            tried = f"and not back after {time.monotonic() - since:.0f} s"
            raise TransportError(f"{host}: the connection was lost ({why}), {tried}: {_bare(host, failure)}")
        _rest(pause, wanted)
        pause = min(pause * 2, _LONGEST_PAUSE)
    tell(f"{host}: connected again after {time.monotonic() - since:.0f} s")


def _try(errands: Errands, host: str, until: float, wanted: Callable[[], bool]) -> str | None:
    """Connect once, in a thread that nobody need wait for; why there is no connection."""
    attempt = _Attempt(errands, host)
    attempt.start()
    while not attempt.over.wait(_LOOK):
        if not wanted():
            raise Cancelled
        if time.monotonic() >= until:
            return "no answer"
    return attempt.failure


def _rest(seconds: float, wanted: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if not wanted():
            raise Cancelled
        time.sleep(min(left, _LOOK))


class _Attempt(threading.Thread):
    """One try to connect."""

    def __init__(self, errands: Errands, host: str) -> None:
        super().__init__(name=f"luggage-{host}-redial", daemon=True)
        self._errands = errands
        self._host = host
        self.failure: str | None = "it failed in a way that is not known"
        self.over = threading.Event()

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            self._errands.redial(self._host)
            self.failure = None
        except TransportError as error:
            self.failure = str(error)
        finally:
            self.over.set()


def _bare(host: str, error: object) -> str:
    """An error of this host, without its name."""
    return str(error).removeprefix(f"{host}: ")

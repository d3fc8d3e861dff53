"""The same work for all hosts at once, so many at a time; whatever fails is told of all together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Generic, NamedTuple, TypeVar

from launcher.errors import TransportError
from launcher.luggage.talk import Cancelled

T = TypeVar("T")

#: Seconds between two ticks.
_TICK = 0.1


class Outcome(NamedTuple, Generic[T]):
    """What came of it, host by host, in the order of the hosts."""

    done: dict[str, T]
    #: What is to be said about each host that failed; begins with its name.
    failed: dict[str, str]


def on_all(
    hosts: Sequence[str],
    work: Callable[[str, Callable[[], bool]], T],
    fanout: int,
    tick: Callable[[], None],
) -> Outcome[T]:
    """Do ``work`` for each host.

    Args:
        hosts: their names, each once.
        work: called in a thread with the host and what says whether it is still wanted; raises
            TransportError for a host that fails.
        fanout: how many at once.
        tick: called in this thread, ten times a second; if it raises, all is given up.
    """
    given_up = threading.Event()

    def wanted() -> bool:
        return not given_up.is_set()

    with ThreadPoolExecutor(max(1, min(fanout, len(hosts))), "luggage") as pool:
        futures = {host: pool.submit(work, host, wanted) for host in hosts}
        try:
            _await(list(futures.values()), tick)
        except BaseException:
            given_up.set()
            pool.shutdown(cancel_futures=True)
            raise
    return _outcome(futures)


def _await(futures: list[Future[T]], tick: Callable[[], None]) -> None:
    while not all(future.done() for future in futures):
        _, running = wait(futures, _TICK, FIRST_EXCEPTION)
        if running:
            # A failed host leaves the others running: wait for the next of them, but not in a circle.
            wait(running, _TICK)
            tick()


def _outcome(futures: dict[str, Future[T]]) -> Outcome[T]:
    outcome: Outcome[T] = Outcome({}, {})
    for host, future in futures.items():
        try:
            outcome.done[host] = future.result()
        except TransportError as error:
            outcome.failed[host] = _named(host, str(error))
        except Cancelled:
            outcome.failed[host] = f"{host}: given up"
    return outcome


def _named(host: str, text: str) -> str:
    return text if text.startswith(f"{host}:") else f"{host}: {text}"

"""Stop sequences, as data: each signal, and the seconds until the next."""

from __future__ import annotations

from launcher.events import Ladder

# Numbers of signal(7) on Linux: the same on every host, whatever its Python.
SIGHUP, SIGINT, SIGABRT, SIGKILL, SIGPIPE, SIGTERM = 1, 2, 6, 9, 13, 15

#: Seconds for a hung program to print its stacks on SIGABRT, at most.
STACKS = 2.0
#: Seconds after SIGKILL until a process counts as unkillable.
LAST = 5.0
#: Seconds an agent may be late before it counts as lost.
MARGIN = 10.0


def orderly(grace: float) -> Ladder:
    """SIGTERM; after ``grace`` seconds SIGABRT, so that Python shows its stacks; then SIGKILL."""
    if grace <= 0:
        return at_once()
    return ((SIGTERM, grace), (SIGABRT, min(STACKS, grace)), (SIGKILL, LAST))


def at_once() -> Ladder:
    """SIGKILL."""
    return ((SIGKILL, LAST),)


def longest(sequence: Ladder) -> float:
    """Seconds after which every task that is stopped so is over, or its agent is lost."""
    return sum(seconds for _, seconds in sequence) + MARGIN

"""The sequences of signals that stop tasks."""

from __future__ import annotations

from launcher.common.events import StopSequence

# Numbers of signal(7) on Linux: the same on every host, whatever its Python.
SIGABRT = 6
SIGKILL = 9
SIGTERM = 15
#: Seconds for a hung program to print its stacks on SIGABRT, at most; after SIGKILL until a process counts
#: as unkillable; that an agent may be late until it counts as lost.
STACKS_SECONDS = 2.0
_KILL_SECONDS = 5.0
_MARGIN_SECONDS = 10.0
IMMEDIATE_STOP_SEQUENCE: StopSequence = ((SIGKILL, _KILL_SECONDS),)


def orderly(grace: float) -> StopSequence:
    """SIGTERM; after ``grace`` seconds SIGABRT, so that Python shows its stacks; then SIGKILL."""
    return (
        ((SIGTERM, grace), (SIGABRT, min(STACKS_SECONDS, grace)), *IMMEDIATE_STOP_SEQUENCE)
        if grace > 0
        else IMMEDIATE_STOP_SEQUENCE
    )


def quick(grace: float, most: float) -> StopSequence:
    """SIGTERM; SIGKILL after ``grace`` seconds, ``most`` at the most."""
    return ((SIGTERM, min(grace, most)), *IMMEDIATE_STOP_SEQUENCE) if grace > 0 else IMMEDIATE_STOP_SEQUENCE


def longest(sequence: StopSequence) -> float:
    """Seconds for an agent to end tasks by this sequence; an agent that takes longer is lost."""
    return sum(seconds for _, seconds in sequence) + _MARGIN_SECONDS

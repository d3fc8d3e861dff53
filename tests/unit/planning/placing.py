"""Jobs and hosts in short, for the tests of placement."""

from __future__ import annotations

import pytest

from launcher.errors import PlacementError
from launcher.job import Host, JobSpec, Program, ProgramKind, Role
from launcher.planning import place

PROGRAM = Program(ProgramKind.SCRIPT, "train.py")


def role(name: str, count: int, **more) -> Role:
    return Role(name, count, PROGRAM, **more)


def hosts(*written: str) -> tuple[Host, ...]:
    """``n1`` (nothing said), ``n1:2`` (slots), ``n1:2:4`` (max_slots too), ``n1::4`` (max_slots only)."""
    found = []
    for text in written:
        name, *numbers = text.split(":")
        said = [int(number) if number else None for number in numbers] + [None, None]
        found.append(Host(name, slots=said[0], max_slots=said[1]))
    return tuple(found)


def where(roles: list[Role], inventory: tuple[Host, ...]) -> dict[str, str]:
    """Role -> the hosts of its tasks by index."""
    seen: dict[str, list[str]] = {}
    for placed in place(JobSpec(tuple(roles)), inventory).tasks:
        seen.setdefault(placed.task.role, []).append(placed.host.name)
    return {name: " ".join(names) for name, names in seen.items()}


def gpus(roles: list[Role], inventory: tuple[Host, ...]) -> dict[str, str | None]:
    """Task -> its GPUs, joined; ``None``: untouched."""
    tasks = place(JobSpec(tuple(roles)), inventory).tasks
    return {placed.task: None if placed.gpus is None else " ".join(placed.gpus) for placed in tasks}


def faults(roles: list[Role], inventory: tuple[Host, ...]) -> list[str]:
    with pytest.raises(PlacementError) as caught:
        place(JobSpec(tuple(roles)), inventory)
    return [str(fault) for fault in caught.value.faults]


#: Hosts that many cases share.
LAB = (
    Host("a1", labels=("zone=a", "fast"), slots=2),
    Host("a2", labels=("zone=a",), slots=2),
    Host("b1", labels=("zone=b", "fast"), slots=2),
)
GPU = Host("g1", gpus=("0", "1", "2", "3"), slots=8)
BARE = Host("c1", gpus=(), slots=8)
UNSAID = Host("n1", slots=8)

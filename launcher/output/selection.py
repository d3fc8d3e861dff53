"""``--show worker,ps/0``: whose lines the console shows. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from launcher.errors import Fault, JobError
from launcher.job import Placement
from launcher.text import did_you_mean


class Selection(NamedTuple):
    """Some tasks, or all."""

    #: ``None``: every task.
    tasks: frozenset[str] | None = None

    def shows(self, task: str) -> bool:
        """Whether this task's lines are shown."""
        return self.tasks is None or task in self.tasks


def parse_selection(text: str, placement: Placement, where: str = "--show") -> Selection:
    """What ``worker,ps/0,worker/2-5`` selects: roles, tasks and ranges of tasks, in any mixture.

    Raises:
        JobError: a name that is no role and no task of this job; all of them at once.
    """
    indexes: dict[str, set[int]] = {}
    for placed in placement.tasks:
        indexes.setdefault(placed.task.role, set()).add(placed.task.index)
    chosen: set[str] = set()
    faults: list[Fault] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        tasks = _tasks(word, indexes)
        chosen.update(tasks)
        if not tasks:
            faults.append(Fault(where, f"no task is called {word!r}", _expected(word, indexes)))
    if not chosen and not faults:
        faults.append(Fault(where, f"{text!r} names no task", "expected, for example, worker,ps/0"))
    if faults:
        raise JobError(faults)
    return Selection(frozenset(chosen))


def _tasks(word: str, indexes: dict[str, set[int]]) -> list[str]:
    """The tasks a word means; none if any part of it does not exist."""
    if word in indexes:
        return [f"{word}/{index}" for index in indexes[word]]
    found = re.fullmatch(r"(.+)/(\d{1,9})(?:-(\d{1,9}))?", word)
    if not found or found[1] not in indexes:
        return []
    role, first, last = found[1], int(found[2]), int(found[3] or found[2])
    inside = sorted(index for index in indexes[role] if first <= index <= last)
    return [f"{role}/{index}" for index in inside] if len(inside) == last - first + 1 else []


def _expected(word: str, indexes: dict[str, set[int]]) -> str:
    role = word.rpartition("/")[0]
    if role in indexes:
        last = max(indexes[role])
        return f"expected {role}/0 to {role}/{last}" if last else f"expected {role}/0"
    known = [*indexes, *(f"{role}/{index}" for role in indexes for index in sorted(indexes[role])[:100])]
    return did_you_mean(word.replace(":", "/"), known, f"expected one of {', '.join(indexes)}")

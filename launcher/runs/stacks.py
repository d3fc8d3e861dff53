"""Where the tasks of a run are: their Python stacks, with equal ones folded, asked from its launcher.

`launcher.launch.stacks` lets py-spy take them on the hosts, while the tasks go on. ``launch stacks``,
``launch top`` and the page call `stacks_of`. All texts come from tasks, and are harmless for a terminal.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError, ProtocolError
from launcher.common.record import Record, replace
from launcher.common.validation import FieldReader
from launcher.itself import PACKAGE_FOLDER
from launcher.runs.client import ask, unreachable
from launcher.runs.run import Run

#: How long the hosts of even a large job may take.
_MAX_SECONDS = 30.0
_POLL_SECONDS = 0.05
#: The distribution that takes stacks, and the name of its program.
PROGRAM_NAME = "py-spy"
#: The name that Python gives to the thread in which a program begins.
_MAIN_THREAD = "MainThread"


class ThreadStack(Record):
    """The Python stack of a thread at one moment."""

    name: str
    #: The innermost function comes first, as in ``step (train.py:7)``.
    frames: tuple[str, ...]


class Stacks(Record):
    """The Python stacks of a task at one moment, or of tasks of a role that are at the same place."""

    tasks: tuple[TaskId, ...]
    #: The threads of all Python processes of the first task that run Python code. The main one comes first.
    threads: tuple[ThreadStack, ...] = ()
    #: Why there are none, for the user. Otherwise empty.
    note: str = ""

    @property
    def names(self) -> str:
        """The names of the tasks, as in ``worker[0-6,9]``."""
        first, *others = self.tasks
        if not others:
            return first
        # In a row of consecutive indexes, each exceeds its position by the same number.
        numbered = enumerate(task.index for task in self.tasks)
        runs = [
            [index for _, index in run]
            for _, run in itertools.groupby(numbered, lambda each: each[1] - each[0])
        ]
        ranges = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
        return f"{first.role}[{','.join(ranges)}]"


def fold(stacks: Iterable[Stacks]) -> list[Stacks]:
    """Return the stacks of tasks with those folded whose main threads are at the same place.

    Returns:
        The groups. The smallest comes first, because the odd task is the one that is looked for. Tasks
        without stacks come last.
    """
    groups: dict[tuple[object, ...], list[Stacks]] = {}
    for each in stacks:
        place = each.tasks[0].role, each.note, each.threads[0].frames if each.threads else ()
        groups.setdefault(place, []).append(each)
    folded = [
        replace(group[0], tasks=tuple(itertools.chain.from_iterable(each.tasks for each in group)))
        for group in groups.values()
    ]
    return sorted(folded, key=lambda group: (bool(group.note), len(group.tasks)))


def stacks_of(run: Run, tasks: Collection[str] = ()) -> Sequence[Stacks]:
    """Let the hosts of a run take the Python stacks of tasks, and return the stacks with equal ones folded.

    The tasks run on meanwhile.

    Args:
        run: The run, whose launcher is a process of this machine.
        tasks: Names of tasks, roles and ranges. Empty: all that run.

    Raises:
        LaunchError: The launcher cannot be asked, or no task runs.
    """
    deadline = time.monotonic() + _MAX_SECONDS
    request: Mapping[str, Any] = {"request": "stacks", "tasks": [*tasks]}
    try:
        answer = ask(run, {**request, "take": True})
        # The launcher answers at once. "taking" names the tasks whose hosts have not answered it yet.
        while answer["taking"] and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            answer = ask(run, request)
        reader, note = FieldReader(trusted=True), f"its host has not answered within {_MAX_SECONDS:g}s"
        late = [Stacks((TaskId(task),), note=note) for task in answer["taking"]]
        return [*(Stacks(*reader.read(Stacks, group)) for group in answer["groups"]), *fold(late)]
    except ConnectionError as error:
        raise LaunchError(unreachable(run)) from error
    except (LookupError, TypeError, ValueError, ProtocolError) as error:
        raise LaunchError(f"{run.name} has a launcher of another version of launch: {error!r}") from error


def program_path() -> str:
    """Return the path of the program of py-spy, which is installed with launch.

    In the pod of a launcher, which has no packages, it was sent to a folder beside launch.

    Raises:
        LaunchError: There is none.
    """
    import importlib.metadata  # noqa: PLC0415 - takes 15 ms, and only those need it who send the program

    path = os.path.join(PACKAGE_FOLDER, PROGRAM_NAME, PROGRAM_NAME)
    with suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.distribution(PROGRAM_NAME).files or ()
        path = next((str(file.locate()) for file in files if file.name == PROGRAM_NAME), path)
    if not os.path.isfile(path):
        raise LaunchError("py-spy is not installed beside launch: `pip install py-spy`")
    return os.path.realpath(path)


def stack_lines(groups: Sequence[Stacks]) -> Iterator[str]:
    """Yield the lines that show stacks to the user: each group with its functions."""
    for group in groups:
        # The stacks of a group with several tasks are shown once.
        same = ": the same" if len(group.tasks) > 1 and not group.note else ":"
        yield f"{group.names}{same}{f' {group.note}' if group.note else ''}"
        for thread in group.threads:
            if thread.name != _MAIN_THREAD:
                yield f"  thread {thread.name}:"
            yield from (f"    {frame}" for frame in thread.frames)


def summary_lines(groups: Sequence[Stacks]) -> Iterator[str]:
    """Yield a line for each group: its tasks, and the innermost function of their main thread."""
    for group in groups:
        if group.threads and group.threads[0].frames:
            yield f"{group.names} in {group.threads[0].frames[0]}"

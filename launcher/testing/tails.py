"""The last lines of a cluster's logs, as the report of a failed test shows them."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.job import TaskId
from launcher.runs.growing import last_lines, shown_lines
from launcher.testing.record import RunRecord

#: Tasks of a job whose lines are shown.
_TASKS = 32


def tails(record: RunRecord, states: Sequence[tuple[TaskId, str]], said: str, count: int = 20) -> str:
    """The ends of all logs of a job.

    Args:
        record: its files.
        states: its tasks, and how each of them is.
        said: what the launcher has printed.
        count: lines of each.
    """
    parts = [_part("launch", "", shown_lines(_remarks(said), count))]
    for task, state in states[:_TASKS]:
        parts.append(_part(task, state, last_lines(record.paths.root, task, count)))
    if len(states) > _TASKS:
        parts.append(f"... and {len(states) - _TASKS} more tasks")
    return "\n".join([*parts, f"all of it: {record.paths.root}"])


def _part(who: str, state: str, lines: Sequence[str]) -> str:
    head = f"{who} ({state}):" if state else f"{who}:"
    return "\n".join([head, *(f"    {line}" for line in lines or ["(nothing)"])])


def _remarks(said: str) -> str:
    """What the launcher says of itself: the lines of the tasks are in their own logs."""
    return "\n".join(line for line in said.split("\n") if not _is_of_task(line))


def _is_of_task(line: str) -> bool:
    head, bar, _ = line.partition(" | ")
    return bool(bar) and "/" in head

"""The last lines of a cluster's logs, as the report of a failed test shows them."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.model.task import TaskId
from launcher.testing.record import RunRecord

#: Bytes of a log that are looked at, characters of a line that are shown, and tasks of a job.
_SIZE, _LONGEST, _TASKS = 64 * 1024, 500, 32


def last_lines(record: RunRecord, task: TaskId, count: int) -> list[str]:
    """The last lines that a task printed, fit to be shown."""
    return shown_lines(record.end_of_log(task, _SIZE).decode("utf-8", "replace"), count)


def shown_lines(text: str, count: int) -> list[str]:
    """The last lines of a text without what would move a terminal's cursor, too long ones shortened.

    A line that a progress bar has written again and again is what it was at last.
    """
    lines = text.rstrip().split("\n")[-count:] if text.strip() else []
    return [_shown(line.rstrip("\r").rpartition("\r")[2]) for line in lines]


def _shown(line: str) -> str:
    plain = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}... ({len(plain)} characters)"


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
        parts.append(_part(task, state, last_lines(record, task, count)))
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

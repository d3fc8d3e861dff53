"""Reads from the lines that programs print how far they are: steps, their total, and metrics."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.common.record import Record


class Progress(Record):
    """How far a task is, by a line that it has printed."""

    step: float
    #: How many steps there will be. None if it does not say.
    total: float | None = None
    #: Other numbers in the line, by name.
    metrics: Mapping[str, float] = {}


class ProgressReader:
    """Recognizes progress in lines. `launcher.launch.sampling` calls it in its thread."""

    def read(self, task: str, attempt: int, line: bytes) -> Progress | None:
        """Return how far a task is, or None if the line does not tell.

        Args:
            task: The name of the task.
            attempt: Its attempt.
            line: The last complete line that it has printed, at most 4 KiB of it, without its end.
        """
        return None

"""Samples of tasks: what they used and how far they were, at many moments, as ``samples.jsonl`` tells it.

`launcher.launch.sample_writer` writes the file, and commands and pages read it here, while the job runs or
later. A line is a moment. Tasks may damage or replace the file, so a line that is wrong is left out.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.common.cluster import is_task_name
from launcher.common.record import Record
from launcher.common.text import escape_controls
from launcher.common.trusted_io import open_regular
from launcher.job import RunPaths
from launcher.runs.run import json_of, tasks_of

#: The largest size of the file, and how much larger it may be for each task beyond `_TASKS_WITHIN`.
_MAX_BYTES = 2_000_000
_MAX_BYTES_PER_TASK = 2_000
_TASKS_WITHIN = 16
_MAX_METRICS = 20
_MAX_NAME = 64
#: Over how long a time, until now, steps per second are counted.
_RATE_SECONDS = 60.0
#: A task that needs longer for its steps, which is 30 years, has printed something else.
_MAX_SECONDS_LEFT = 1e9


class Sample(Record):
    """What one task used, and how far it was, at one moment. What is not known is None."""

    #: Seconds since the epoch.
    at: float
    attempt: int
    #: How many cores were in use since the sample before.
    cpu: float | None = None
    #: The resident bytes of all its processes.
    memory: int | None = None
    #: The use of its GPUs in percent, the mean of all.
    gpu: float | None = None
    #: The bytes that its processes use on GPUs.
    gpu_memory: int | None = None
    #: When the task has printed something last, in seconds since the epoch.
    printed_at: float | None = None
    #: The last step that it has printed, and how many there will be.
    step: float | None = None
    total: float | None = None
    #: Other numbers beside the step, by name.
    metrics: Mapping[str, float] = {}


class SampleReader:
    """The samples of a run, of which `read` finds new ones again and again.

    Args:
        paths: The files of the run.
        max_bytes: How many bytes at the end of the file are read at most. None for as many as the launcher
            writes into one file.
    """

    def __init__(self, paths: RunPaths, max_bytes: int | None = None) -> None:
        """Prepare to read the samples of a run. Nothing is read yet."""
        self._paths, self._max_bytes = paths, max_bytes
        #: The samples of each task, by its name, the oldest first.
        self.series: dict[str, list[Sample]] = {}
        #: Which file was read last, by its device and its inode. None before the first one.
        self._file: tuple[int, int] | None = None
        #: How many bytes of that file were read or left out. A line without an end is read later.
        self._offset = 0
        #: How many more bytes of that file are read at most.
        self._bytes_left = 0

    def read(self) -> bool:
        """Read what is new in the file, and return whether there was anything.

        The launcher replaces a file that is full, and then all of it is read again.
        """
        with suppress(OSError), open_regular(self._paths.samples, links=False) as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._file or status.st_size < self._offset:
                tasks = tasks_of(json_of(self._paths.plan) or {})
                self._file, self._bytes_left, self.series = identity, max_bytes_of(len(tasks)), {}
                # The first line may begin before this offset. Its rest is then wrong, and so it is left out.
                self._offset = max(0, status.st_size - (self._max_bytes or self._bytes_left))
            file.seek(self._offset)
            complete, newline, _ = file.read(self._bytes_left).rpartition(b"\n")
            self._offset += len(complete) + len(newline)
            self._bytes_left -= len(complete) + len(newline)
            for line in complete.splitlines():
                self._add(line)
            return bool(newline)
        return False

    def _add(self, line: bytes) -> None:
        """Add the samples in a line, which is about all tasks at one moment.

        Samples that are wrong are left out, because tasks can write to the file, too.
        """
        with suppress(ValueError, RecursionError, AttributeError, LookupError, TypeError):
            moment = json.loads(line)
            at = _number(moment, "at", 0, 1e10)
            for task, fields in moment["tasks"].items():
                if at is not None and is_task_name(task) and (sample := _sample(at, fields)) is not None:
                    self.series.setdefault(task, []).append(sample)


def max_bytes_of(task_count: int) -> int:
    """Return the largest size in bytes of the file of samples of a job with this number of tasks."""
    return _MAX_BYTES + _MAX_BYTES_PER_TASK * max(0, task_count - _TASKS_WITHIN)


def _sample(at: float, fields: Any) -> Sample | None:
    """Return the sample of one task from its fields in a line. None if they lack the number of the attempt.

    A task may have written anything into the file, so numbers that no task can reach are left out.
    """
    attempt = _number(fields, "attempt", 1, 1e9)
    if attempt is None:
        return None
    memory, gpu_memory = (_number(fields, name, 0, 1 << 62) for name in ("memory", "gpu_memory"))
    metrics = fields.get("metrics")
    names = [*metrics][:_MAX_METRICS] if isinstance(metrics, dict) else []
    return Sample(
        at,
        int(attempt),
        cpu=_number(fields, "cpu", 0, 1 << 20),
        memory=None if memory is None else int(memory),
        gpu=_number(fields, "gpu", 0, 100),
        gpu_memory=None if gpu_memory is None else int(gpu_memory),
        printed_at=_number(fields, "printed_at", 0, 1e10),
        step=_number(fields, "step"),
        total=_number(fields, "total"),
        metrics={
            escape_controls(name[:_MAX_NAME]): value
            for name in names
            if (value := _number(metrics, name)) is not None
        },
    )


def _number(fields: Any, name: str, low: float = -1e300, high: float = 1e300) -> float | None:
    """Return a number in a JSON object. None if it is missing, infinite or outside its limits."""
    value = fields.get(name) if isinstance(fields, dict) else None
    # True is no number here, and NaN is outside all limits.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    return None


def steps_per_second(samples: Sequence[Sample], seconds: float = _RATE_SECONDS) -> float | None:
    """Return how many steps a task does in a second, as counted lately in its last attempt.

    A step below the step before belongs to the next epoch. The rest of the epoch before was done then.
    A task that has not changed its step for longer than usual becomes slower and slower.

    Args:
        samples: The samples of the task, the oldest first.
        seconds: Over how long a time, until the last sample, steps are counted: by default a minute.

    Returns:
        None if it has printed fewer than two steps.
    """
    # The first sample of each step, the newest first. The last item is the first one of the minute, or one
    # before the minute if the task changes its step less often.
    changes: list[Sample] = []
    for sample in reversed(samples):
        if sample.attempt != samples[-1].attempt:
            break
        if sample.step is None:
            continue
        if changes and changes[-1].step == sample.step:
            changes[-1] = sample
            continue
        if len(changes) > 1 and samples[-1].at - _time_of(changes[-1]) >= seconds:
            break
        changes.append(sample)
    if len(changes) < 2:
        return None
    steps = sum(_steps_between(before, after) for after, before in zip(changes, changes[1:], strict=False))
    newest, second, began = _time_of(changes[0]), _time_of(changes[-2]), _time_of(changes[-1])
    start = samples[-1].at - seconds
    if len(changes) > 2 and began < start < second:  # The oldest steps were partly done before.
        steps -= _steps_between(changes[-1], changes[-2]) * (start - began) / (second - began)
        began = start
    took = max(newest - began, samples[-1].at - newest)
    rate = steps / took if took > 0 else math.inf
    return rate if math.isfinite(rate) else None


def _time_of(sample: Sample) -> float:
    """Return when the step of a sample was printed."""
    return sample.at if sample.printed_at is None else min(sample.at, sample.printed_at)


def _steps_between(before: Sample, after: Sample) -> float:
    """Return how many steps were done from one sample to a later one, perhaps of the next epoch."""
    assert before.step is not None and after.step is not None
    if after.step > before.step:
        return after.step - before.step
    rest = 0.0 if before.total is None else max(0.0, before.total - before.step)
    return rest + max(0.0, after.step)


def seconds_left(samples: Sequence[Sample]) -> float | None:
    """Return how many seconds a task still needs for all of its steps. None if that is not known.

    Args:
        samples: The samples of the task, the oldest first.
    """
    last = next((sample for sample in reversed(samples) if sample.step is not None), None)
    rate = steps_per_second(samples)
    if last is None or last.step is None or last.total is None or not rate or last.step > last.total:
        return None
    left = (last.total - last.step) / rate
    return left if left < _MAX_SECONDS_LEFT else None

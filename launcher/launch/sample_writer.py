"""Writes samples of tasks to ``samples.jsonl`` of a run, with how far the tasks are by their logs.

`launcher.launch.sampling` calls it in a thread, and imports it when the first sample has come. Nothing that a
task does to its log or to the file may harm the job.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import Record
from launcher.common.trusted_io import open_regular, read_at_most
from launcher.job import RunPaths
from launcher.output.run_files import replace_file
from launcher.progress import TAIL_BYTES, Findings, Pace, Progress, ProgressReader
from launcher.runs.samples import Sample, max_bytes_of, steps_per_second

#: How often tasks are compared, and how long the samples are kept that this needs.
_COMPARE_SECONDS = 5.0
_PACE_SECONDS = 60.0
#: A task that was not sampled for this long has ended, or its host cannot be reached.
_FRESH_SECONDS = 30.0
_APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_compact = json.JSONEncoder(separators=(",", ":")).encode


class Measurement(Record):
    """What a host has measured, with what the launcher knows of its tasks."""

    event: events.Measured
    #: The present attempts of its tasks.
    attempts: Mapping[TaskId, int]
    #: How many CPUs the host has.
    cpus: int


class _Sampled:
    """What is known about the present attempt of a task from its last sample."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        #: When the task was measured last, by the clock of its host. 0 before the first sample.
        self.measured_at = 0.0
        #: Its CPU seconds until then. None before the first sample.
        self.cpu_s: float | None = None
        #: When its log was changed last, and its size then.
        self.log = (0, 0)
        #: How far the task was when its log was changed last, as fields of a sample.
        self.progress: Mapping[str, Any] = {}
        #: The samples of the last minute, if the task has printed steps.
        self.samples: deque[Sample] = deque()

    @property
    def is_done(self) -> bool:
        """Whether the task has made all its steps."""
        return bool(self.progress.get("step", 0) >= self.progress.get("total", math.inf))

    def pace(self) -> Pace:
        """Return how fast the task was in the last minute, and how busy its CPUs and GPUs were."""
        cpus = [sample.cpu for sample in self.samples if sample.cpu is not None]
        gpus = [sample.gpu for sample in self.samples if sample.gpu is not None]
        means = [sum(uses) / len(uses) if uses else None for uses in (cpus, gpus)]
        return Pace(self.attempt, steps_per_second(self.samples), *means)


class SampleWriter:
    """Writes samples to ``samples.jsonl``, which it keeps small. One thread at a time writes.

    Args:
        paths: The files of the run.
        task_count: How many tasks the job has.
        pattern: How lines with steps look (``--progress``). None to recognize them.
        every: The seconds between two samples of a task.
    """

    def __init__(self, paths: RunPaths, task_count: int, pattern: str | None, every: float = 2.0) -> None:
        self._paths, self._progress = paths, ProgressReader(pattern)
        #: The age up to which samples count for the pace of a task. Where they are rare, a few still count.
        self._pace_seconds = max(_PACE_SECONDS, 3 * every)
        #: The age of its last sample up to which a task is compared with others. Where samples are rare, a
        #: task is not left out because one is late.
        self._fresh_seconds = max(_FRESH_SECONDS, 2 * every)
        #: The size above which the file is thinned.
        self._max_bytes = max_bytes_of(task_count)
        #: What is known from the last sample of each task.
        self._tasks: dict[TaskId, _Sampled] = {}
        #: What was found since the caller has last taken it.
        self.findings: list[events.Noticed | events.StepsRead] = []
        #: Finds slow tasks, and when it has last compared them.
        self._finder, self._compared_at = Findings(), 0.0
        #: Held while something is written. At its end the job writes in its own thread, and another one may
        #: still be writing.
        self._lock = threading.Lock()

    def write(self, measurements: Iterable[Measurement]) -> None:
        """Write a line with these measurements and the progress of their tasks.

        Raises:
            OSError: The file cannot be written. The next line may be tried.
        """
        with self._lock:
            self._write_samples(measurements)

    def write_last(self, attempts: Mapping[TaskId, int]) -> None:
        """Write how far tasks have come since their last samples, each at the moment when it printed that.

        Args:
            attempts: The last attempt of each task.

        Raises:
            OSError: The file cannot be written.
        """
        with self._lock:
            for task, attempt in attempts.items():
                sampled, fields = self._sampled(task, attempt), dict[str, Any](attempt=attempt)
                before = sampled.progress
                self._add_progress(fields, task, sampled)
                if sampled.progress != before:
                    line = {"at": min(fields["printed_at"], events.now()), "tasks": {task: fields}}
                    self._append(f"{_compact(line)}\n".encode())

    def _sampled(self, task: TaskId, attempt: int) -> _Sampled:
        """Return what is known about an attempt of a task, of which there may be no sample yet."""
        sampled = self._tasks.get(task)
        if sampled is None or sampled.attempt != attempt:
            sampled = self._tasks[task] = _Sampled(attempt)
        return sampled

    def _write_samples(self, measurements: Iterable[Measurement]) -> None:
        """Write a line with the samples of all tasks that were measured. The caller holds the lock."""
        samples: dict[TaskId, dict[str, Any]] = {}
        at, had_given_up = events.now(), self._progress.has_given_up
        #: The tasks whose steps have changed, each with its attempt.
        changed: dict[TaskId, int] = {}
        for measurement in measurements:
            event = measurement.event
            for task, attempt in measurement.attempts.items():
                sampled = self._sampled(task, attempt)
                fields: dict[str, Any] = {"attempt": attempt, "memory": event.memory[task]}
                _add_cpu(fields, sampled, event.at, event.cpu_s.get(task), measurement.cpus)
                for name, by_task in (("gpu", event.gpu), ("gpu_memory", event.gpu_memory)):
                    if task in by_task:
                        fields[name] = by_task[task]
                step = sampled.progress.get("step")
                self._add_progress(fields, task, sampled)
                if sampled.progress.get("step") != step:
                    changed[task] = attempt
                if "step" in fields:
                    sampled.samples.append(Sample(at, **fields))
                samples[task] = fields
        self._compare(at)
        # Only steps that the user has described (``--progress``) count for ``--stall``.
        if self._progress.is_by_user and not had_given_up:
            given_up = self._progress.has_given_up
            self.findings.append(events.StepsRead(at, changed, given_up))
            if given_up:
                # The log that took too long is that of the last task: after that none is read for steps.
                task = [*samples][-1]
                text = "--progress takes too long to find steps, so that they are not looked for any longer"
                self.findings.append(events.Noticed(at, "progress", task, f"{task}: {text}"))
        self._append(f"{_compact({'at': round(at, 2), 'tasks': samples})}\n".encode())

    def _compare(self, at: float) -> None:
        """Find out which tasks are slow, if it is time for that."""
        if at < self._compared_at + _COMPARE_SECONDS:
            return
        self._compared_at = at
        paces = {}
        for task, sampled in self._tasks.items():
            samples = sampled.samples
            while len(samples) > 3 and samples[0].at < at - self._pace_seconds:
                # Of a task that hangs, the step before the last one is kept, so that it has a pace.
                hangs = samples[1].step == samples[-1].step
                del samples[2 if hangs else 0]
            # A task that has ended, or made all its steps, is neither slow nor waited for.
            if samples and samples[-1].at > at - self._fresh_seconds and not sampled.is_done:
                paces[task] = sampled.pace()
        self.findings += self._finder.compare(at, paces)

    def _add_progress(self, fields: dict[str, Any], task: TaskId, sampled: _Sampled) -> None:
        """Add how far a task is, and when it has printed something last.

        Args:
            fields: The sample, to which that is added.
            task: The name of the task.
            sampled: What is known about it.
        """
        from launcher.output.logs import tail  # noqa: PLC0415 - takes 5 ms, and the start of tasks needs none

        path = self._paths.log(task)
        try:
            status = os.lstat(path)
        except OSError:  # It has printed nothing.
            return
        fields["printed_at"] = round(status.st_mtime, 2)
        log = (status.st_mtime_ns, status.st_size)
        if log != sampled.log:
            sampled.log = log
            progress = self._progress.read(task, sampled.attempt, tail(path, TAIL_BYTES)[0])
            if progress is not None:
                sampled.progress = _as_fields(progress)
                self.findings += self._finder.observe(events.now(), task, sampled.attempt, progress)
        fields.update(sampled.progress)

    def _append(self, line: bytes) -> None:
        """Append a line to the file. If it is full, samples of earlier times become fewer.

        Raises:
            OSError: The file cannot be written, or something else is in its place.
        """
        fd = os.open(self._paths.samples, _APPEND_FLAGS, 0o600)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "it is not a regular file")
            if status.st_size + len(line) <= self._max_bytes:
                os.write(fd, line)
                return
        finally:
            os.close(fd)
        kept: list[bytes] = []
        # A file that is still larger was not written by launch, so nothing of it is kept.
        with suppress(OSError), open_regular(self._paths.samples, links=False) as file:
            kept = thinned(read_at_most(file, self._max_bytes).splitlines(), self._max_bytes)
        replace_file(self._paths.samples, b"\n".join([*kept, line]).decode("utf-8", "replace"), 0o600)


def _as_fields(progress: Progress) -> Mapping[str, Any]:
    """Return how far a task is as fields of a sample. JSON has no numbers that are not finite."""
    metrics = {name: value for name, value in progress.metrics.items() if math.isfinite(value)}
    numbers = {"step": progress.step, "total": progress.total, "metrics": metrics}
    return {name: value for name, value in numbers.items() if value not in (None, {})}


def _add_cpu(fields: dict[str, Any], sampled: _Sampled, at: float, cpu_s: float | None, cpus: int) -> None:
    """Add how many cores a task has used since its last sample, which the first one cannot tell.

    Args:
        fields: The sample, to which that is added.
        sampled: What is known about the task.
        at: When it was measured.
        cpu_s: Its CPU seconds until then. None if the agent does not tell.
        cpus: How many CPUs its host has. The task cannot have used more.
    """
    if cpu_s is None or at <= sampled.measured_at:
        return
    if sampled.cpu_s is not None:
        # The seconds of a child that nobody has waited for are lost when it ends.
        cores = max(0.0, cpu_s - sampled.cpu_s) / (at - sampled.measured_at)
        fields["cpu"] = round(min(cores, cpus), 3)
    sampled.measured_at, sampled.cpu_s = at, cpu_s


def thinned(lines: Sequence[bytes], max_bytes: int) -> list[bytes]:
    """Return lines of samples that need about half of the space.

    The newest quarter stays. The time before is divided into equal spans, and of each span one moment stays:
    the last sample of each task in it.

    Args:
        lines: The lines, the oldest first. Those that are wrong are left out.
        max_bytes: How many bytes the lines may have together.
    """
    newest = lines[-(len(lines) // 4) :] if len(lines) > 3 else []
    moments = []
    for line in lines[: len(lines) - len(newest)]:
        with suppress(ValueError, RecursionError, LookupError, TypeError):
            moment = json.loads(line)
            # A time after 1e10, the year 2286, is no time of a sample.
            if 0 < moment["at"] < 1e10 and isinstance(moment["tasks"], dict):
                moments.append((float(moment["at"]), moment["tasks"]))
    if not moments:
        return [*newest]
    everything: dict[str, Any] = {}
    for _, tasks in moments:
        everything.update(tasks)
    # A span needs at most the space of one sample of every task, and all spans may fill a quarter of it all.
    span_count = max(1, max_bytes // 4 // (len(_compact(everything)) + 1))
    first, last = min(at for at, _ in moments), max(at for at, _ in moments)
    spans: dict[int, tuple[float, dict[str, Any]]] = {}
    for at, tasks in moments:
        # The second that is added keeps the last moment within the last span, and the divisor above 0.
        number = int(span_count * (at - first) / (last - first + 1.0))
        _, merged = spans.setdefault(number, (at, {}))
        spans[number] = at, {**merged, **tasks}
    kept = [_compact({"at": at, "tasks": tasks}).encode() for at, tasks in spans.values()]
    # A task may have written lines that become no smaller.
    return [*kept, *newest] if sum(map(len, kept)) < max_bytes // 2 else [*newest]

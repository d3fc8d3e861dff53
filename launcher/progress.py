"""Reads from the output of tasks how far they are: steps, their total, metrics. Finds what is wrong there.

`launcher.launch.sample_writer` passes it the ends of logs, in its thread. The user may say by ``--progress``
how a line with a step looks. Otherwise the forms that TensorFlow and tqdm print are recognized, and where a
number may mean something else, nothing is claimed.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from launcher.common.cluster import TaskId
from launcher.common.events import Noticed
from launcher.common.record import Record
from launcher.job import SERVICE_ROLES

#: How many bytes of the end of a log are read at most.
TAIL_BYTES = 4096
_MAX_LINES = 50
_MAX_METRICS = 16
#: How many seconds of CPU time ``--progress`` may take for the end of a log, and how long for one line on a
#: machine whose processors are busy.
_MAX_CPU_SECONDS = 0.02
_MAX_LINE_SECONDS = 0.2
#: How often in a row another form must be found before it replaces the one that was recognized.
_MAX_MISSES = 10
#: When lines have more shapes, all shapes are forgotten, so that endless different lines fill no memory.
_MAX_SHAPES = 16
#: For how long a task is slow before the user is told.
_SLOW_SECONDS = 20.0
#: A task for which others wait uses at least this much more than the others.
_MIN_CORES = 0.1
_MIN_GPU_PERCENT = 30.0
#: A bar replaces its line after a carriage return or backspaces.
_LINE_END = r"[\n\r\b]+"
_ESCAPE_SEQUENCE = r"\x1b\[[0-9;?]*[A-Za-z]"
# Patterns are compiled when they are used first, because that takes 3 ms. In each, the parts that may match
# the same characters are short, so that none takes long.
_NUMBER = r"([-+]?(?:nan|inf(?:inity)?|\d{1,20}(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?|\.\d{1,20}))(?![\w:/]|\.\d)"
_NAME = r"(?<![\w.])([a-z_][\w./-]{0,39})[\"']?"
#: As in ``loss: 0.3``. After a step also as in ``loss 0.3``.
_CLEAR_METRIC = rf"(?i){_NAME}\s{{0,9}}[:=]\s{{0,9}}{_NUMBER}"
_METRIC = rf"(?i){_NAME}\s{{0,9}}[:=\s]\s{{0,9}}{_NUMBER}"
_EPOCH = r"Epoch (\d{1,9})/(\d{1,9})$"
#: ``12/469 [==>...] - ETA: 0s - loss: 0.3``, ``12/469 - 2s - loss: 0.3``, ``12/469 ━━━ 0s 5ms/step``.
_KERAS = (
    r" *(\d{1,15})/(\d{1,15}|Unknown) (?:\[[=>.]{1,99}\] - |━{1,99} |- |(?<=Unknown ))"
    r"(?:ETA: )?(?:\d{1,9}[mu]?s|\d{1,9}:[\d:]{2,9})(?: \d{1,9}[mu]?s/(?:step|epoch))?(?: - |$)"
)
#: `` 45%|███  | 450/1000 [00:10<00:12, 45.1it/s, loss=0.3]``, without a total ``450it [00:10, 45.1it/s]``.
_TQDM = (
    r"(?:\|[^|]{0,999}\| *(\d{1,15})/(\d{1,15})|(?<![\w./])(\d{1,15})(?:it|steps?|batch(?:es)?)) "
    r"\[\d[\d:]{1,12}(?:<[\d:?]{1,12})?, *[\d.?]{1,20}[^\s,\]\d]{1,30}([^\]]{0,999})"
)
#: ``step 12``, ``step: 12/100``, ``global_step = 12``, ``"step": 12``; ``Train tree 12/400`` of YDF.
_STEP = (
    r"(?i)(?<![a-z])(?:step|train tree)[\"']?\s{0,9}[:=#]?\s{0,9}(\d{1,15})(?!\w|[.:]\d)"
    r"(?:\s{0,3}(?:/|of)\s{0,3}(\d{1,15})(?!\w|\.\d))?"
)
_NUMBER_OR_SPACES = r"(?i)[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|\bnan\b|\binf(?:inity)?\b)|\s+"


class Progress(Record):
    """How far a task is, by a line that it has printed."""

    step: float
    #: How many steps there will be. None if the line does not say.
    total: float | None = None
    #: Other numbers in the line, by name. They may be infinite or no number.
    metrics: Mapping[str, float] = {}


class ProgressReader:
    """Recognizes progress at the end of the logs of tasks.

    Args:
        pattern: The pattern of ``--progress``, which is right. None without that option.
    """

    def __init__(self, pattern: str | None = None) -> None:
        #: The compiled pattern. None without that option.
        self._pattern: Any = None
        if pattern is not None:
            import regex  # noqa: PLC0415 - takes 20 ms, and few launches need it: `re` has no time limit

            self._pattern = regex.compile(pattern)
        #: Whether the user has said how steps look.
        self.is_by_user = pattern is not None
        #: Whether the search by the user's pattern was given up, because it took too long.
        self.has_given_up = False
        #: What was recognized in the output of each task. It is new with each attempt.
        self._attempts: dict[TaskId, tuple[int, _Recognition]] = {}

    def read(self, task: TaskId, attempt: int, tail: bytes) -> Progress | None:
        """Return how far a task is.

        Args:
            task: The task.
            attempt: The number of its attempt.
            tail: The end of the output of this attempt, at most `TAIL_BYTES` of it. What was printed after
                the last newline, carriage return or backspace does not count, because it may not be complete.

        Returns:
            The progress by the last line that tells it. None if no line does.
        """
        # What follows the last line end is no complete line.
        *lines, _ = re.split(_LINE_END, tail[-TAIL_BYTES:].decode("utf-8", "replace"))
        if len(tail) >= TAIL_BYTES:  # The first line may have begun before.
            del lines[:1]
        lines = [re.sub(_ESCAPE_SEQUENCE, "", line) for line in lines[-_MAX_LINES:]]
        if self._pattern is not None:
            return None if self.has_given_up else self._read_by_pattern(self._pattern, lines)
        known = self._attempts.get(task)
        if known is None or known[0] != attempt:
            known = self._attempts[task] = attempt, _Recognition()
        return known[1].read(lines)

    def _read_by_pattern(self, pattern: Any, lines: Sequence[str]) -> Progress | None:
        """Return the progress by the last line that the pattern of the user matches."""
        start = time.thread_time()
        for line in reversed(lines):
            try:  # Other threads go on meanwhile.
                match = pattern.search(line, timeout=_MAX_LINE_SECONDS, concurrent=True)
            except TimeoutError:
                match = None
            # A pattern that takes this long would delay what the launcher records about all tasks.
            if time.thread_time() - start > _MAX_CPU_SECONDS:
                self.has_given_up = True
                return None
            if match and (progress := _progress_of(match.groupdict())) is not None:
                return progress
        return None


def _progress_of(groups: Mapping[str, str | None]) -> Progress | None:
    """Return the progress in the groups of a pattern of the user. None if the step is not a number."""
    numbers = {name: number for name, text in groups.items() if (number := _number(text)) is not None}
    step, total = numbers.pop("step", math.nan), numbers.pop("total", math.inf)
    if not math.isfinite(step):
        return None
    metrics = dict([*numbers.items()][:_MAX_METRICS])
    return Progress(step, total if math.isfinite(total) else None, metrics)


def _number(text: str | None) -> float | None:
    """Return the number in a text, perhaps with commas. None if the text is not a number."""
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None


class _Recognition:
    """What was recognized in the output of one attempt of a task."""

    def __init__(self) -> None:
        #: The form that its lines have: a method of this class. None as long as none was recognized.
        self._form: Callable[[Sequence[str]], Progress | None] | None = None
        #: How often in a row another form was found instead. After `_MAX_MISSES` it replaces this one.
        self._misses = 0
        #: The present epoch of Keras, and how many epochs there are. 0 as long as Keras has not said so.
        self._epoch, self._epochs = 1, 0
        #: The last step in this epoch, and how many steps an epoch has. 0 as long as Keras has not said so.
        self._step, self._total = 0, 0
        #: The step in the last line of each shape. A shape is a line without its numbers.
        self._shapes: dict[str, int] = {}
        #: The shapes whose step has grown from one line to another, so that these lines really tell steps.
        self._growing_shapes: set[str] = set()
        #: The shape among these that counts. Empty until one was seen.
        self._shape = ""

    def read(self, lines: Sequence[str]) -> Progress | None:
        """Return the progress by the last of these lines that tells it. None if none does.

        Lines of another form than before are ignored until they were found `_MAX_MISSES` times in a row.
        """
        if self._form is not None and (progress := self._form(lines)) is not None:
            self._misses = 0
            return progress
        for form in (self._keras, self._tqdm, self._steps):
            if form == self._form or (progress := form(lines)) is None:
                continue
            self._misses += 1
            # The bar of an evaluation, for example, says nothing about a training that prints lines.
            if self._form is not None and self._misses < _MAX_MISSES:
                return None
            self._form, self._misses = form, 0
            return progress
        return None

    def _keras(self, lines: Sequence[str]) -> Progress | None:
        """Return the progress by the last bar of Keras, counted over all epochs."""
        # A bar with another total belongs to an evaluation.
        total = self._total if self._epochs else 0
        bar, step, has_epoch = None, 0, False
        for line in lines:
            if epoch := re.match(_EPOCH, line):
                self._epoch, self._epochs = int(epoch[1]), int(epoch[2])
                total, step, has_epoch = 0, 0, True
            elif (found := re.match(_KERAS, line)) and (not total or found[2] in (str(total), "Unknown")):
                bar, step = found, int(found[1])
                if found[2] != "Unknown":
                    total = self._total = int(found[2])
        if bar is None:
            return None
        if not has_epoch and step < self._step and self._epochs:
            self._epoch += 1  # The line ``Epoch 2/5`` was not seen.
        self._step = step
        # With more epochs than announced, or earlier ones of unknown length, nobody knows how far this is.
        if self._epoch > max(1, self._epochs) or (self._epoch > 1 and not self._total):
            return None
        steps = (self._epoch - 1) * self._total + step
        metrics = _metrics(bar.string[bar.end() :], _CLEAR_METRIC)
        return Progress(steps, self._total * max(1, self._epochs) or None, metrics)

    def _tqdm(self, lines: Sequence[str]) -> Progress | None:
        """Return the progress by the last bar of tqdm. Of several, the one with the largest total counts."""
        # Later bars replace earlier ones with the same total, which is None if it is unknown.
        bars = {bar[2]: bar for line in lines for bar in re.finditer(_TQDM, line)}
        if not bars:
            return None
        bar = bars[max(bars, key=lambda total: int(total or 0))]
        return Progress(
            int(bar[1] or bar[3]), int(bar[2]) if bar[2] else None, _metrics(bar[4], _CLEAR_METRIC)
        )

    def _steps(self, lines: Sequence[str]) -> Progress | None:
        """Return the progress by the last line with a step, if another such line had a smaller step.

        Lines of one print statement are recognized by their shape: the line with each number replaced.
        """
        found: dict[str, re.Match[str]] = {}
        for line in lines:
            if match := re.search(_STEP, line):
                shape, step = re.sub(_NUMBER_OR_SPACES, "#", line), int(match[1])
                if step > self._shapes.get(shape, step):
                    self._growing_shapes.add(shape)
                self._shapes[shape] = step
                if shape in self._growing_shapes:
                    found[shape] = match
        if len(self._shapes) > _MAX_SHAPES:
            self._shapes, self._growing_shapes = {}, set()
        if not found:
            return None
        if self._shape not in found:
            self._shape = [*found][-1]
        last = found[self._shape]
        # The prefix of a log, which has numbers, is left out.
        before = last.string[: last.start()].rpartition("] ")[2]
        metrics = {**_metrics(before, _CLEAR_METRIC), **_metrics(last.string[last.end() :], _METRIC)}
        return Progress(int(last[1]), int(last[2]) if last[2] else None, metrics)


def _metrics(text: str, pattern: str) -> dict[str, float]:
    """Return the numbers in a text by their names, which a pattern such as `_METRIC` finds."""
    return {match[1]: float(match[2]) for match in islice(re.finditer(pattern, text), _MAX_METRICS)}


# ---------------------------------------------------------------------- findings


class Pace(Record):
    """How fast a task was in the last minute. What is not known is None."""

    attempt: int
    #: Steps per second.
    rate: float | None = None
    #: How many cores were in use, and how many percent of its GPUs.
    cpu: float | None = None
    gpu: float | None = None


class Findings:
    """Finds what is wrong in the progress of tasks. Each thing is named once in an attempt of a task."""

    def __init__(self) -> None:
        #: What was named: the kind, the task and its attempt.
        self._named: set[tuple[str, TaskId, int]] = set()
        #: Since when each task has been slow.
        self._slow_since: dict[TaskId, float] = {}

    def observe(self, at: float, task: TaskId, attempt: int, progress: Progress) -> Iterator[Noticed]:
        """Yield a finding if metrics that a task has printed with a step are infinite or not numbers."""
        wrong = [f"{name} is {value}" for name, value in progress.metrics.items() if not math.isfinite(value)]
        if wrong:
            text = f"{task}: {', '.join(wrong)} at step {progress.step:.15g}"
            yield from self._once(Noticed(at, "nan", task, text), attempt)

    def compare(self, at: float, paces: Mapping[TaskId, Pace]) -> Iterator[Noticed]:
        """Yield which tasks have been slow for some time, compared with the others of their role.

        Args:
            at: The time now.
            paces: How fast the running tasks are. Services are left out.
        """
        roles: dict[str, dict[TaskId, Pace]] = {}
        for task, pace in paces.items():
            if pace.rate is not None and task.role not in SERVICE_ROLES:
                roles.setdefault(task.role, {})[task] = pace
        slow = {task: text for role in roles.values() if len(role) > 1 for task, text in _slow_tasks(role)}
        self._slow_since = {task: self._slow_since.get(task, at) for task in slow}
        for task, text in slow.items():
            if at - self._slow_since[task] >= _SLOW_SECONDS:
                yield from self._once(Noticed(at, "slow", task, text), paces[task].attempt)

    def _once(self, noticed: Noticed, attempt: int) -> Iterator[Noticed]:
        """Yield a finding, unless it was named before."""
        key = noticed.kind, noticed.task, attempt
        if key not in self._named:
            self._named.add(key)
            yield noticed


def _slow_tasks(role: Mapping[TaskId, Pace]) -> Iterator[tuple[TaskId, str]]:
    """Yield the slow tasks of a role, each with a message about it.

    Tasks that train synchronously are all as slow as the slowest one, which computes while the others wait.

    Args:
        role: The tasks of the role, at least two, whose steps per second are all known.
    """
    rates = {task: pace.rate or 0.0 for task, pace in role.items()}
    middle = _median(rates.values())
    for task, rate in rates.items():
        if rate < middle / 2:
            yield task, f"{task} is slow: {rate:.3g} steps/s, and the median of its role is {middle:.3g}"
    # If the rates differ, these tasks do not train synchronously, and none of them waits for another.
    if min(rates.values()) < middle * 0.8 or max(rates.values()) > middle * 1.25:
        return
    uses = ("cores", _MIN_CORES, {task: pace.cpu for task, pace in role.items()})
    gpus = ("% of its GPUs", _MIN_GPU_PERCENT, {task: pace.gpu for task, pace in role.items()})
    found = dict(each for each in (_busiest(*uses), _busiest(*gpus)) if each)
    if len(found) == 1:  # Otherwise CPUs and GPUs tell of different tasks.
        yield from found.items()


def _busiest(unit: str, least: float, uses: Mapping[TaskId, float | None]) -> tuple[TaskId, str] | None:
    """Return the task for which the others seem to wait, with a message about it.

    Args:
        unit: What is used.
        least: By how much the use of a task must exceed that of the others.
        uses: The use of each task.

    Returns:
        None if no task uses at least twice as much as the median of the others, or if a use is not known.
    """
    known = {task: use for task, use in uses.items() if use is not None}
    task = max(known, key=lambda each: known[each], default=None)
    if task is None or len(known) < len(uses):
        return None
    use, others = known.pop(task), _median(known.values())
    if use < max(2 * others, others + least):
        return None
    return task, f"{task} may be slow: it uses {use:.2g} {unit}, while the others wait with {others:.2g}"


def _median(values: Iterable[float]) -> float:
    """Return the median of numbers, of which there is at least one."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

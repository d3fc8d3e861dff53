"""Makes graphs of the samples of a run: a line for each task, or the worst and the median of a role of many.

``launch page`` and ``launch report --html`` draw them. What nobody measured has no graph.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import median_low

from launcher.common.record import Record
from launcher.runs.samples import Sample, steps_per_second

#: Of more tasks than this, only the worst and the median of each role are drawn.
MAX_LINES = 20
#: Of more metrics, which a program may print in any number, only the first ones are drawn.
_MAX_METRICS = 12
#: How many moments are drawn at most, and how many of all tasks together, as each costs time.
_MAX_MOMENTS = 600
_MAX_MOMENTS_OF_ALL = 30_000
#: How far back the samples are from which a speed is computed, in seconds and in samples. A task whose steps
#: are rarer has no speed here.
_SPEED_SECONDS = 90.0
_SPEED_SAMPLES = 45
#: Titles and units of what is drawn of each task, beside its metrics.
_SPEED = ("Steps per second", "1/s")
_USES = (("Memory", "bytes"), ("CPU", "cores"), ("GPU", "%"), ("GPU memory", "bytes"))
#: Units of which a low value is bad.
_LOW_IS_BAD_UNITS = ("1/s", "cores", "%")
#: Parts of names of metrics of which a low value is bad. Of others, such as losses, a high one is.
_LOW_IS_BAD_NAMES = ("acc", "auc", "precision", "recall", "f1", "reward")


class Graph(Record):
    """One quantity of some tasks over the time."""

    title: str
    #: ``bytes``, ``%``, ``cores`` or ``1/s``. Empty for a number without a unit.
    unit: str
    #: The moments, in seconds since the epoch, the earliest first.
    at: Sequence[float]
    #: By the name of the line, such as a task, its values at these moments. None if a value is unknown.
    lines: Mapping[str, Sequence[float | None]]


def graphs(series: Mapping[str, Sequence[Sample]], since: float = 0.0) -> list[Graph]:
    """Return the graphs of a run, those of its progress first.

    Args:
        series: The samples by task, the oldest first.
        since: Only later moments are drawn. Of all moments, at most 600 are drawn, and fewer of many tasks.
    """
    # Another thread may add samples of further tasks meanwhile. A speed also needs earlier samples.
    series = {task: _after(since - _SPEED_SECONDS, samples) for task, samples in dict(series).items()}
    moments = sorted({sample.at for samples in series.values() for sample in _after(since, samples)})
    limit = min(_MAX_MOMENTS, max(MAX_LINES, _MAX_MOMENTS_OF_ALL // max(1, len(series))))
    # Every n-th moment is drawn, counted from the last one.
    moments = moments[:: -math.ceil(len(moments) / limit) or -1][::-1]
    drawn = set(moments)
    # By title and unit, the values by task and moment.
    found: dict[tuple[str, str], dict[str, dict[float, float]]] = {}
    for task, samples in series.items():
        for end, sample in enumerate(samples, start=1):
            if sample.at not in drawn:
                continue
            for quantity, value in _values(samples[max(0, end - _SPEED_SAMPLES) : end]):
                if value is not None:
                    found.setdefault(quantity, {}).setdefault(task, {})[sample.at] = value
    metrics = [(title, unit) for title, unit in found if not unit][:_MAX_METRICS]
    made = []
    for title, unit in (_SPEED, *metrics, *_USES):
        by_task = found.get((title, unit), {})
        if len(series) > MAX_LINES:
            by_task = _worst_and_median(by_task, low_is_bad=unit in _LOW_IS_BAD_UNITS or is_low_bad(title))
        if by_task:
            lines = {name: [values.get(at) for at in moments] for name, values in by_task.items()}
            made.append(Graph(title, unit, moments, lines))
    return made


def is_low_bad(metric: str) -> bool:
    """Return whether a low value of a metric is bad, as of an accuracy and not of a loss, by its name."""
    return any(part in metric.lower() for part in _LOW_IS_BAD_NAMES)


def _after(since: float, samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples that are later than a moment."""
    return samples[bisect_right(samples, since, key=attrgetter("at")) :]


def _values(samples: Sequence[Sample]) -> Iterator[tuple[tuple[str, str], float | None]]:
    """Yield the title, the unit and the value of each quantity of a task at the moment of its last sample.

    Args:
        samples: The last samples of the task, at least one. Its speed needs more than one.
    """
    last = samples[-1]
    yield _SPEED, steps_per_second(samples)
    for name, value in last.metrics.items():
        yield (name, ""), value
    if last.memory != 0:  # A task whose processes have just ended uses nothing.
        yield from zip(_USES, (last.memory, last.cpu, last.gpu, last.gpu_memory), strict=True)


def _worst_and_median(
    by_task: Mapping[str, Mapping[float, float]], *, low_is_bad: bool
) -> dict[str, dict[float, float]]:
    """Return two lines of a graph for each role, instead of one for each task: the worst, and the median.

    Args:
        by_task: The values of each task, by moment.
        low_is_bad: Whether the lowest value is the worst one, as for a speed.
    """
    by_role: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task, values in by_task.items():
        for at, value in values.items():
            by_role[task.partition("/")[0]][at].append(value)
    folded = {}
    for role, moments in by_role.items():
        word, worst = ("lowest", min) if low_is_bad else ("highest", max)
        folded[f"{role}, {word}"] = {at: worst(values) for at, values in moments.items()}
        folded[f"{role}, median"] = {at: median_low(values) for at, values in moments.items()}
    return folded

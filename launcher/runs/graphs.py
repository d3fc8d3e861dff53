"""Makes graphs of the samples of a run: a line for each task, or the worst and the median of a role of many.

``launch page`` and ``launch report --html`` draw them. What nobody measured has no graph.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import median_low

from launcher.common.record import Record
from launcher.runs.samples import Sample, steps_per_second

#: Of more tasks than this, only the worst and the median of each role are drawn.
MAX_LINES = 20
_MAX_METRICS = 12
_MAX_MOMENTS = 600
#: How far back the samples are of which a speed is made. Steps that are rarer have no speed here.
_SPEED_SECONDS = 90.0
_SPEED_SAMPLES = 45
#: Parts of names of metrics of which a low value is bad. Of others, such as losses, a high one is.
_LOW_IS_BAD = ("acc", "auc", "precision", "recall", "f1", "reward")
_Values = Mapping[str, Mapping[float, float]]
_Worst = Callable[[Iterable[float]], float]


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
        since: Only later moments are drawn. Of all moments, at most 600 are drawn, evenly spread.
    """
    # Another thread may add samples of further tasks meanwhile.
    series = dict(series)
    # A speed also needs earlier samples.
    recent = {task: _after(since, samples) for task, samples in series.items()}
    longer = {task: _after(since - _SPEED_SECONDS, samples) for task, samples in series.items()}
    moments = sorted({sample.at for samples in recent.values() for sample in samples})
    # The last moment is always drawn.
    moments = moments[:: -math.ceil(len(moments) / _MAX_MOMENTS) or -1][::-1]
    metrics = dict.fromkeys(
        name for samples in recent.values() for sample in samples for name in sample.metrics
    )
    drawn: list[tuple[str, str, _Values, _Worst]] = [
        ("Steps per second", "1/s", _speeds(longer, moments), min)
    ]
    for name in list(metrics)[:_MAX_METRICS]:
        worst: _Worst = min if is_low_bad(name) else max
        drawn.append((name, "", _values(recent, partial(_metric, name)), worst))
    for title, unit, field, is_low in (
        ("Memory", "bytes", "memory", False),
        ("CPU", "cores", "cpu", True),
        ("GPU", "%", "gpu", True),
        ("GPU memory", "bytes", "gpu_memory", False),
    ):
        # A task whose processes have just ended uses no memory at all.
        values = _values(recent, partial(_used, field))
        drawn.append((title, unit, values, min if is_low else max))
    made: list[Graph] = []
    for title, unit, values, worst in drawn:
        if len(series) > MAX_LINES:
            values = _folded(values, worst, "lowest" if worst is min else "highest")
        lines = {name: [line.get(at) for at in moments] for name, line in values.items()}
        known = {name: line for name, line in lines.items() if any(value is not None for value in line)}
        if known:
            made.append(Graph(title, unit, moments, known))
    return made


def is_low_bad(metric: str) -> bool:
    """Return whether a low value of a metric is bad, as of an accuracy and not of a loss, by its name."""
    return any(part in metric.lower() for part in _LOW_IS_BAD)


def _used(field: str, sample: Sample) -> float | None:
    """Return how much of something a task used at one moment. None if it had no processes any longer."""
    value: float | None = getattr(sample, field)
    return None if sample.memory == 0 else value


def _after(since: float, samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples that are later than a moment."""
    return samples[bisect_right(samples, since, key=attrgetter("at")) :]


def _metric(name: str, sample: Sample) -> float | None:
    """Return a metric at one moment. None if it is unknown."""
    return sample.metrics.get(name)


def _values(series: Mapping[str, Sequence[Sample]], value: Callable[[Sample], float | None]) -> _Values:
    """Return the values of a quantity by task and moment."""
    return {
        task: {sample.at: known for sample in samples if (known := value(sample)) is not None}
        for task, samples in series.items()
    }


def _speeds(series: Mapping[str, Sequence[Sample]], moments: Sequence[float]) -> _Values:
    """Return the steps per second, as tables of tasks showed them at these moments, by task and moment."""
    drawn, speeds = set(moments), defaultdict[str, dict[float, float]](dict)
    for task, samples in series.items():
        for end, sample in enumerate(samples, start=1):
            recent = samples[max(0, end - _SPEED_SAMPLES) : end]
            if sample.at in drawn and (speed := steps_per_second(recent)) is not None:
                speeds[task][sample.at] = speed
    return speeds


def _folded(values: _Values, worst: _Worst, word: str) -> _Values:
    """Return the worst and the median of each role by moment."""
    by_role: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task, by_moment in values.items():
        for at, value in by_moment.items():
            by_role[task.partition("/")[0]][at].append(value)
    folded: dict[str, Mapping[float, float]] = {}
    for role, at_moments in by_role.items():
        folded[f"{role}, {word}"] = {at: worst(of_tasks) for at, of_tasks in at_moments.items()}
        folded[f"{role}, median"] = {at: median_low(of_tasks) for at, of_tasks in at_moments.items()}
    return folded

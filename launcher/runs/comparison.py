"""Compares two runs for ``launch report A B``: options that differ, how they ended, times and metrics.

What is equal in both and says nothing about the difference is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from statistics import median

from launcher.common.record import Record
from launcher.common.report import TaskReport
from launcher.common.text import byte_size, duration, escape_controls, join_names
from launcher.runs.graphs import is_low_bad
from launcher.runs.run import command_of
from launcher.runs.samples import Sample, steps_per_second
from launcher.runs.view import RunView

COMPARISON_HEADERS = ("", "first", "second", "change")
_MAX_METRICS = 50
_MAX_HOSTS = 20
_Values = Mapping[str, "str | float"]
_Texts = Callable[[float], str]


class ComparedRow(Record):
    """One thing in which two runs are compared. What a run does not have is None."""

    name: str
    #: The texts or numbers of the two runs.
    values: tuple[str | float | None, str | float | None]
    #: The same for people.
    texts: tuple[str, str]

    @property
    def change(self) -> str:
        """How much greater the second number is than the first, as in ``+12 %``. Empty without numbers."""
        before, after = self.values
        if not isinstance(before, float) or not isinstance(after, float) or before <= 0 or before == after:
            return ""
        percent = 100 * (after / before - 1)
        return f"{percent:+.0f} %" if abs(percent) >= 9.5 else f"{percent:+.1f} %"


def compared(first: RunView, second: RunView) -> list[ComparedRow]:
    """Return what two runs are compared in, the options that differ first."""
    views = (first, second)
    rows = [
        _row(name, [given.get(name) for given in map(_given, views)]) for name in _names(map(_given, views))
    ]
    rows = [row for row in rows if row.values[0] != row.values[1]]
    rows.append(_row("verdict", [view.headline for view in views]))
    rows.append(_row("took", [view.seconds for view in views], duration))
    counts = (
        ("tasks", [float(len(view.report.tasks)) for view in views]),
        ("restarts", [float(view.report.restarts) for view in views]),
    )
    rows += [_row(name, values) for name, values in counts if values[0] != values[1]]
    for measured, text in ((_metrics, _number), (_speeds, _number), (_memory, byte_size), (_cpu, duration)):
        found = [measured(view) for view in views]
        rows += [_row(name, [values.get(name) for values in found], text) for name in _names(found)]
    return rows


def _row(name: str, values: Sequence[str | float | None], text: _Texts | None = None) -> ComparedRow:
    """Return a row of two texts or numbers, which a function makes readable."""
    first, second = (
        "-" if value is None else value if isinstance(value, str) else (text or _number)(value)
        for value in values
    )
    return ComparedRow(name, (values[0], values[1]), (first, second))


def _number(value: float) -> str:
    """Return a number for people, with enough digits to compare it."""
    return f"{value:,.0f}" if abs(value) >= 10_000 or value == int(value) else f"{value:.4g}"


def _names(values: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the names in both of some mappings, each once."""
    return list(dict.fromkeys(name for mapping in values for name in mapping))


def _given(view: RunView) -> dict[str, str]:
    """Return what the user has given for a run: options, the program and its arguments, versions, hosts."""
    origin, plan = view.run.origin, view.run.plan()
    given = _options(origin.options or command_of(plan)[1:], "")
    if origin.program:
        given |= {"program": origin.program[0], **_options(origin.program[1:], "program's ")}
    versions = plan.get("versions")
    named = versions.items() if isinstance(versions, dict) else ()
    given |= {f"version of {name}": str(version) for name, version in named}
    hosts = dict.fromkeys(task.host for task in view.report.tasks)
    given["folder"], given["hosts"] = origin.folder, join_names([*hosts], _MAX_HOSTS)
    given.pop("--name", None)
    return {escape_controls(name): escape_controls(text) for name, text in given.items() if text}


def _options(words: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the values of the options in words of a command line, by name. Other words are ``arguments``.

    Args:
        words: The words.
        prefix: What the names begin with.
    """
    options: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-") and len(word) > 1 and not word[1:].replace(".", "", 1).isdecimal():
            name, _, value = word.partition("=")
        else:
            value = word
        key = prefix + (name or "arguments")
        options[key] = " ".join(filter(None, (options.get(key, ""), value)))
        if value:  # Later words without a dash belong to no option.
            name = ""
    return {key: value or "given" for key, value in options.items()}


def _metrics(view: RunView) -> _Values:
    """Return the last value of each metric, as the median of all tasks, and the best one of all."""
    by_name: dict[str, list[Sequence[float]]] = {}
    for samples in view.samples.values():
        names = _names(sample.metrics for sample in samples)
        for name in names[:_MAX_METRICS]:
            of_task = [sample.metrics[name] for sample in samples if name in sample.metrics]
            by_name.setdefault(name, []).append(of_task)
    found: dict[str, float] = {}
    for name, tasks in by_name.items():
        best = max if is_low_bad(name) else min
        found[f"{name}, last"] = float(median(values[-1] for values in tasks))
        found[f"{name}, best"] = float(best(value for values in tasks for value in values))
    return found


def _speeds(view: RunView) -> _Values:
    """Return the steps per second of the last attempts, as the median of all tasks."""
    speeds = [speed for samples in view.samples.values() if (speed := steps_per_second(samples, inf))]
    return {"steps/s": float(median(speeds))} if speeds else {}


def _memory(view: RunView) -> _Values:
    """Return the most memory that a task of each role used."""
    peaks: dict[str, float] = {}
    for task in view.report.tasks:
        role, sizes = f"peak memory of {task.task.role}", _sizes(task, view.samples.get(task.task, ()))
        if sizes:
            peaks[role] = max(peaks.get(role, 0.0), *sizes)
    return {escape_controls(name): peak for name, peak in peaks.items()}


def _sizes(task: TaskReport, samples: Iterable[Sample]) -> list[float]:
    """Return how much memory a task has used at any time, as far as it is known."""
    sizes = [float(sample.memory) for sample in samples if sample.memory is not None]
    return sizes if task.peak_rss is None else [*sizes, float(task.peak_rss)]


def _cpu(view: RunView) -> _Values:
    """Return the CPU time of all tasks together."""
    times = [task.cpu_s for task in view.report.tasks if task.cpu_s is not None]
    return {"CPU time of all tasks": float(sum(times))} if times else {}

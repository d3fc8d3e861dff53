"""Compares two runs for ``launch report A B``: options that differ, how they ended, times and metrics.

What is equal in both and says nothing about the difference is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from statistics import median

from launcher.common.record import Record
from launcher.common.text import byte_size, duration, escape_controls, join_names
from launcher.runs.graphs import is_low_bad
from launcher.runs.run import command_of
from launcher.runs.samples import steps_per_second
from launcher.runs.view import RunView

COMPARISON_HEADERS = ("", "first", "second", "change")
_MAX_METRICS = 50
_MAX_HOSTS = 20
_CPU, _MEMORY = "CPU time of all tasks", "peak memory of "
_TIMES = ("took", _CPU)
_Values = Mapping[str, str] | Mapping[str, float]


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
    rows = [row for row in _rows(_given(first), _given(second)) if row.values[0] != row.values[1]]
    rows += _rows({"verdict": first.headline}, {"verdict": second.headline})
    counts = ("tasks", "restarts")  # They say something only if they differ.
    measured = _rows(_measured(first), _measured(second))
    return [*rows, *(row for row in measured if row.name not in counts or row.values[0] != row.values[1])]


def _rows(first: _Values, second: _Values) -> list[ComparedRow]:
    """Return a row for each name in the values of one run or of both."""
    rows = []
    for name in dict.fromkeys((*first, *second)):
        pair = (first.get(name), second.get(name))
        rows.append(ComparedRow(name, pair, (_text(name, pair[0]), _text(name, pair[1]))))
    return rows


def _text(name: str, value: str | float | None) -> str:
    """Return a value for people, with enough digits to compare it."""
    if value is None or isinstance(value, str):
        return value or "-"
    if name.startswith(_MEMORY):
        return byte_size(value)
    if name in _TIMES:
        return duration(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 or value == int(value) else f"{value:.4g}"


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


def _measured(view: RunView) -> dict[str, float]:
    """Return the numbers of a run by name: times, metrics, speed and memory.

    The last value of a metric is the median of all tasks, and the best one is that of any.
    """
    report = view.report
    found = {"took": view.seconds, "tasks": float(len(report.tasks)), "restarts": float(report.restarts)}
    by_name: dict[str, list[Sequence[float]]] = {}
    for samples in view.samples.values():
        names = dict.fromkeys(name for sample in samples for name in sample.metrics)
        for name in [*names][:_MAX_METRICS]:
            of_task = [sample.metrics[name] for sample in samples if name in sample.metrics]
            by_name.setdefault(name, []).append(of_task)
    for name, tasks in by_name.items():
        best = max if is_low_bad(name) else min
        found[f"{name}, last"] = median(values[-1] for values in tasks)
        found[f"{name}, best"] = best(value for values in tasks for value in values)
    if speeds := [speed for samples in view.samples.values() if (speed := steps_per_second(samples, inf))]:
        found["steps/s"] = median(speeds)
    for task in report.tasks:
        name = _MEMORY + escape_controls(task.task.role)
        sizes = [sample.memory for sample in view.samples.get(task.task, ())]
        if known := [float(size) for size in (*sizes, task.peak_rss) if size is not None]:
            found[name] = max(found.get(name, 0.0), *known)
    times = [task.cpu_s for task in report.tasks if task.cpu_s is not None]
    return {**found, _CPU: sum(times)} if times else found

"""Compares two runs for ``launch report A B``: options that differ, how they ended, times and metrics.

What is equal in both and says nothing about the difference is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from statistics import median

from launcher.common.record import Record
from launcher.common.text import byte_size, duration, escape_controls, join_names
from launcher.runs.graphs import is_low_bad
from launcher.runs.run import command_of, versions_of
from launcher.runs.samples import steps_per_second
from launcher.runs.view import RunView

COMPARISON_HEADERS = ("", "first", "second", "change")
#: A program may print any number of metrics, and a cluster may have thousands of hosts.
_MAX_METRICS = 50
_MAX_HOSTS = 20


class Compared(Record):
    """A value of one run, such as an option or a metric, that is compared with that of another run."""

    #: The text or the number. None if the run has none.
    value: str | float | None = None
    #: The same for people.
    text: str = "-"

    def change_to(self, other: Compared) -> str:
        """Return by how much another number differs from this one, as in ``+12.0 %``.

        Returns:
            The text. Empty if the values are equal or no numbers, or if this one is not above 0.
        """
        before, after = self.value, other.value
        if not isinstance(before, float) or not isinstance(after, float) or before <= 0 or before == after:
            return ""
        return f"{100 * (after / before - 1):+,.1f} %"


def compared(first: RunView, second: RunView) -> dict[str, tuple[Compared, Compared]]:
    """Return by name what two runs are compared in, the options that differ first."""
    given = _pairs(_given(first), _given(second))
    differing = {name: pair for name, pair in given.items() if pair[0] != pair[1]}
    return {**differing, **_pairs(_measured(first), _measured(second))}


def _pairs(
    first: Mapping[str, Compared], second: Mapping[str, Compared]
) -> dict[str, tuple[Compared, Compared]]:
    """Return both values for each name that one run or both have."""
    unknown = Compared()
    return {name: (first.get(name, unknown), second.get(name, unknown)) for name in {**first, **second}}


def _given(view: RunView) -> dict[str, Compared]:
    """Return what the user has given for a run: options, the program and its arguments, versions, hosts."""
    origin, plan = view.run.origin, view.run.plan()
    given = _options(origin.options or command_of(plan)[1:])
    given.pop("--name", None)
    if origin.program:
        given["program"] = origin.program[0]
        given |= {f"program's {name}": value for name, value in _options(origin.program[1:]).items()}
    given |= {f"version of {name}": version for name, version in versions_of(plan).items()}
    hosts = dict.fromkeys(task.host for task in view.report.tasks)
    given |= {"folder": origin.folder, "hosts": join_names([*hosts], _MAX_HOSTS)}
    texts = {escape_controls(name): escape_controls(text) for name, text in given.items() if text}
    return {name: Compared(text, text) for name, text in texts.items()}


def _options(words: Iterable[str]) -> dict[str, str]:
    """Return the values of the options in words of a command line, by name. Other words are ``arguments``."""
    values: dict[str, list[str]] = defaultdict(list)
    name = "arguments"
    for word in words:
        # A number below zero is no name of an option, and neither is a dash alone.
        if re.match("--?[A-Za-z]", word):
            name, _, word = word.partition("=")
        values[name] += [word] if word else []
        if word:  # Later words without a dash belong to no option.
            name = "arguments"
    return {name: " ".join(words) or "given" for name, words in values.items()}


def _measured(view: RunView) -> dict[str, Compared]:
    """Return how a run ended, and its numbers by name: times, metrics, speed and memory.

    A metric has two numbers: the median of the last values of all tasks, and the best value of any task.
    """
    report, series = view.report, view.samples
    found = {
        "verdict": Compared(view.headline, view.headline),
        "took": Compared(view.seconds, duration(view.seconds)),
        "tasks": _number(len(report.tasks)),
        "restarts": _number(report.restarts),
    }
    values: dict[str, list[float]] = defaultdict(list)
    last: dict[str, dict[str, float]] = defaultdict(dict)
    for task_name, samples in series.items():
        for sample in samples:
            for name, value in sample.metrics.items():
                values[name].append(value)
                last[name][task_name] = value
    for name in [*values][:_MAX_METRICS]:
        found[f"{name}, last"] = _number(median(last[name].values()))
        found[f"{name}, best"] = _number((max if is_low_bad(name) else min)(values[name]))
    if speeds := [speed for samples in series.values() if (speed := steps_per_second(samples, inf))]:
        found["steps/s"] = _number(median(speeds))
    sizes: dict[str, list[int]] = defaultdict(list)
    for task in report.tasks:
        used = (task.peak_rss, *(sample.memory for sample in series.get(task.task, ())))
        sizes[escape_controls(task.task.role)] += [size for size in used if size]
    for role, known in sizes.items():
        if known:
            found[f"peak memory of {role}"] = Compared(float(max(known)), byte_size(max(known)))
    if times := [task.cpu_s for task in report.tasks if task.cpu_s is not None]:
        found["CPU time of all tasks"] = Compared(sum(times), duration(sum(times)))
    return found


def _number(value: float) -> Compared:
    """Return a number with enough digits to compare it."""
    is_whole = abs(value) >= 10_000 or value == int(value)
    return Compared(float(value), f"{value:,.0f}" if is_whole else f"{value:.4g}")

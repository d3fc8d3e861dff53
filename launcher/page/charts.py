"""Draws graphs and the time line of a run as shapes for the template of ``launch report --html``.

All places are in percent or in thousandths of the drawing, so that it fits any width and its texts keep their
size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from launcher.common.record import Record
from launcher.common.text import byte_size, duration
from launcher.runs.graphs import Graph
from launcher.runs.timeline import TimelineRow

#: The size of the drawing of a graph, in its own unit.
SIZE = 1000
_MAX_TICKS = 5
#: A gap between two values that is this much longer than the one before, and at least so many seconds long,
#: is left open: nobody measured meanwhile.
_GAP_FACTOR, _MIN_GAP_SECONDS = 5.0, 10.0
#: Steps between ticks of a time axis, in seconds.
_TIME_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
#: Colours of lines, by classes of the template. Further lines are dashed.
_COLOURS = 8


class Tick(Record):
    """A place on an axis."""

    #: In percent, from the left or from the bottom.
    at: float
    text: str


class Line(Record):
    """The line of one task, or of many."""

    name: str
    #: Classes of the template.
    classes: str
    #: The path of SVG.
    path: str
    #: Its last value.
    last: str


class Chart(Record):
    """A graph as shapes."""

    title: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    #: What matters comes first.
    lines: Sequence[Line]


class Bar(Record):
    """An attempt in the time line: where it begins and how long it is, in percent, its state and its text."""

    left: float
    width: float
    state: str
    text: str


def charts(graphs: Sequence[Graph], began_at: float, ended_at: float, marked: str = "") -> list[Chart]:
    """Return the shapes of graphs, in which a name always has the same colour.

    Args:
        graphs: The graphs.
        began_at: Where the time axis begins, in seconds since the epoch.
        ended_at: Where it ends.
        marked: The name of lines that stand out and come first. Empty for none.
    """
    names = dict.fromkeys(name for graph in graphs for name in graph.lines if name != marked)
    classes = {
        name: f"c{number % _COLOURS}{' dashed' if number >= _COLOURS else ''}"
        for number, name in enumerate(names)
    }
    return [_chart(graph, began_at, ended_at, {marked: "bad", **classes}) for graph in graphs]


def _chart(graph: Graph, began_at: float, ended_at: float, classes: Mapping[str, str]) -> Chart:
    """Return the shapes of a graph, whose lines come in the order of the names with their classes."""
    values = [value for line in graph.lines.values() for value in line if value is not None]
    low, high = min(values), max(values)
    # Only a metric has an axis that does not begin at zero.
    low = low if low < 0 or not graph.unit else 0.0
    size = max(abs(low), abs(high))
    # Values that differ by less than numbers can show, or than can be divided, are one value.
    span = high - low if high - low > 1e-9 * size else size
    step = _step(span if span > 1e-290 else 1.0)
    low, high = math.floor(low / step) * step, (math.floor(high / step) + 1) * step
    seconds = max(1e-3, ended_at - began_at)

    def place(at: float, value: float) -> tuple[int, int]:
        """Return where a value is drawn."""
        x, y = (at - began_at) / seconds, (high - value) / (high - low)
        return round(min(max(x, 0.0), 1.0) * SIZE), round(y * SIZE)

    lines = []
    for name in [name for name in classes if name in graph.lines]:
        points = [
            (at, value) for at, value in zip(graph.at, graph.lines[name], strict=True) if value is not None
        ]
        path = "".join(_path([(at, *place(at, value)) for at, value in points]))
        lines.append(Line(name, classes[name], path, shown(points[-1][1], graph.unit)))
    count = round((high - low) / step)
    y_ticks = [Tick(100 * n / count, shown(low + n * step, graph.unit)) for n in range(count + 1)]
    return Chart(graph.title, time_ticks(seconds), y_ticks, lines)


def _path(points: Iterable[tuple[float, int, int]]) -> Iterable[str]:
    """Yield the parts of a path through points, each with its moment. A long gap is left open."""
    before, gap, place = None, math.inf, None
    for at, x, y in points:
        if before is None or at - before > max(_MIN_GAP_SECONDS, _GAP_FACTOR * gap):
            yield f"M{x} {y}h0"  # A point alone is a dot.
        elif (x, y) != place:
            yield f"L{x} {y}"
        before, gap, place = at, math.inf if before is None else at - before, (x, y)


def time_ticks(seconds: float) -> list[Tick]:
    """Return the ticks of an axis of so many seconds."""
    step = next((step for step in _TIME_STEPS if seconds / step <= _MAX_TICKS), None)
    step = step or math.ceil(seconds / _MAX_TICKS / _TIME_STEPS[-1]) * _TIME_STEPS[-1]
    # The text of one close to the end would not fit.
    return [Tick(100 * at / seconds, _span(at)) for at in range(0, int(0.97 * seconds) + 1, step)]


def _span(seconds: int) -> str:
    """Return a whole number of seconds without zeros at the end: ``80s``, ``20m``, ``1h20m``, ``3d``."""
    text = f"{seconds}s" if seconds < 60 else duration(seconds)
    for zeros in ("00s", "00m", "00h"):
        text = text.removesuffix(zeros)
    return text


def _step(span: float) -> float:
    """Return a round distance between ticks: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(span / _MAX_TICKS))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if span / (factor * power) < _MAX_TICKS)


def shown(value: float | None, unit: str = "") -> str:
    """Return a value for people. Empty if it is None."""
    if value is None:
        return ""
    if unit == "bytes":
        return byte_size(value)
    suffix = {"%": " %", "1/s": "/s"}.get(unit, "")
    return f"{value:,.0f}{suffix}" if abs(value) >= 1000 else f"{value:.3g}{suffix}"


def bars(row: TimelineRow, began_at: float, ended_at: float) -> list[Bar]:
    """Return the bars of a row of the time line. One that goes on reaches the end."""
    seconds = max(1e-3, ended_at - began_at)

    def percent(at: float) -> float:
        """Return where a moment is."""
        return round(min(max(100 * (at - began_at) / seconds, 0.0), 100.0), 2)

    made = []
    for span in row.spans:
        left, right = percent(span.started_at), percent(ended_at if span.ended_at is None else span.ended_at)
        took = duration((ended_at if span.ended_at is None else span.ended_at) - span.started_at)
        made.append(Bar(left, max(0.0, right - left), span.state, f"{span.text}, {took}"))
    return made

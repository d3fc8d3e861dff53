"""Draws the graphs of a run as shapes for the template of ``launch report --html``.

All places are in percent of the drawing, so that it fits any width and its texts keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from launcher.common.record import Record
from launcher.common.text import duration
from launcher.page.content import shown
from launcher.runs.graphs import Graph

#: Colours of lines, by classes of the template. Further lines are dashed.
_COLOURS = 8
#: A line has a gap where its task was not measured for longer than this, in seconds and in moments.
_MIN_GAP_SECONDS, _GAP_MOMENTS = 10.0, 4


class TimeAxis(Record):
    """The time from left to right in all drawings of a run, in seconds since the epoch."""

    began_at: float
    ended_at: float

    def percent(self, at: float) -> float:
        """Return where a moment is, from the left. What is outside is at the edge."""
        # A run may have no length yet, and nothing can be divided by 0.
        share = (at - self.began_at) / max(1e-3, self.ended_at - self.began_at)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    @property
    def ticks(self) -> Mapping[int, str]:
        """The text of each tick by its place in percent. A tick at the end would not fit."""
        seconds = self.ended_at - self.began_at
        return {percent: duration(seconds * percent / 100) for percent in (0, 25, 50, 75)}


class Line(Record):
    """A line of a drawing. It stands for one task, or for all tasks of a role that has many."""

    name: str
    #: Classes of the template.
    classes: str
    #: The path of SVG.
    path: str
    #: Its last value.
    last: str


class Chart(Record):
    """A graph as the shapes of a drawing: the ticks of its height, and its lines."""

    title: str
    #: The text of each tick by its place from the bottom, in percent.
    ticks: Mapping[int, str]
    #: What matters comes first.
    lines: Sequence[Line]


def charts(graphs: Sequence[Graph], axis: TimeAxis, marked: str = "") -> list[Chart]:
    """Return the shapes of graphs, in which a name always has the same colour.

    Args:
        graphs: The graphs.
        axis: The time axis.
        marked: The name of lines that stand out and come first. Empty for none.
    """
    names = dict.fromkeys(name for graph in graphs for name in graph.lines if name != marked)
    classes = {marked: "bad"}
    for number, name in enumerate(names):
        classes[name] = f"c{number % _COLOURS}{' dashed' if number >= _COLOURS else ''}"
    return [_chart(graph, axis, classes) for graph in graphs]


def _chart(graph: Graph, axis: TimeAxis, classes: Mapping[str, str]) -> Chart:
    """Return the shapes of a graph.

    Args:
        graph: The graph. Each of its lines has at least one value.
        axis: The time axis.
        classes: The CSS class of each name, in the order in which the lines are drawn.
    """
    known = [value for values in graph.lines.values() for value in values if value is not None]
    # Only the axis of a metric, which has no unit, need not begin at zero.
    low, high = min([*known, 0.0] if graph.unit else known), max(known)
    if high == low:
        high += abs(high) or 1.0
    span = high - low
    # Where the task was not measured for longer than this, its line has a gap.
    longest = max(_MIN_GAP_SECONDS, _GAP_MOMENTS * (graph.at[-1] - graph.at[0]) / len(graph.at))
    lines = []
    for name in (name for name in classes if name in graph.lines):
        points = [
            (at, value) for at, value in zip(graph.at, graph.lines[name], strict=True) if value is not None
        ]
        path, before = "", -math.inf
        for at, value in points:
            place = f"{axis.percent(at)} {round(100 * (high - value) / span, 2)}"
            # A line begins with a dot, so that even a single point is seen.
            path += f"M{place}h0" if at - before > longest else f"L{place}"
            before = at
        lines.append(Line(name, classes[name], path, shown(points[-1][1], graph.unit)))
    ticks = {percent: shown(low + span * percent / 100, graph.unit) for percent in (0, 50, 100)}
    title = f"{graph.title} ({graph.unit})" if graph.unit in ("%", "cores") else graph.title
    return Chart(title, ticks, lines)

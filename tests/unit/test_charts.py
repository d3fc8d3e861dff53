"""The shapes of graphs and of the time line in ``launch report --html``."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.page.charts import SIZE, bars, charts, time_ticks
from launcher.runs.graphs import Graph
from launcher.runs.timeline import Span, TimelineRow


def drawn(values: list[float | None], unit: str = "", at: list[float] | None = None) -> tuple[str, list[str]]:
    """The path of one line in 100 seconds, and the texts of its axis."""
    moments = at or [100.0 * number / (len(values) - 1) for number in range(len(values))]
    (made,) = charts([Graph("x", unit, moments, {"worker/0": values})], 0.0, 100.0)
    return made.lines[0].path, [tick.text for tick in made.y_ticks]


@pytest.mark.parametrize(
    ("values", "unit", "at", "path", "axis"),
    [
        ([0.0, 1.0], "", None, "M0 1000h0L1000 333", ["0", "0.5", "1", "1.5"]),
        ([10.0, 11.0], "1/s", None, "M0 333h0L1000 267", ["0/s", "5/s", "10/s", "15/s"]),
        ([3.0, None, 3.0], "", None, "M0 1000h0L1000 1000", ["3", "4"]),  # In between another host was asked.
        (
            [1e6] * 3,
            "bytes",
            [0.0, 1.0, 90.0],
            "M0 333h0L10 333M900 333h0",
            ["0 B", "500 kB", "1 MB", "1.5 MB"],
        ),
        ([1.0, 2.0], "", [50.0, 150.0], "M500 1000h0L1000 333", ["1", "1.5", "2", "2.5"]),  # It is too late.
    ],
)
def test_a_graph(values: list[float | None], unit: str, at: list[float] | None, path: str, axis: list[str]):
    found, texts = drawn(values, unit, at)
    assert (found, texts) == (path, axis)


ANY = st.floats(-1e300, 1e300)


@given(
    st.lists(st.tuples(ANY, st.none() | ANY), min_size=1, max_size=8),
    ANY,
    ANY,
    st.sampled_from(["", "bytes", "1/s"]),
)
def test_any_values_can_be_drawn(
    points: list[tuple[float, float | None]], began: float, took: float, unit: str
):
    values = [value for _, value in points]
    if all(value is None for value in values):
        values[0] = 0.0
    (made,) = charts(
        [Graph("x", unit, sorted(at for at, _ in points), {"a": values})], began, began + abs(took)
    )
    places = [
        int(number) for number in re.findall(r"[ML](-?\d+) (-?\d+)", made.lines[0].path) for number in number
    ]
    assert places and all(0 <= place <= SIZE for place in places)
    assert 2 <= len(made.y_ticks) <= 12 and len(made.x_ticks) <= 7


def test_what_failed_comes_first_and_a_task_keeps_its_colour():
    names = [f"worker/{number}" for number in range(20)]
    all_tasks = Graph("x", "", [0.0], {name: [1.0] for name in names})
    made = charts(
        [all_tasks, Graph("y", "", [0.0], {name: [1.0] for name in names[:3:-1]})], 0.0, 1.0, "worker/9"
    )
    first, second = ({line.name: line.classes for line in each.lines} for each in made)
    assert [*first][0] == [*second][0] == "worker/9" and first["worker/9"] == "bad"
    assert second.items() <= first.items() and len({*first.values()}) >= 16


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (0.3, ["0s"]),
        (6.0, ["0s", "2s", "4s"]),
        (100.0, ["0s", "20s", "40s", "1m", "1m20s"]),
        (5000.0, ["0s", "20m", "40m", "1h", "1h20m"]),
        (10 * 86400.0, ["0s", "2d", "4d", "6d", "8d"]),
    ],
)
def test_the_time_axis(seconds: float, texts: list[str]):
    assert [tick.text for tick in time_ticks(seconds)] == texts


def test_a_row_of_the_time_line():
    row = TimelineRow(
        "worker/0", [Span(10.0, 20.0, "failed", "first"), Span(60.0, None, "running", "second")]
    )
    first, second = bars(row, 0.0, 100.0)
    assert (first.left, first.width, first.state, first.text) == (10.0, 10.0, "failed", "first, 10s")
    assert (second.left, second.width, second.text) == (60.0, 40.0, "second, 40s")

"""The shapes of graphs in ``launch report --html``."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.page.charts import TimeAxis, charts
from launcher.runs.graphs import Graph


def drawn(values: list[float | None], unit: str = "", at: list[float] | None = None) -> tuple[str, list[str]]:
    """The path of one line in 100 seconds, and the texts of its axis."""
    moments = at or [100.0 * number / (len(values) - 1) for number in range(len(values))]
    (made,) = charts([Graph("x", unit, moments, {"worker/0": values})], TimeAxis(0.0, 100.0))
    return made.lines[0].path, [*made.ticks.values()]


@pytest.mark.parametrize(
    ("values", "unit", "at", "path", "axis"),
    [
        ([0.5, 1.0], "", None, "M0.0 100.0h0L100.0 0.0", ["0.5", "0.75", "1"]),
        ([10.0, 20.0], "1/s", None, "M0.0 50.0h0L100.0 0.0", ["0", "10", "20"]),
        ([3.0, None, 3.0], "", None, "M0.0 100.0h0L100.0 100.0", ["3", "4.5", "6"]),  # A host in between.
        ([1e6] * 3, "bytes", [0.0, 1.0, 99.0], "M0.0 0.0h0L1.0 0.0L99.0 0.0", ["0 B", "500 kB", "1 MB"]),
        # Nobody measured for long.
        ([2.0] * 13, "%", [*map(float, range(12)), 99.0], None, ["0", "1", "2"]),
        ([1.0, 2.0], "", [50.0, 150.0], "M50.0 100.0h0L100.0 0.0", ["1", "1.5", "2"]),  # It is too late.
    ],
)
def test_a_graph(
    values: list[float | None], unit: str, at: list[float] | None, path: str | None, axis: list[str]
):
    found, texts = drawn(values, unit, at)
    assert texts == axis
    assert found == path if path else found.count("M") == 2 and found.endswith("M99.0 0.0h0")


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
    axis = TimeAxis(began, began + abs(took))
    (made,) = charts([Graph("x", unit, sorted(at for at, _ in points), {"a": values})], axis)
    places = [float(number) for number in re.findall(r"-?\d[\d.]*", made.lines[0].path.replace("h0", ""))]
    assert places and all(0 <= place <= 100 for place in places)
    assert len(made.ticks) == 3 and len(axis.ticks) == 4


def test_what_failed_comes_first_and_a_task_keeps_its_colour():
    names = [f"worker/{number}" for number in range(20)]
    some, others = (
        Graph(title, "", [0.0], {name: [1.0] for name in tasks})
        for title, tasks in (("x", names), ("y", names[:3:-1]))
    )
    made = charts([some, others], TimeAxis(0.0, 1.0), "worker/9")
    first, second = ({line.name: line.classes for line in each.lines} for each in made)
    assert [*first][0] == [*second][0] == "worker/9" and first["worker/9"] == "bad"
    assert second.items() <= first.items() and len({*first.values()}) >= 16


def test_the_time_axis():
    axis = TimeAxis(1000.0, 1080.0)
    assert axis.ticks == {0: "0.0s", 25: "20s", 50: "40s", 75: "1m00s"}
    assert [axis.percent(at) for at in (0.0, 1000.0, 1020.0, 2000.0)] == [0, 0, 25, 100]

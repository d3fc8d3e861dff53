"""Graphs and the time line of a run: what is drawn of many moments and many tasks."""

from __future__ import annotations

import pytest

from launcher.common.cluster import TaskId
from launcher.common.report import Attempt, ExitStatus, Report, TaskReport, TaskState
from launcher.runs.graphs import Graph, graphs
from launcher.runs.samples import Sample
from launcher.runs.timeline import timeline


def samples(moments: int, speed: float = 1.0, loss: float = 0.0, **fields: float) -> list[Sample]:
    """Samples every two seconds of a task that does so many steps in a second."""
    return [
        Sample(100.0 + 2 * moment, 1, step=2 * moment * speed, metrics={"loss": loss}, **fields)  # type: ignore[arg-type]
        for moment in range(moments)
    ]


def by_title(drawn: list[Graph]) -> dict[str, Graph]:
    return {graph.title: graph for graph in drawn}


def test_each_task_has_a_line_and_what_nobody_measured_has_no_graph():
    drawn = by_title(graphs({"worker/0": samples(5, memory=7), "worker/1": samples(5, speed=3)}))
    assert set(drawn) == {"Steps per second", "loss", "Memory"}
    speeds = drawn["Steps per second"]
    assert {name: line[-1] for name, line in speeds.lines.items()} == {"worker/0": 1, "worker/1": 3}
    assert drawn["Memory"].lines == {"worker/0": [7] * 5}
    assert graphs({}) == []


def test_later_moments_are_drawn_as_at_first():
    series = {"worker/0": samples(50, speed=5)}
    whole = by_title(graphs(series))["Steps per second"]
    rest = by_title(graphs(series, since=whole.at[-3]))["Steps per second"]
    assert (rest.at, rest.lines["worker/0"]) == (whole.at[-2:], whole.lines["worker/0"][-2:])


def test_many_moments_are_thinned_evenly_and_the_last_one_stays():
    drawn = by_title(graphs({"worker/0": samples(5000)}))["loss"]
    assert len(drawn.at) <= 600
    assert drawn.at[-1] == 100 + 2 * 4999
    assert len({later - earlier for earlier, later in zip(drawn.at, drawn.at[1:], strict=False)}) == 1


@pytest.mark.parametrize(
    ("title", "word", "worst"),
    [("Steps per second", "lowest", 1), ("loss", "highest", 1000), ("CPU", "lowest", 1)],
)
def test_many_tasks_are_folded_into_the_worst_and_the_median_of_a_role(title: str, word: str, worst: float):
    series = {f"worker/{task}": samples(5, speed=5, loss=2, cpu=3) for task in range(30)}
    series["worker/7"] = samples(5, speed=1, loss=1000, cpu=1)
    drawn = by_title(graphs({"ps/0": samples(5, speed=9), **series}))[title]
    assert [name for name in drawn.lines if name.startswith("worker")] == [
        f"worker, {word}",
        "worker, median",
    ]
    assert drawn.lines[f"worker, {word}"][-1] == worst
    assert drawn.lines["worker, median"][-1] in (5, 2, 3)


def task(name: str, state: TaskState = TaskState.RUNNING, *earlier: Attempt) -> TaskReport:
    ended_at = 9.0 if state.is_over else None
    fields = {"attempt": len(earlier) + 1, "started_at": 5.0, "ended_at": ended_at, "earlier": earlier}
    return TaskReport(TaskId(name), "node1", "", None, state, None, ExitStatus(), **fields)  # type: ignore[arg-type]


def test_a_time_line_has_each_attempt():
    killed = Attempt(1, "node1", TaskState.FAILED, None, ExitStatus(), "killed by SIGKILL", 7, 1.0, 3.0)
    (row,) = timeline(Report("run", 0, 0.0, 0.0, (task("worker/0", TaskState.RUNNING, killed),)))
    assert [(span.started_at, span.ended_at, span.state) for span in row.spans] == [
        (1.0, 3.0, "failed"), (5.0, None, "running"),
    ]  # fmt: skip
    assert "SIGKILL" in row.spans[0].text


def test_a_time_line_of_many_tasks_names_those_with_trouble():
    tasks = [task(f"worker/{index}") for index in range(1000)]
    tasks[517] = task("worker/517", TaskState.FAILED)
    named, others = timeline(Report("run", 0, 0.0, 0.0, tuple(tasks)))
    assert named.name == "worker/517"
    assert "999" in others.name
    assert [(span.started_at, span.ended_at) for span in others.spans] == [(5.0, None)]

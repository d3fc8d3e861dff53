"""How jobs end, when their tasks do: histories, and the exit code, the cause and each task's state."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from tests.histories.script import Case, cases, check, play, script

TERM_ABRT_KILL = ((15, 10.0), (6, 2.0), (9, 5.0))




@pytest.mark.promise("a job is done with its chief, or all workers; then ps and evaluator are stopped")
@pytest.mark.promise("a ps that dies is a failure")
@pytest.mark.parametrize("case", cases("ends.txt"))
def test_ends(case: Case, snapshot: SnapshotAssertion):
    check(case, snapshot)


def test_one_failure_stops_the_others_at_once_in_one_command_a_host():
    """The failure report tells the cause, and so the notice before it does not."""
    it = script("worker 5, ps 1, hosts 3, slots 2")
    replay = it.play("up; worker/3 exits 7")
    stops = [command for command in replay.steps[-1].commands if isinstance(command, events.StopTasks)]
    on: dict[str, tuple[str, ...]] = {}
    for task, host in it.host_of.items():
        on[host] = (*on.get(host, ()), *((task,) if task != "worker/3" else ()))
    assert {stop.host: stop.tasks for stop in stops} == on
    assert len(stops) == 3
    assert {stop.steps for stop in stops} == {TERM_ABRT_KILL}
    (notice,) = replay.notices
    assert all(word in notice for word in ("worker/3", "node3", "5 tasks")) and "exit code" not in notice
    assert replay.report.failure and replay.report.failure.text.endswith("exit code 7")


def test_a_later_failure_has_no_notice():
    replay = play("worker 3", "up; worker/0 exits 7; worker/1 exits 1")
    (notice,) = replay.notices
    assert "worker/0" in notice and "2 tasks" in notice


def test_continue_counts_the_tasks_that_are_left():
    replay = play("worker 3, continue", "up; worker/0 exits 7; worker/1 exits 1")
    assert [notice.rpartition("; ")[2] for notice in replay.notices] == ["2 tasks left", "1 task left"]
    assert not replay.all(events.StopTasks)


def test_the_report_of_a_task():
    replay = play("worker 1", "up; worker/0 exits 7 @ 5.0; worker/0 left 3; closed")
    (task,) = replay.report.tasks
    assert (task.host, task.address, task.port, task.pid) == ("node1", "node1:4000", 4000, 1000)
    assert (task.ended_at, task.peak_rss, task.cpu_s, task.leftovers) == (5.0, 1 << 20, 0.5, 3)
    assert task.detail == "exit code 7"
    assert "worker/0 left 3 processes" in replay.notices[-1]


def test_events_after_the_end_change_nothing():
    replay = play("worker 1", "up; worker/0 finishes 0; closed; Ctrl-C; lost node1")
    assert replay.exit_code == 0
    assert not replay.steps[-1].commands
    assert replay.report.failure is None

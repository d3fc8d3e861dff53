"""How jobs end, when their tasks do: histories, and the exit code, the cause and each task's state."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from tests.histories.script import Case, cases, check, play, script

TERM_ABRT_KILL = ((15, 10.0), (6, 2.0), (9, 5.0))


ENDS = """
# Done when all workers, or roles of the user's own, are done; a ps is then stopped.
worker 2, ps 1: up; worker/0,worker/1 finishes 0; ps/0 ends; closed
    -> 0 | succeeded, succeeded, stopped
reader 1, worker 1: up; worker/0,reader/0 finishes 0; closed
    -> 0 | succeeded, succeeded
worker 2, ps 1: up; worker/1 finishes 7; worker/0,ps/0 ends; closed
    -> 7 | stopped, failed, stopped
worker 1: up; worker/0 dies 9; worker/0 gone; closed
    -> 137 | failed: signal
worker 2, ps 1: up; ps/0 dies 11; ps/0 gone; worker/0,worker/1 ends; closed
    -> 139 | stopped, stopped, failed: signal
worker 1, evaluator 1: up; evaluator/0 finishes 3; worker/0 ends; closed
    -> 3 | stopped, failed
worker 1: ready node1; held node1; worker/0 cannot start 127; closed
    -> 127 | failed: not found
worker 2, hosts 2: ready node1; ready node2; held node2; held node1; worker/1 cannot start 126;
    worker/0 starts; worker/0 ends; closed
    -> 126 | stopped, failed: not runnable
worker 3, ps 1, continue: up; worker/1 finishes 7; worker/2 finishes 9; worker/0 finishes 0; ps/0 ends; closed
    -> 7 | succeeded, failed, failed, stopped
# the chief is done: workers are stopped
chief 1, worker 2, ps 1: up; worker/0,chief/0 finishes 0; worker/1,ps/0 ends; closed
    -> 0 | succeeded, succeeded, stopped, stopped
# --done-when: all workers beside the chief, one role, worker 0
chief 1, worker 2, ps 1, done-when workers: up; chief/0,worker/0,worker/1 finishes 0; ps/0 ends; closed
    -> 0 | succeeded, succeeded, succeeded, stopped
chief 1, worker 1, ps 1, done-when worker: up; worker/0 finishes 0; chief/0,ps/0 ends; closed
    -> 0 | stopped, succeeded, stopped
worker 3, done-when chief: up; worker/1,worker/0 finishes 0; worker/2 ends; closed
    -> 0 | succeeded, succeeded, stopped
worker 1, evaluator 1, done-when evaluator: up; worker/0,evaluator/0 finishes 0; closed
    -> 0 | succeeded, succeeded
chief 1, worker 1, done-when workers: up; chief/0 finishes 0; worker/0 finishes 3; closed
    -> 3 | succeeded, failed
# only ps: the job is over when they are
ps 1: up; ps/0 finishes 0; closed
    -> 0 | succeeded
# out of memory
worker 1: up; worker/0 out of memory; worker/0 gone; closed
    -> 137 | failed: out of memory
# a ps exits with 0 before the end: no failure, but a notice
worker 2, ps 1: up; ps/0,worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded, succeeded
# by itself between our command and our signal
worker 3: up; worker/1 finishes 7; worker/2 finishes 9; worker/0 ends; closed
    -> 7 | stopped, failed, failed
# the first by time is the cause, though reported second
worker 3, hosts 3: up; worker/1 exits 7 @ 9.0; worker/2 exits 9 @ 8.5; worker/1,worker/2 gone;
    worker/0 ends; closed
    -> 9 | stopped, failed, failed
# what we signalled is stopped, whatever its code
worker 4: up; worker/0 finishes 1; worker/1,worker/2,worker/3 gets 15; worker/1 exits 0;
    worker/2 exits 3; worker/3 dies 11; worker/1,worker/2,worker/3 gone; closed
    -> 1 | failed, stopped, stopped, stopped
# a ps that crashes after all was done
worker 1, ps 1: up; worker/0 exits 0 @ 5.0; ps/0 dies 6 @ 5.001; worker/0,ps/0 gone; closed
    -> 0 | succeeded, stopped
# a ps that had crashed before all was done
worker 1, ps 1, hosts 2: up; worker/0 exits 0 @ 5.0; ps/0 dies 6 @ 4.999; worker/0,ps/0 gone; closed
    -> 134 | succeeded, failed: signal
# done is when the last worker ended, not when that became known
worker 2, ps 1, hosts 3: up; worker/0 exits 0 @ 5.2; worker/1 exits 0 @ 5.0; ps/0 dies 6 @ 5.1;
    worker/0,worker/1,ps/0 gone; closed
    -> 134 | succeeded, succeeded, failed: signal
# the host could not start it
worker 1: ready node1; held node1; worker/0 cannot start 125; closed
    -> 125 | failed: launcher
# none could be started
worker 2: ready node1; held node1; worker/0 cannot start 127; worker/1 cannot start 127; closed
    -> 127 | failed: not found, failed: not found
# continue: the chief fails, and that is the end
chief 1, worker 1, continue: up; chief/0 finishes 7; worker/0 ends; closed
    -> 7 | failed, stopped
# continue: what crashes after the end has not failed
worker 1, ps 1, continue: up; worker/0 exits 7; ps/0 dies 6; worker/0,ps/0 gone; closed
    -> 7 | failed, stopped
# events of two hosts may cross: whichever end is known first, the exit code of the worker counts
chief 1, worker 1 drain 60, hosts 2: up; worker/0 exits 0 @ 5.2; chief/0 exits 0 @ 5.1;
    worker/0,chief/0 gone; closed
    -> 0 | succeeded, succeeded
chief 1, worker 1 drain 60, hosts 2: up; chief/0 exits 0 @ 5.1; worker/0 exits 3 @ 5.2;
    worker/0,chief/0 gone; closed
    -> 3 | succeeded, failed
# a failure while the job drains is the job's
worker 1, evaluator 1 drain 60, ps 1: up; worker/0 finishes 0; ps/0 ends; evaluator/0 finishes 3; closed
    -> 3 | succeeded, stopped, failed
chief 1, worker 1 drain 60, continue: up; chief/0 finishes 3; worker/0 finishes 0; closed
    -> 3 | failed, succeeded
# continue: a ps fails, the workers finish
worker 1, ps 1, continue: up; ps/0 finishes 2; worker/0 finishes 0; closed
    -> 2 | succeeded, failed
"""


@pytest.mark.promise("a job is done with its chief, or all workers; then ps and evaluator are stopped")
@pytest.mark.promise("a ps that dies is a failure")
@pytest.mark.parametrize("case", cases(ENDS))
def test_ends(case: Case, snapshot: SnapshotAssertion):
    check(case, snapshot)


def test_one_failure_stops_the_others_at_once_in_one_command_a_host():
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
    assert all(word in notice for word in ("worker/3", "node3", "exit code 7", "5 tasks"))


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

"""What the machine is made of: policy, ladders, blame, records, rosters."""

from __future__ import annotations

import pytest

from launcher.job import OnFailure, TaskId
from launcher.report import Failure, Reason, TaskState
from launcher.scheduler.placement import place
from launcher.supervision import policy, stopping
from launcher.supervision.blame import Blame
from launcher.supervision.hosts import Agents, AgentState
from launcher.supervision.policy import Verdict
from launcher.supervision.record import TRANSITIONS, InvalidTransition, Record
from launcher.supervision.roster import Roster
from tests.histories.script import hosts, job

W0, W1, PS = TaskId("worker/0"), TaskId("worker/1"), TaskId("ps/0")


# ---------------------------------------------------------------------- policy and ladders


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (["worker 2", "ps 1", "evaluator 1"], {"worker/0", "worker/1"}),
        (["chief 1", "worker 2", "ps 1"], {"chief/0"}),
        (["ps 2"], {"ps/0", "ps/1"}),
        (["ps 1", "evaluator 1"], {"ps/0", "evaluator/0"}),
        (["reader 1", "ps 1"], {"reader/0"}),
    ],
)
def test_deciders(counts: list[str], expected: set[str]):
    assert policy.deciders(place(job(*counts), hosts(1))) == expected


@pytest.mark.parametrize(
    ("on_failure", "failed", "undecided", "expected"),
    [
        (OnFailure.STOP, False, 1, Verdict.GO_ON),
        (OnFailure.STOP, False, 0, Verdict.DONE),
        (OnFailure.STOP, True, 1, Verdict.STOP),
        (OnFailure.STOP, True, 0, Verdict.STOP),
        (OnFailure.CONTINUE, True, 1, Verdict.GO_ON),
        (OnFailure.CONTINUE, True, 0, Verdict.DONE),
        (OnFailure.CONTINUE, False, 0, Verdict.DONE),
    ],
)
def test_verdict(on_failure: OnFailure, failed: bool, undecided: int, expected: Verdict):
    assert policy.verdict(on_failure, failed, undecided) is expected


@pytest.mark.parametrize(
    ("grace", "ladder", "longest"),
    [
        (10.0, ((15, 10.0), (6, 2.0), (9, 5.0)), 27.0),
        (0.5, ((15, 0.5), (6, 0.5), (9, 5.0)), 16.0),
        (0.0, ((9, 5.0),), 15.0),
        (-1.0, ((9, 5.0),), 15.0),
    ],
)
def test_ladders(grace: float, ladder: tuple[tuple[int, float], ...], longest: float):
    assert stopping.orderly(grace) == ladder
    assert stopping.longest(ladder) == longest


# ---------------------------------------------------------------------- blame


def failure(at: float, task: TaskId | None = None) -> Failure:
    return Failure(Reason.EXIT if task else Reason.INTERRUPTED, task, None, at, "")


def test_blame_keeps_the_first_by_time():
    blame = Blame()
    assert blame.fail(failure(5.0, W0), 7)
    assert not blame.fail(failure(6.0, W1), 8)
    assert not blame.fail(failure(5.0, W1), 8)
    assert not blame.fail(failure(1.0), 130)  # noticed now, whatever a clock says
    assert blame.fail(failure(4.0, W1), 9)
    assert (blame.exit_code, blame.failure) == (9, failure(4.0, W1))


def test_a_task_that_had_ended_before_beats_what_was_noticed():
    blame = Blame()
    blame.fail(failure(5.0), 130)
    assert not blame.fail(failure(5.1, W0), 7)
    assert blame.fail(failure(4.9, W0), 7)


def test_too_late_is_after_the_last_decision():
    blame = Blame()
    blame.decided(5.2)
    blame.decided(5.0)
    assert not blame.too_late(9.0)
    blame.done()
    assert [blame.too_late(at) for at in (5.1, 5.2, 5.3)] == [False, True, True]


# ---------------------------------------------------------------------- records


def record() -> Record:
    return Record(place(job("worker 1"), hosts(1)).tasks[0])


@pytest.mark.parametrize("before", TaskState)
@pytest.mark.parametrize("then", TaskState)
def test_a_record_moves_by_the_table_only(before: TaskState, then: TaskState):
    task = record()
    task.state = before
    if (before, then) in TRANSITIONS:
        task.move(then, "a test")
        assert task.state is then
    else:
        with pytest.raises(InvalidTransition):
            task.move(then, "a test")


def test_nothing_follows_what_is_over_and_all_else_can_be_lost():
    for before, _ in TRANSITIONS:
        assert not before.over
    for state in TaskState:
        assert state.over or (state, TaskState.LOST) in TRANSITIONS


def test_an_invalid_move_tells_the_whole_story():
    task = record()
    task.move(TaskState.STARTING, "the plan")
    task.move(TaskState.RUNNING, "its start")
    with pytest.raises(InvalidTransition) as caught:
        task.move(TaskState.SUCCEEDED, "nothing")
    assert str(caught.value) == (
        "worker/0: pending -> starting: the plan; starting -> running: its start;"
        " running -> succeeded: nothing"
    )
    assert task.state is TaskState.RUNNING


# ---------------------------------------------------------------------- rosters and agents


def test_a_roster_knows_who_is_where_and_who_is_awaited():
    roster = Roster(place(job("worker 2", "ps 1"), hosts(2)))
    where = {host: roster.on(host) for host in ("node1", "node2")}
    assert {task: host for host, tasks in where.items() for task in tasks} == {
        task: record.host for task, record in roster.records.items()
    }
    assert roster.hosts_of({W1}) == (roster.records[W1].host,)
    assert roster.named({PS, W1}) == ("worker/1", "ps/0")
    assert roster.ended(W0) and not roster.ended(W0) and not roster.ended(PS)
    roster.over(W1)
    assert roster.undecided == set() and roster.open == {W0, PS}


def test_stops_leave_out_what_is_over_and_what_has_ended():
    roster = Roster(place(job("worker 3"), hosts(1)))
    for task in (W0, W1):
        for state in (TaskState.STARTING, TaskState.RUNNING, TaskState.ENDED):
            roster.records[task].move(state, "a test")
    roster.records[W1].move(TaskState.SUCCEEDED, "a test")
    roster.over(W1)
    ladder = stopping.at_once()
    assert [stop.tasks for stop in roster.stops(ladder, ended=False)] == [("worker/2",)]
    assert [stop.tasks for stop in roster.stops(ladder, ended=True)] == [("worker/0", "worker/2")]
    assert roster.alive() == 1


def test_nothing_brings_a_lost_agent_back():
    agents = Agents(["a", "b"])
    agents.set("a", AgentState.LOST)
    agents.set("a", AgentState.READY)
    assert not agents.hear("a") and agents.hear("b")
    assert agents.open() == agents.not_holding() == ("b",)
    agents.set("b", AgentState.HOLDING)
    assert not agents.all_hold()  # what is lost holds nothing
    assert agents.not_holding() == ()

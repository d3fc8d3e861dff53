"""A host is lost, and its tasks start again on others: when, where, and what ends the job meanwhile."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.job import Host
from launcher.supervisor import commands
from tests.histories.script import Case, Script, after, cases, check, hosts, play, script, states

# The tasks of node1 end meanwhile; those of node2 have ended for certain when the time is up.
LOST = "up; lost node2 @ 9; worker/0 ends; time up restart 1"





@pytest.mark.promise("tasks of a lost host start again on others, never twice at a time")
@pytest.mark.parametrize("case", cases("moves.txt"))
def test_moves(case: Case, snapshot: SnapshotAssertion):
    check(case, snapshot)


MOVING, THREE = "worker 2, hosts 2, spares s1, restarts 1", "worker 3, hosts 3, restarts 1"


def test_the_restart_waits_for_the_end_of_the_tasks_on_the_lost_host():
    replay = play(MOVING, "up; lost node2; worker/0 ends")
    assert replay.timers["restart 1"] == 80.0
    assert [start.attempt for start in replay.all(events.StartTask)] == [1, 1]
    replay = play(MOVING, f"{LOST}; held node1; held s1")
    later = [(start.host, start.task, start.attempt) for start in replay.all(events.StartTask)[2:]]
    assert later == [("node1", "worker/0", 2), ("s1", "worker/1", 2)]
    plans = replay.all(commands.MakePlan)
    assert [plan.ports for plan in plans] == [{"worker/0": 4000, "worker/1": 4001}] * 2


def test_the_wait_begins_anew_when_another_host_is_lost():
    replay = play(THREE, "up; lost node2; worker/0 ends; time up restart 1; lost node3")
    assert replay.timers["restart 1"] == 80.0
    assert "ready" not in replay.timers
    assert len(replay.all(events.StartTask)) == 3
    told = [move.restarting for move in replay.moves]
    assert all(told[told.index(True) :])


def test_20_hosts_that_are_lost_cost_few_commands():
    lost = "; ".join(f"lost node{number}" for number in range(21, 41))
    replay = play("worker 160, hosts 40, restarts 1", f"up; {lost}; time up place")
    assert len(replay.report.tasks) == 160
    first, *others = replay.steps[-21:-1]
    assert len(first.commands) < 50
    assert all(len(step.commands) < 10 for step in others)
    told = [event for step in others for event in step.commands if isinstance(event, events.Restarting)]
    assert {len(event.attempts) for event in told} == {4}
    assert replay.report.exit_code == 0


def test_a_sidecar_whose_container_can_not_be_made_again_delays_nothing():
    own = Host("board-0", roles=("board",))
    it = Script(script("worker 1, board 1 sidecar, restarts 1").job, (*hosts(1), own), tasks_end=0.0)
    held = it.play("up; lost node1; time up restart 1; ready node1; held node1; lost board-0")
    assert len(held.all(events.StartTask)) == 3, "not even while ports are held"
    lost = "up; lost board-0; lost node1; time up restart 1; ready node1"
    replay = it.play(f"{lost}; lost board-0; held node1; worker/0 starts; worker/0 finishes 0; closed")
    assert [start.host for start in replay.all(commands.StartAgent)] == ["node1", "board-0"]
    assert (replay.exit_code, list(states(replay).values())) == (0, ["succeeded: exit", "lost: host lost"])


def test_no_agent_starts_on_a_lost_host_before_its_tasks_have_ended_and_moved():
    replay = play(MOVING, LOST)
    assert replay.timers["return of node2"] == 80.0
    replay = play(MOVING, f"{LOST}; time up return of node2")
    assert (replay.timers["return of node2"], replay.all(commands.StartAgent)) == (30.0, ())
    last = f"{LOST}; held node1; held s1; time up return of node2"
    assert play(MOVING, last).all(commands.StartAgent) == (), "no restart is left"
    replay = play("worker 2, hosts 2, spares s1, restarts 2", last)
    assert replay.all(commands.StartAgent) == (commands.StartAgent("node2"),)


def test_an_attempt_is_reported_with_its_host():
    report = play(MOVING, f"{LOST}; held node1; held s1; worker/1 starts").report
    (earlier,) = report.tasks[1].earlier
    assert (earlier.host, earlier.state.value, earlier.ended_at) == ("node2", "lost", 9.0)
    assert (report.tasks[1].host, report.tasks[1].address) == ("s1", "s1:4001")
    waiting = play(MOVING, LOST).report.tasks[1]
    assert (waiting.host, waiting.attempt, waiting.earlier) == ("node2", 1, ())


def test_the_hosts_try_the_network_before_the_tasks_start_again():
    first = "ready node1; ready node2; ready s1; held node1; held node2; reaches node1; reaches node2"
    lost = "worker/0,worker/1 starts; lost node2; worker/0 ends; time up restart 1; held node1; held s1"
    replay = play(f"{MOVING}, check", f"{first}; {lost}; reaches node1")
    _, check = replay.all(commands.CheckNetwork)
    assert check.peers == {"node1": {"worker/1": 4001}, "s1": {"worker/0": 4000}}
    assert len(replay.all(events.StartTask)) == 2
    replay = play(f"{MOVING}, check", f"{first}; {lost}; reaches node1 all but s1:4001; reaches s1; closed")
    assert (replay.exit_code, states(replay)["worker/1"]) == (125, "lost: host lost")
    assert replay.report.failure and "node1 cannot reach s1:4001: no answer" in replay.report.failure.text
    replay = play(f"{MOVING}, check", f"{first}; {lost}; time up check")
    assert len(replay.all(events.StartTask)) == 4


def test_hosts_that_are_no_longer_waited_for_have_no_timer():
    placing = "up; lost node2; worker/0,worker/2 ends; time up restart 1"
    assert "ready" in play(THREE, placing).timers
    assert "ready" not in play(THREE, f"{placing}; lost node3").timers


def test_ports_that_were_held_before_another_host_was_lost_are_too_few():
    """node1 is asked twice: for its own task and worker/1, then for worker/2, too."""
    it = script(THREE)
    history = "up; lost node2; worker/0,worker/2 ends; time up restart 1; lost node3; time up restart 1"
    simulated = it.simulated()
    simulated.begin()
    for event in it.events_of(history):
        simulated.take(event)
        it.placement = simulated.placement
    early = events.PortsHeld("node1", 99.0, {TaskId("worker/0"): 4000, TaskId("worker/1"): 4001})
    assert not any(isinstance(command, commands.MakePlan) for command in simulated.take(early))
    (held,) = it.events_of("held node1")
    assert any(isinstance(command, commands.MakePlan) for command in simulated.take(held))


def test_no_restart_goes_on_whose_host_can_not_be_made_again():
    setup = "worker 2, hosts 2, containers, continue, restarts 1"
    replay = play(setup, "up; lost node2; worker/0 ends; time up restart 1; lost node2")
    assert replay.report.exit_code == 125
    assert events.CloseAgent("node1") in after(replay)

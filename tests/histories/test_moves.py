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
TWO = """up; lost node2; worker/0 ends; time up restart 1; held node1; lost node3; time up restart 1;
    held node1; held s1; held s2; worker/0,worker/1,worker/2 starts"""
S2 = """time up restart 1; held node1; held s2; worker/0,worker/1 starts; worker/0,worker/1 finishes 0;
    closed"""
MOVES = f"""
worker 2, hosts 2, spares s1, restarts 1: up; lost node2 @ 9; worker/0 ends; time up restart 1; held node1;
    held s1; worker/0,worker/1 starts; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# the time is up before the other tasks are gone
worker 2, hosts 2, spares s1, restarts 1: up; lost node2; time up restart 1; worker/0 ends; held s1;
    held node1; worker/0,worker/1 starts; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# a classic job, too: the ClusterSpec is another one; a task that ended well starts again
worker 2, ps 1, hosts 3, restarts 1: up; worker/0 finishes 0; lost node3; ps/0 ends; time up restart 1;
    held node1; held node2; worker/0,worker/1,ps/0 starts; worker/0,worker/1 finishes 0; ps/0 ends; closed
    -> 0 | succeeded, succeeded, stopped
# no room, no restart left, never
worker 2, hosts 2, slots 1, restarts 1: up; lost node2; worker/0 ends; closed
    -> 125 | stopped, lost
worker 2, hosts 2, restarts 1: up; worker/0 dies 9; worker/0 gone; lost node2; closed
    -> 125 | failed: signal, lost
worker 2 restart never, hosts 2, spares s1, restarts 1: up; lost node2; worker/0 ends; closed
    -> 125 | stopped, lost
# the allocation is over: nothing moves, even before the other hosts are lost
worker 2, hosts 2, spares s1, restarts 1: up; over node2; over node1; over s1; closed
    -> 125 | lost, lost
# a host whose tasks do not move does not use up a restart
reader 2, other 2 restart never, hosts 2, restarts 1, continue: up; lost node2; reader/0 dies 9;
    reader/0 gone; time up restart 1; reader/0 starts; reader/0,other/0 finishes 0; closed
    -> 125 | succeeded, lost, succeeded, lost
# before the first start no task moves
worker 2, hosts 2, spares s1, restarts 1: ready node1; ready s1; lost node2; held node1; closed
    -> 125 | never, lost
# a spare that is lost is only said
worker 2, hosts 2, spares s1 s2, restarts 1: lost s1; up; lost node2; worker/0 ends; time up restart 1;
    held node1; held s2; worker/0,worker/1 starts; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# several hosts are lost by one cause: one restart, even if the second one is lost much later
worker 4, hosts 4, restarts 1: up; lost node2; lost node3; worker/0,worker/3 ends; time up place;
    time up restart 1; held node1; held node4; worker/0,worker/1,worker/2,worker/3 starts;
    worker/0,worker/1,worker/2,worker/3 finishes 0; closed
    -> 0 | succeeded, succeeded, succeeded, succeeded
worker 3, hosts 3, spares s1 s2, restarts 1: {TWO}; worker/0,worker/1,worker/2 finishes 0; closed
    -> 0 | succeeded, succeeded, succeeded
worker 3, ps 1, hosts 4, spares s1, restarts 1: up; lost node2; lost node4; lost node3; ps/0 ends;
    time up restart 1; held node1; held s1; worker/0,worker/1,worker/2,ps/0 starts;
    worker/0,worker/1,worker/2 finishes 0; ps/0 ends; closed
    -> 0 | succeeded, succeeded, succeeded, stopped
worker 2, hosts 3, board 1 sidecar, restarts 1: up; lost node1; worker/1 ends; time up restart 1; lost node2;
    time up restart 1; held node3; worker/0,worker/1,board/0 starts; worker/0,worker/1 finishes 0;
    board/0 ends; closed
    -> 0 | succeeded, succeeded, stopped
# another one after the restart counts anew
worker 3, hosts 3, spares s1 s2, restarts 1: {TWO}; lost s1; worker/0,worker/2 ends; closed
    -> 125 | stopped, lost, stopped
# no room for all; no task may move; a spare without tasks was to take some
worker 3, hosts 4, slots 1, restarts 1: up; lost node2; lost node3; worker/0 ends; time up place; closed
    -> 125 | stopped, lost, lost
worker 3, hosts 4, slots 1, restarts 1: up; lost node2; lost node3; worker/0 ends; time up restart 1; closed
    -> 125 | stopped, lost, lost
worker 2, reader 1 restart never, hosts 3, restarts 1: up; lost node2; lost node3; worker/0 ends; closed
    -> 125 | stopped, lost, lost
worker 2, hosts 2, slots 1, spares s1, restarts 1: up; lost node2; lost s1; worker/0 ends; time up place;
    closed
    -> 125 | stopped, lost
# the new host is lost: before the time is up, while it holds ports, while its tasks run
worker 2, hosts 2, spares s1 s2, restarts 1: up; lost node2; lost s1; worker/0 ends; time up restart 1;
    held node1; held s2; worker/0,worker/1 starts; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1 s2, restarts 1: up; lost node2; worker/0 ends; time up restart 1; held node1;
    lost s1; {S2}
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1 s2, restarts 1: up; lost node2; worker/0 ends; time up restart 1; held node1;
    refused s1; {S2}
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1 s2, restarts 1: up; lost node2; worker/0 ends; time up restart 1; held node1;
    lacks s1; {S2}
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1 s2, restarts 1: up; lost node2; worker/0 ends; time up restart 1; held node1;
    time up ready; {S2}
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1 s2, restarts 2: up; lost node2; worker/0 ends; time up restart 1; held node1;
    held s1; worker/0,worker/1 starts; lost s1; worker/0 ends; time up restart 2; held node1; held s2;
    worker/0,worker/1 starts; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# all hosts are lost
worker 2, hosts 2, restarts 2: up; lost node2; lost node1; time up place
    -> 125 | lost, lost
# a host is lost while a task starts again: all start, once
worker 2, ps 1, hosts 3, spares s1, restarts 2: up; worker/1 dies 9; worker/1 gone; lost node2; ps/0 ends;
    time up restart 2; held node1; held s1; held node3; worker/0,worker/1,ps/0 starts;
    worker/0,worker/1 finishes 0; ps/0 ends; closed
    -> 0 | succeeded, succeeded, stopped
# its agent was ended from outside; it does not end a task
worker 2, hosts 2, spares s1, restarts 1: up; worker/1 gets 15; worker/0 ends; time up restart 1; held node1;
    held s1; worker/0,worker/1 starts; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# the user asks for a restart meanwhile: nothing starts earlier
worker 2, hosts 2, spares s1, restarts 1: up; lost node2; restart worker/1; worker/0 ends; time up restart 1;
    held node1; held s1; worker/0,worker/1 starts; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# Ctrl-C, the time limit: before all tasks are gone, while they wait, while ports are held
worker 2, hosts 2, spares s1, restarts 1: up; lost node2; Ctrl-C; worker/0 ends; closed
    -> 130 | stopped, lost
worker 2, hosts 2, spares s1, restarts 1: up; lost node2; worker/0 ends; Ctrl-C; closed
    -> 130 | stopped, lost
worker 2, hosts 2, spares s1, restarts 1: up; lost node2; worker/0 ends; time up restart 1; held s1; Ctrl-C;
    held node1; closed
    -> 130 | stopped, lost
worker 2, hosts 2, spares s1, restarts 1, timeout 5: up; lost node2; worker/0 ends; time up job; closed
    -> 124 | stopped, lost
worker 2, hosts 2, spares s1, restarts 1, timeout 5: up; lost node2; worker/0 ends; time up restart 1;
    time up job; closed
    -> 124 | stopped, lost
"""

#: The tasks of node2 have moved to s1.
MOVED = """up; lost node2; worker/0 ends; time up restart 1; held node1; held s1; worker/0,worker/1 starts"""
#: The tasks of s1 start again on node2.
MOVES_BACK = """worker/0 ends; time up restart 2; held node1; held node2; worker/0,worker/1 starts;
    worker/0,worker/1 finishes 0; closed"""
RETURNS = f"""
worker 2, hosts 2, spares s1, restarts 2: {MOVED}; time up return of node2; ready node2; lost s1; {MOVES_BACK}
    -> 0 | succeeded, succeeded
# at the second attempt; not before its tasks have moved; a host that takes the tasks already is not needed
worker 2, hosts 2, spares s1, restarts 2: {MOVED}; time up return of node2; lost node2;
    time up return of node2; ready node2; lost s1; {MOVES_BACK}
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1, restarts 2: up; lost node2; time up return of node2; worker/0 ends;
    time up return of node2; time up restart 1; held node1; held s1; worker/0,worker/1 starts;
    time up return of node2; ready node2; lost s1; {MOVES_BACK}
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1, restarts 2: {MOVED}; time up return of node2; ready node2;
    worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# it is lost again: without a task that is no restart, with one it is; and it may come back again
worker 2, hosts 2, spares s1, restarts 2: {MOVED}; time up return of node2; ready node2; lost node2;
    time up return of node2; ready node2; lost s1; {MOVES_BACK}
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1, restarts 3: {MOVED}; time up return of node2; ready node2; lost s1;
    worker/0 ends; time up restart 2; held node1; held node2; worker/0,worker/1 starts;
    time up return of s1; ready s1; lost node2; worker/0 ends; time up restart 3; held node1; held s1;
    worker/0,worker/1 starts; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# while others move: it takes the tasks of the next host
worker 2, hosts 2, spares s1 s2, restarts 2: {MOVED}; time up return of node2; lost s1; ready node2; lost s2;
    worker/0 ends; time up restart 2; held node1; held node2; worker/0,worker/1 starts;
    worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# a standby host; before the first start
worker 2, hosts 2, spares s1, restarts 1: up; lost s1; time up return of s1; ready s1; lost node2;
    worker/0 ends; time up restart 1; held node1; held s1; worker/0,worker/1 starts;
    worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
worker 2, hosts 2, spares s1, restarts 1: lost s1; time up return of s1; ready s1; up; lost node2;
    worker/0 ends; time up restart 1; held node1; held s1; worker/0,worker/1 starts;
    worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# its agent starts when the job ends, or has ended
worker 2, hosts 2, spares s1, restarts 2: {MOVED}; time up return of node2; Ctrl-C; ready node2;
    worker/0,worker/1 ends; closed node1; closed s1
    -> 130 | stopped, stopped
worker 2, hosts 2, spares s1, restarts 2: {MOVED}; Ctrl-C; time up return of node2;
    worker/0,worker/1 ends; closed node1; closed s1
    -> 130 | stopped, stopped
"""


#: Of containers: a new one takes the place of a lost one.
AGAIN = "held node1; held node2; worker/0,worker/1 starts"
RENEWED = f"""
worker 2, hosts 2, containers, restarts 1: up; lost node2; worker/0 ends; time up restart 1; ready node2;
    {AGAIN}; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
worker 2, hosts 2, containers, restarts 1: up; lost node2; time up restart 1; ready node2; worker/0 ends;
    {AGAIN}; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# it can't be made: that counts, too
worker 2, hosts 2, containers, restarts 2: up; lost node2; worker/0 ends; time up restart 1; lost node2;
    time up restart 2; ready node2; {AGAIN}; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
worker 2, hosts 2, containers, restarts 1: up; lost node2; worker/0 ends; time up restart 1; lost node2;
    closed
    -> 125 | stopped, lost
worker 1, hosts 1, containers, restarts 1: up; lost node1 @ 700; time up restart 1; lost node1 @ 705
    -> 125 | lost
# its agent is ended from outside, and more of it arrives
worker 2, hosts 2, containers, restarts 1: up; worker/1 gets 15; worker/1 dies 15; closed node2;
    worker/0 ends; time up restart 1; held node2; ready node2; {AGAIN}; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# all are lost
worker 2, hosts 2, containers, restarts 1: up; lost node2; lost node1; time up restart 1; ready node1;
    ready node2; {AGAIN}; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
# one is lost while the other is made; a new one is lost, which counts
worker 2, hosts 2, containers, restarts 1: up; lost node2; worker/0 ends; time up restart 1; lost node1;
    time up restart 1; ready node1; ready node2; {AGAIN}; worker/0,worker/1 finishes 0; closed
    -> 0 | succeeded, succeeded
worker 2, hosts 2, containers, restarts 1: up; lost node2; worker/0 ends; time up restart 1; ready node2;
    lost node2; closed
    -> 125 | stopped, lost
# a cluster takes it for others: that does not count, without restarts it is a failure
worker 2, hosts 2, containers, restarts 1: up; taken node2; worker/0 ends; time up restart 1; ready node2;
    {AGAIN}; lost node1; worker/1 ends; time up restart 2; ready node1; {AGAIN}; worker/0,worker/1 finishes 0;
    closed
    -> 0 | succeeded, succeeded
worker 2, hosts 2, containers: up; taken node2; worker/0 ends; closed
    -> 125 | stopped, lost
# no restart; Ctrl-C meanwhile
worker 2, hosts 2, containers: up; lost node2; worker/0 ends; closed
    -> 125 | stopped, lost
worker 2, hosts 2, containers, restarts 1: up; lost node2; Ctrl-C; worker/0 ends; ready node2; closed node1
    -> 130 | stopped, lost
"""


@pytest.mark.promise("tasks of a lost host start again on others, never twice at a time")
@pytest.mark.parametrize("case", cases(MOVES + RETURNS + RENEWED))
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
    assert any("node1 cannot reach s1:4001: no answer" in text for text in replay.notices)
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

"""How jobs end when hosts and agents are lost, refuse, or do not answer, or do not reach each other."""

from __future__ import annotations

from typing import get_args

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError
from launcher.common.report import Reason
from launcher.supervisor import Timer, TimerKind, commands
from tests.histories.host_events import HostEvents
from tests.histories.script import Case, Replay, cases, check, play, script, states

LOST, STOPPED = "lost: host lost", "stopped: stopped"


def of_host(replay: Replay, host: str) -> list[commands.Command]:
    """All commands to this host."""
    return [command for command in replay.commands if getattr(command, "host", None) == host]




@pytest.mark.parametrize("case", cases("hosts.txt"))
def test_ends(case: Case, snapshot: SnapshotAssertion):
    check(case, snapshot)


def test_the_faults_of_all_hosts_are_reported():
    """The launch is over with the first fault, but a user with forty hosts needs all of them.

    The first is the failure, which is told at the end, and the others are told before.
    """
    history = "lost node2; ready node1; lost node4; held node1; ready node3; held node3; closed"
    replay = play("worker 4, hosts 4", history)
    assert [notice.split()[1] for notice in replay.notices] == ["node4"]
    assert not replay.all(events.StartTask)
    assert of_host(replay, "node3")[-1] == events.CloseAgent("node3")
    assert replay.report.failure is not None and replay.report.failure.host == "node2"
    replay = play("worker 2, hosts 2", "ready node1; ready node2; refused node2; refused node1; closed")
    assert [notice.split()[0] for notice in replay.notices] == ["node1"]
    assert replay.report.failure is not None and replay.report.failure.host == "node2"
    assert [close.host for close in replay.all(events.CloseAgent)] == ["node1", "node2"]


def test_the_time_for_the_others_begins_with_the_first_failure():
    replay = play("worker 3, hosts 3", "lost node1; ready node2; refused node2; time up rest; closed node2")
    assert replay.all(commands.SetTimer).count(commands.SetTimer(Timer(TimerKind.OTHER_HOSTS), 10.0)) == 1
    assert replay.notices[-1].startswith("host node3 cannot be used: ")


def test_lost_while_it_runs():
    replay = play("worker 4, hosts 2", "up; lost node2 @ 9.0; worker/0,worker/2 ends; closed")
    assert replay.exit_code == 125
    assert list(states(replay).values()) == [STOPPED, LOST, STOPPED, LOST]
    stops = [(stop.host, stop.tasks) for stop in replay.all(events.StopTasks)]
    assert stops == [("node1", ("worker/0", "worker/2"))]
    assert of_host(replay, "node2")[-1] == commands.CloseLink("node2")
    assert replay.report.failure is not None and replay.report.failure.reason is Reason.HOST_LOST
    lost = replay.report.tasks[1]
    assert (lost.detail, lost.ended_at) == ("its host is lost: connection reset", 9.0)
    assert not lost.status.known


@pytest.mark.promise("hundreds of tasks, a thousand hosts")
def test_200_tasks_on_20_hosts_cost_few_commands():
    it = script("worker 196, ps 4, hosts 20")
    others = ",".join(task for task in it.host_of if task != "worker/7")
    replay = it.play(f"up; worker/7 finishes 7; {others} ends; closed")
    assert replay.exit_code == 7
    kinds = (events.HoldPorts, commands.MakePlan, events.StartTask, events.StopTasks, events.CloseAgent)
    assert [len(replay.all(kind)) for kind in kinds] == [20, 1, 200, 20, 20]
    assert len(replay.commands) < 200 + 100
    assert max(len(step.commands) for step in replay.steps[-240:]) < 60


def test_a_host_may_send_a_hundred_notices_for_each_task_that_it_starts():
    it = script("worker 1")
    simulated = it.simulated()
    simulated.begin()
    *before, starts = it.events_of("up")
    notice = events.HostNotice("node1", 9.0, "hello")
    for event in (*before, *[notice] * 100, starts, *[notice] * 100):
        assert isinstance(event, get_args(events.AgentEvent))
        simulated.machine.verify(event)
        simulated.take(event)
    with pytest.raises(ProtocolError):
        simulated.machine.verify(notice)


def test_what_a_host_says_of_an_attempt_that_is_over_is_its_fault():
    it = script("worker 1, restarts 1")
    simulated = it.simulated()
    simulated.begin()
    for event in it.events_of("up; worker/0 dies 9; worker/0 gone; time up restart 1"):
        simulated.take(event)
    node, worker = HostEvents("node1", lambda: 9.0), TaskId("worker/0")

    def verify(event: events.Event) -> None:
        assert isinstance(event, get_args(events.AgentEvent))
        simulated.machine.verify(event)

    with pytest.raises(ProtocolError):
        verify(node.started(worker, attempt=1))
    simulated.take(node.started(worker, attempt=2))
    for report in (node.output, node.signalled, node.exited):
        verify(report(worker, attempt=2))
        with pytest.raises(ProtocolError):
            verify(report(worker, attempt=1))


# ---------------------------------------------------------------------- before a start they try the network


GATHERED = "ready node1; ready node2; ready node3; held node1; held node2; held node3; "


def gathered(text: str) -> Replay:
    """The replay of what follows when the hosts of three tasks hold their ports, and try the network."""
    return play("worker 3, hosts 3, check", GATHERED + text)


def test_each_tries_the_next_two():
    replay = gathered("")
    (trial,) = replay.all(commands.CheckNetwork)
    assert trial.peers == {
        "node1": {"worker/1": 4001, "worker/2": 4002},
        "node2": {"worker/2": 4002, "worker/0": 4000},
        "node3": {"worker/0": 4000, "worker/1": 4001},
    }
    assert not replay.all(events.StartTask)
    assert replay.timers["check"] == 12.0


def test_when_all_reach_each_other_it_starts():
    replay = gathered("reaches node1; reaches node2")
    assert not replay.all(events.StartTask)
    replay = gathered("reaches node1; reaches node2; reaches node3")
    assert len(replay.all(events.StartTask)) == 3
    assert "check" not in replay.timers


def test_addresses_that_cannot_be_reached_are_reported():
    replay = gathered(
        "reaches node1 all but node2:4001; reaches node2; reaches node3 all but node2:4001; closed"
    )
    told = [line for line in replay.notices if "node2:4001" in line]
    assert [line.split()[0] for line in told] == ["node3"]
    assert not replay.all(events.StartTask)
    assert replay.exit_code == 125
    assert replay.report.failure is not None and replay.report.failure.text.startswith("node1 cannot reach")


def test_a_silent_host_holds_nothing_up():
    replay = gathered("reaches node1; time up check")
    assert any("node2, node3" in notice for notice in replay.notices)
    assert len(replay.all(events.StartTask)) == 3


def test_a_host_that_is_lost_meanwhile():
    replay = gathered("reaches node1; lost node2; reaches node3; closed")
    assert not replay.all(events.StartTask)
    assert replay.exit_code == 125
    replay = gathered("lost node2; time up check; closed")
    assert not replay.all(events.StartTask)
    assert replay.exit_code == 125


def test_a_single_host_does_not_check():
    replay = play("worker 2, check", "ready node1; held node1")
    assert not replay.all(commands.CheckNetwork)
    assert len(replay.all(events.StartTask)) == 2

"""`launcher.testing` as its users see it."""

from __future__ import annotations

import select

import pytest

from launcher import events
from launcher.errors import TransportError
from launcher.events import Event
from launcher.job import Host, TaskId
from launcher.testing import FakeAgent, FakeClock, FakeTransport, Played, Rehearsal, play, runs
from tests.histories.script import hosts, job

W0 = TaskId("worker/0")
HISTORY: list[Event] = [
    events.AgentReady("node1", 1.0, 1, {}),
    events.PortsHeld("node1", 1.1, {W0: 4000}),
    events.TaskStarted("node1", 1.2, W0, 1, 4711),
    events.TaskExited("node1", 2.0, W0, 1, 7, None, 0, 0.0),
    events.TaskGone("node1", 2.0, W0, 1),
    events.AgentClosed("node1", 2.1),
]


def test_play_tells_what_each_fact_led_to():
    played = play(job("worker 1"), hosts(1), HISTORY)
    assert [step.fact for step in played.steps] == [None, *HISTORY]
    assert played.steps[1].orders == (events.HoldPorts("node1", (W0,)),)
    plan, *_, start = played.steps[2].orders
    assert plan == events.MakePlan({W0: 4000})
    assert isinstance(start, events.StartTask) and start.argv[-1] == "train.py"
    assert played.exit_code == 7
    assert (played.report.started_at, played.report.ended_at) == (1.0, 2.1)


def test_play_tells_how_it_stands():
    played: Played = play(job("worker 1"), hosts(1), HISTORY[:1])
    assert played.exit_code is None
    assert played.timers == {"ready": 60.0, "patience": 2.0}


def test_a_timer_that_is_not_set_can_not_run_out():
    with pytest.raises(ValueError, match="timer 'end' is not set: patience, ready is"):
        play(job("worker 1"), hosts(1), [events.TimeUp(1.0, "end")])


def test_a_rehearsal_goes_step_by_step():
    stage = Rehearsal(job("worker 1"), hosts(1))
    stage.begin()
    for fact in HISTORY[:2]:
        stage.take(fact)
    assert stage.plan is not None and stage.plan.cluster == {"worker": ("node1:4000",)}


def test_a_clock_goes_when_it_is_told_to():
    clock = FakeClock(5.0, step=0.5)
    assert [clock(), clock(), clock.advance(2.0), clock()] == [5.0, 5.5, 8.0, 8.0]


def test_a_fake_link_works_with_select():
    link = FakeTransport().open(Host("node1"))
    poll = select.poll()
    poll.register(link.reading, select.POLLIN)
    assert poll.poll(0)
    assert b"AgentReady" in (link.read(1 << 16) or b"")
    assert not poll.poll(0) and link.read(1) is None
    link.say(events.AgentClosed("node1", 1.0), b"")
    assert poll.poll(0) and b"AgentClosed" in (link.read(1 << 16) or b"")
    assert poll.poll(0) and link.read(1) == b""
    assert link.wait(1.0) == ""
    link.close()
    link.close()


def test_a_host_that_can_not_be_reached():
    with pytest.raises(TransportError, match="no route"):
        FakeTransport(refuses={"node1": "no route"}).open(Host("node1"))


def test_a_fake_agent_reaches_everybody_and_may_be_told_to_hold_its_output():
    agent = FakeAgent("node1", clock=FakeClock(1.0))
    assert agent(events.TryPeers("node1", ("node2:4000",))) == [events.PeersTried("node1", 1.0, {})]
    assert agent(events.HoldOutput("node1", True)) == []


def test_a_fake_task_climbs_the_ladder():
    agent = FakeAgent("node1", {"worker/0": runs(ignores=(15, 6))}, clock=FakeClock(1.0))
    agent(events.StartTask("node1", W0, 1, ("true",), {}, None, ()))
    said = agent(events.StopTasks("node1", (W0,), ((15, 1.0), (6, 1.0), (9, 1.0))))
    assert [fact.signal for fact in said if isinstance(fact, events.TaskSignalled)] == [15, 6, 9]
    assert [fact.signal for fact in said if isinstance(fact, events.TaskExited)] == [9]
    assert not agent(events.StopTasks("node1", (W0,), ((9, 1.0),)))

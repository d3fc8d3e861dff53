"""Before a job on several hosts starts, they try whether they reach each other."""

from __future__ import annotations

from launcher import events
from launcher.supervisor import host_events
from tests.histories.script import Script, hosts, job

GATHERED = "ready node1\nready node2\nready node3\nheld node1\nheld node2\nheld node3\n"


def script() -> Script:
    return Script(job("worker 3"), hosts(3), check=True)


def test_each_tries_the_next_two():
    played = script().play(GATHERED)
    assert [(order.host, order.addresses) for order in played.all(events.TryPeers)] == [
        ("node1", ("node2:4001", "node3:4002")),
        ("node2", ("node3:4002", "node1:4000")),
        ("node3", ("node1:4000", "node2:4001")),
    ]
    assert not played.all(events.StartTask)
    assert played.timers["check"] == 10.0


def test_of_two_each_tries_the_other_once():
    script = Script(job("worker 2"), hosts(2), check=True)
    played = script.play("ready node1\nready node2\nheld node1\nheld node2")
    assert [order.addresses for order in played.all(events.TryPeers)] == [("node2:4001",), ("node1:4000",)]


def test_when_all_reach_each_other_it_starts():
    played = script().play(GATHERED + "reaches node1\nreaches node2")
    assert not played.all(events.StartTask)
    played = script().play(GATHERED + "reaches node1\nreaches node2\nreaches node3")
    assert len(played.all(events.StartTask)) == 3
    assert "check" not in played.timers


def test_all_that_is_closed_is_told_and_nothing_starts():
    played = script().play(
        GATHERED + "reaches node1 all but node2:4001\nreaches node2\nreaches node3 all but node2:4001\nclosed"
    )
    assert [line for line in played.told if "reach" in line] == [
        f"node1 can't reach node2:4001: no answer ({host_events._ADVICE})",
        f"node3 can't reach node2:4001: no answer ({host_events._ADVICE})",
    ]
    assert not played.all(events.StartTask)
    assert played.exit_code == 125
    assert played.report.failure is not None and played.report.failure.host == "node1"


def test_who_does_not_answer_holds_nothing_up():
    played = script().play(GATHERED + "reaches node1\ntime up check")
    assert "going on without the check of the network on node2, node3: no answer" in played.told
    assert len(played.all(events.StartTask)) == 3


def test_a_host_that_is_lost_meanwhile():
    played = script().play(GATHERED + "reaches node1\nlost node2\nreaches node3\nclosed")
    assert not played.all(events.StartTask)
    assert played.exit_code == 125
    played = script().play(GATHERED + "lost node2\ntime up check\nclosed")
    assert not played.all(events.StartTask)
    assert played.exit_code == 125


def test_a_single_host_has_nobody_to_reach():
    played = Script(job("worker 2"), hosts(1), check=True).play("ready node1\nheld node1")
    assert not played.all(events.TryPeers)
    assert len(played.all(events.StartTask)) == 2

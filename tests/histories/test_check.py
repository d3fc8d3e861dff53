"""Before a job on several hosts starts, they try whether they reach each other."""

from __future__ import annotations

from launcher.common import events
from launcher.supervisor import commands
from tests.histories.script import Script, hosts, job

GATHERED = "ready node1; ready node2; ready node3; held node1; held node2; held node3; "


def script() -> Script:
    return Script(job("worker 3"), hosts(3), check=True)


def test_each_tries_the_next_two():
    replay = script().play(GATHERED)
    (check,) = replay.all(commands.CheckNetwork)
    assert check.peers == {
        "node1": {"worker/1": 4001, "worker/2": 4002},
        "node2": {"worker/2": 4002, "worker/0": 4000},
        "node3": {"worker/0": 4000, "worker/1": 4001},
    }
    assert not replay.all(events.StartTask)
    assert replay.timers["check"] == 12.0


def test_when_all_reach_each_other_it_starts():
    replay = script().play(GATHERED + "reaches node1; reaches node2")
    assert not replay.all(events.StartTask)
    replay = script().play(GATHERED + "reaches node1; reaches node2; reaches node3")
    assert len(replay.all(events.StartTask)) == 3
    assert "check" not in replay.timers


def test_addresses_that_cannot_be_reached_are_reported():
    replay = script().play(
        GATHERED + "reaches node1 all but node2:4001; reaches node2; reaches node3 all but node2:4001; closed"
    )
    told = [line for line in replay.notices if "node2:4001" in line]
    assert [line.split()[0] for line in told] == ["node1", "node3"]
    assert not replay.all(events.StartTask)
    assert replay.exit_code == 125
    assert replay.report.failure is not None and replay.report.failure.host == "node1"


def test_a_silent_host_holds_nothing_up():
    replay = script().play(GATHERED + "reaches node1; time up check")
    assert any("node2, node3" in notice for notice in replay.notices)
    assert len(replay.all(events.StartTask)) == 3


def test_a_host_that_is_lost_meanwhile():
    replay = script().play(GATHERED + "reaches node1; lost node2; reaches node3; closed")
    assert not replay.all(events.StartTask)
    assert replay.exit_code == 125
    replay = script().play(GATHERED + "lost node2; time up check; closed")
    assert not replay.all(events.StartTask)
    assert replay.exit_code == 125


def test_a_single_host_does_not_check():
    replay = Script(job("worker 2"), hosts(1), check=True).play("ready node1; held node1")
    assert not replay.all(commands.CheckNetwork)
    assert len(replay.all(events.StartTask)) == 2

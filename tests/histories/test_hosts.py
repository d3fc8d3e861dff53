"""How jobs end when hosts and agents are lost, refuse, or do not answer."""

from __future__ import annotations

import pytest

from launcher import events
from launcher.report import Reason
from tests.histories.script import Script, after, hosts, job, states

UNUSABLE = "host node2 can't be used: connection reset"


def of_host(replay, host: str) -> list[events.Command]:
    """All commands to this host."""
    return [command for command in replay.commands if getattr(command, "host", None) == host]


def test_lost_before_it_is_ready():
    replay = Script(job("worker 2"), hosts(2)).play("ready node1; held node1; lost node2; closed")
    assert replay.exit_code == 125
    assert states(replay) == {"worker/0": "cancelled: never started", "worker/1": "lost: host lost"}
    assert of_host(replay, "node2") == [events.HangUp("node2")]
    assert events.Tell(UNUSABLE, urgent=True) in replay.commands
    assert replay.report.failure is not None
    assert (replay.report.failure.host, replay.report.failure.text) == ("node2", UNUSABLE)


def test_all_that_is_wrong_with_the_hosts_is_told_at_once():
    """The launch is over with the first, but whoever has forty hosts wants to hear of the others too."""
    script = Script(job("worker 4"), hosts(4))
    replay = script.play("lost node2; ready node1; lost node4; held node1; ready node3; held node3; closed")
    assert list(replay.notices) == [UNUSABLE, UNUSABLE.replace("node2", "node4")]
    assert not replay.all(events.StartTask)
    assert of_host(replay, "node3")[-1] == events.CloseAgent("node3")
    assert replay.report.failure is not None and replay.report.failure.host == "node2"
    assert replay.exit_code == 125


def test_a_host_that_does_not_answer_holds_up_a_launch_that_failed_no_longer_than_that():
    replay = Script(job("worker 2"), hosts(2)).play("lost node1; time up rest")
    assert events.SetTimer("rest", 10.0) in replay.commands
    assert "host node2 can't be used: it had not answered yet when another host failed" in replay.notices
    assert replay.exit_code == 125


def test_the_time_for_the_others_begins_with_the_first_failure():
    script = Script(job("worker 3"), hosts(3))
    replay = script.play("lost node1; ready node2; refused node2; time up rest; closed node2")
    assert replay.all(events.SetTimer).count(events.SetTimer("rest", 10.0)) == 1
    assert replay.notices[-1].startswith("host node3 can't be used: it had not answered yet")


def test_the_only_host_is_lost():
    replay = Script(job("worker 2")).play("lost node1")
    assert replay.exit_code == 125
    assert set(states(replay).values()) == {"lost: host lost"}


def test_lost_while_it_runs():
    script = Script(job("worker 4"), hosts(2))
    replay = script.play("up; lost node2 @ 9.0; worker/0,worker/2 ends; closed")
    assert replay.exit_code == 125
    assert states(replay) == {
        "worker/0": "stopped: stopped",
        "worker/1": "lost: host lost",
        "worker/2": "stopped: stopped",
        "worker/3": "lost: host lost",
    }
    assert [(stop.host, stop.tasks) for stop in replay.all(events.StopTasks)] == [
        ("node1", ("worker/0", "worker/2"))
    ]
    assert of_host(replay, "node2")[-1] == events.HangUp("node2")
    assert replay.report.failure is not None and replay.report.failure.reason is Reason.HOST_LOST
    lost = replay.report.tasks[1]
    assert (lost.detail, lost.ended_at, lost.status.known) == (
        "its host is lost: connection reset",
        9.0,
        False,
    )


def test_a_task_whose_end_was_seen_is_not_lost_with_its_host():
    replay = Script(job("worker 2")).play("up; worker/0 exits 7; worker/1 exits 0; lost node1")
    assert replay.exit_code == 7
    assert states(replay) == {"worker/0": "failed: exit", "worker/1": "succeeded: exit"}
    replay = Script(job("worker 1")).play("up; worker/0 exits 0; lost node1")
    assert replay.exit_code == 125  # nobody knows what it left behind, or what else it printed
    assert states(replay) == {"worker/0": "succeeded: exit"}


def test_lost_under_continue():
    script = Script(job("worker 2", "ps 1", on_failure="continue"), hosts(3))
    replay = script.play("up; lost node2; worker/1 finishes 0; ps/0 ends; closed")
    assert script.host_of["worker/0"] == "node2"
    assert replay.exit_code == 125
    assert list(states(replay).values()) == ["lost: host lost", "succeeded: exit", "stopped: stopped"]


def test_the_last_working_host_is_lost_under_continue():
    script = Script(job("worker 1", "ps 1", on_failure="continue"), hosts(2))
    replay = script.play("up; lost node2; ps/0 ends; closed")
    assert replay.exit_code == 125


def test_a_task_that_failed_before_its_host_was_lost_is_the_cause():
    replay = Script(job("worker 2"), hosts(2)).play(
        "up; lost node2 @ 9; worker/0 exits 7 @ 8.9; worker/0 gone"
    )
    assert replay.report.exit_code == 7


def test_lost_while_it_stops():
    replay = Script(job("worker 2"), hosts(2)).play("up; worker/0 finishes 7; lost node2; closed")
    assert replay.exit_code == 7
    assert states(replay)["worker/1"] == "lost: host lost"


def test_lost_while_agents_close():
    """Every task was over: that the agent did not say goodbye changes nothing."""
    replay = Script(job("worker 2"), hosts(2)).play("up; worker/0,worker/1 finishes 0; lost node2; closed")
    assert replay.exit_code == 0
    assert "host node2 is lost: connection reset" in replay.notices


def test_facts_of_a_lost_host_are_ignored():
    replay = Script(job("worker 2"), hosts(2)).play(
        "up; lost node2; worker/1 exits 7 @ 0.5; worker/1 gone; closed node2; lost node2"
    )
    assert not after(replay, 4)
    assert states(replay)["worker/1"] == "lost: host lost"
    assert replay.report.exit_code == 125


def test_ports_refused():
    replay = Script(job("worker 2"), hosts(2)).play(
        "ready node1; ready node2; held node1; refused node2; closed"
    )
    assert replay.exit_code == 125
    assert "node2 does not have a port for each of its tasks: too many open files" in replay.notices
    assert not replay.all(events.StartTask)


def test_ports_refused_by_two_hosts_and_after_ctrl_c():
    script = Script(job("worker 2"), hosts(2))
    replay = script.play("ready node1; ready node2; refused node2; refused node1; closed")
    assert [close.host for close in replay.all(events.CloseAgent)] == ["node1", "node2"]
    assert [notices.split()[0] for notices in replay.notices] == ["node2", "node1"]
    replay = Script(job("worker 1")).play("ready node1; Ctrl-C; refused node1; closed")
    assert replay.exit_code == 130
    assert len(replay.all(events.CloseAgent)) == 1


# ---------------------------------------------------------------------- an agent that is ended from outside


def test_an_agent_that_ends_its_tasks_unasked_is_no_success():
    """Somebody sent SIGTERM to it, or killed its guardian: the tasks did not end by themselves."""
    replay = Script(job("worker 2")).play(
        "up; worker/0,worker/1 gets 15; worker/0 dies 15; worker/0 gone; worker/1 finishes 0; closed"
    )
    assert replay.exit_code == 125
    assert set(states(replay).values()) == {"stopped: stopped"}
    why = "host node1 is lost: its agent was ended from outside, and ends its tasks"
    assert replay.notices[0] == why
    assert replay.report.failure is not None and replay.report.failure.text == why


def test_an_agent_that_ends_unasked_stops_the_other_hosts():
    replay = Script(job("worker 2"), hosts(2)).play(
        "up; worker/1 gets 15; worker/1 dies 15; worker/1 gone; closed node2; worker/0 ends; closed node1"
    )
    assert replay.exit_code == 125
    assert [stop.host for stop in replay.all(events.StopTasks)][0] == "node1"


def test_an_agent_that_ends_unasked_under_continue():
    script = Script(job("worker 2", on_failure="continue"), hosts(2))
    replay = script.play(
        "up; worker/1 gets 15; worker/1 gets 9; worker/1 unkillable 4711; "
        "lost node2; worker/0 finishes 0; closed node1"
    )
    assert replay.exit_code == 125
    assert states(replay) == {"worker/0": "succeeded: exit", "worker/1": "stopped: stopped"}


@pytest.mark.parametrize("history", ["ready node1", "up"])
def test_an_agent_that_closes_unasked_is_lost(history: str):
    replay = Script(job("worker 1")).play(f"{history}; closed node1")
    assert replay.exit_code == 125
    assert replay.notices[-1].removeprefix("host node1 is lost: ").removeprefix(
        "host node1 can't be used: "
    ) == ("its agent was ended from outside, and ends its tasks")


# ---------------------------------------------------------------------- hosts that do not answer


def test_no_agent_in_time():
    replay = Script(job("worker 3"), hosts(3)).play(
        "ready node1; held node1; ready node2; time up ready; closed node1"
    )
    assert replay.exit_code == 125
    assert replay.notices == tuple(
        f"host {name} can't be used: no answer from its agent in 60 s" for name in ("node2", "node3")
    )
    assert [hang.host for hang in replay.all(events.HangUp)] == ["node2", "node3"]


def test_no_start_in_time():
    replay = Script(job("worker 2"), hosts(2)).play(
        "ready node1; ready node2; held node1; held node2; "
        "worker/0 starts; time up start; worker/0 ends; closed node1"
    )
    assert replay.exit_code == 125
    assert replay.notices == ("host node2 is lost: its agent could not start a task in 60 s",)
    assert states(replay)["worker/1"] == "lost: host lost"


def test_no_end_in_time():
    replay = Script(job("worker 2"), hosts(2)).play("up; worker/0 finishes 7; time up end; closed node1")
    assert replay.exit_code == 7
    assert replay.notices[-1] == "host node2 is lost: its agent did not end the tasks"
    assert events.HangUp("node2") in replay.commands


def test_no_close_in_time():
    replay = Script(job("worker 2"), hosts(2)).play(
        "up; Ctrl-C; worker/0,worker/1 ends; closed node1; time up close"
    )
    assert replay.exit_code == 130
    assert replay.notices[-1] == "host node2 is lost: its agent did not close in 15 s"


# ---------------------------------------------------------------------- many


def test_500_tasks_on_50_hosts_cost_few_orders():
    script = Script(job("worker 496", "ps 4"), hosts(50))
    history = "; ".join(
        [
            "up",
            "worker/7 exits 7",
            "worker/7 gone",
            *(f"{t} ends" for t in script.host_of if t != "worker/7"),
            "closed",
        ]
    )
    replay = script.play(history)
    assert replay.exit_code == 7
    assert len(replay.all(events.HoldPorts)) == 50
    assert len(replay.all(events.MakePlan)) == 1
    assert len(replay.all(events.StartTask)) == 500
    assert len(replay.all(events.StopTasks)) == 50
    assert len(replay.all(events.CloseAgent)) == 50
    assert len(replay.commands) < 500 + 200
    assert max(len(step.commands) for step in replay.steps[-600:] if step.event) < 120


def test_500_tasks_that_all_end_well_cost_few_orders():
    names = [f"worker/{n}" for n in range(500)]
    lines = [line for name in names for line in (f"{name} exits 0", f"{name} gone")]
    replay = Script(job("worker 500")).play("; ".join(["up", *lines, "closed"]))
    assert replay.exit_code == 0
    assert len(replay.commands) < 500 + 25


def test_a_job_without_tasks_is_over():
    replay = Script(job("worker 0")).play("")
    assert replay.exit_code == 0

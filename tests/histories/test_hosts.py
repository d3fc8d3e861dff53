"""How jobs end when hosts and agents are lost, refuse, or do not answer."""

from __future__ import annotations

import pytest

from launcher import events
from launcher.report import Reason
from tests.histories.script import Script, after, hosts, job, states

UNUSABLE = "host node2 can't be used: connection reset"


def of_host(played, host: str) -> list[events.Command]:
    """All orders to this host."""
    return [order for order in played.orders if getattr(order, "host", None) == host]


def test_lost_before_it_is_ready():
    played = Script(job("worker 2"), hosts(2)).play("ready node1\nheld node1\nlost node2\nclosed")
    assert played.exit_code == 125
    assert states(played) == {"worker/0": "cancelled: never started", "worker/1": "lost: host lost"}
    assert of_host(played, "node2") == [events.HangUp("node2")]
    assert events.Tell(UNUSABLE, urgent=True) in played.orders
    assert played.report.failure is not None
    assert (played.report.failure.host, played.report.failure.text) == ("node2", UNUSABLE)


def test_all_that_is_wrong_with_the_hosts_is_told_at_once():
    """The launch is over with the first, but whoever has forty hosts wants to hear of the others too."""
    script = Script(job("worker 4"), hosts(4))
    played = script.play("lost node2\nready node1\nlost node4\nheld node1\nready node3\nheld node3\nclosed")
    assert list(played.told) == [UNUSABLE, UNUSABLE.replace("node2", "node4")]
    assert not played.all(events.StartTask)
    assert of_host(played, "node3")[-1] == events.CloseAgent("node3")
    assert played.report.failure is not None and played.report.failure.host == "node2"
    assert played.exit_code == 125


def test_a_host_that_does_not_answer_holds_up_a_launch_that_failed_no_longer_than_that():
    played = Script(job("worker 2"), hosts(2)).play("lost node1\ntime up rest")
    assert events.SetTimer("rest", 10.0) in played.orders
    assert "host node2 can't be used: it had not answered yet when another host failed" in played.told
    assert played.exit_code == 125


def test_the_time_for_the_others_begins_with_the_first_failure():
    script = Script(job("worker 3"), hosts(3))
    played = script.play("lost node1\nready node2\nrefused node2\ntime up rest\nclosed node2")
    assert played.all(events.SetTimer).count(events.SetTimer("rest", 10.0)) == 1
    assert played.told[-1].startswith("host node3 can't be used: it had not answered yet")


def test_the_only_host_is_lost():
    played = Script(job("worker 2")).play("lost node1")
    assert played.exit_code == 125
    assert set(states(played).values()) == {"lost: host lost"}


def test_lost_while_it_runs():
    script = Script(job("worker 4"), hosts(2))
    played = script.play("up\nlost node2 @ 9.0\nworker/0 ends\nworker/2 ends\nclosed")
    assert played.exit_code == 125
    assert states(played) == {
        "worker/0": "stopped: stopped",
        "worker/1": "lost: host lost",
        "worker/2": "stopped: stopped",
        "worker/3": "lost: host lost",
    }
    assert [(stop.host, stop.tasks) for stop in played.all(events.StopTasks)] == [
        ("node1", ("worker/0", "worker/2"))
    ]
    assert of_host(played, "node2")[-1] == events.HangUp("node2")
    assert played.report.failure is not None and played.report.failure.reason is Reason.HOST_LOST
    lost = played.report.tasks[1]
    assert (lost.detail, lost.ended_at, lost.status.known) == (
        "its host is lost: connection reset",
        9.0,
        False,
    )


def test_a_task_whose_end_was_seen_is_not_lost_with_its_host():
    played = Script(job("worker 2")).play("up\nworker/0 exits 7\nworker/1 exits 0\nlost node1")
    assert played.exit_code == 7
    assert states(played) == {"worker/0": "failed: exit", "worker/1": "succeeded: exit"}
    played = Script(job("worker 1")).play("up\nworker/0 exits 0\nlost node1")
    assert played.exit_code == 125  # nobody knows what it left behind, or what else it printed
    assert states(played) == {"worker/0": "succeeded: exit"}


def test_lost_under_continue():
    script = Script(job("worker 2", "ps 1", on_failure="continue"), hosts(3))
    played = script.play("up\nlost node2\nworker/1 exits 0\nworker/1 gone\nps/0 ends\nclosed")
    assert script.host_of["worker/0"] == "node2"
    assert played.exit_code == 125
    assert list(states(played).values()) == ["lost: host lost", "succeeded: exit", "stopped: stopped"]


def test_the_last_working_host_is_lost_under_continue():
    script = Script(job("worker 1", "ps 1", on_failure="continue"), hosts(2))
    played = script.play("up\nlost node2\nps/0 ends\nclosed")
    assert played.exit_code == 125


def test_a_task_that_failed_before_its_host_was_lost_is_the_cause():
    played = Script(job("worker 2"), hosts(2)).play(
        "up\nlost node2 @ 9\nworker/0 exits 7 @ 8.9\nworker/0 gone"
    )
    assert played.report.exit_code == 7


def test_lost_while_it_stops():
    played = Script(job("worker 2"), hosts(2)).play("up\nworker/0 exits 7\nworker/0 gone\nlost node2\nclosed")
    assert played.exit_code == 7
    assert states(played)["worker/1"] == "lost: host lost"


def test_lost_while_agents_close():
    """Every task was over: that the agent did not say goodbye changes nothing."""
    played = Script(job("worker 2"), hosts(2)).play(
        "up\nworker/0 exits 0\nworker/0 gone\nworker/1 exits 0\nworker/1 gone\nlost node2\nclosed"
    )
    assert played.exit_code == 0
    assert "host node2 is lost: connection reset" in played.told


def test_facts_of_a_lost_host_are_ignored():
    played = Script(job("worker 2"), hosts(2)).play(
        "up\nlost node2\nworker/1 exits 7 @ 0.5\nworker/1 gone\nclosed node2\nlost node2"
    )
    assert not after(played, 4)
    assert states(played)["worker/1"] == "lost: host lost"
    assert played.report.exit_code == 125


def test_ports_refused():
    played = Script(job("worker 2"), hosts(2)).play(
        "ready node1\nready node2\nheld node1\nrefused node2\nclosed"
    )
    assert played.exit_code == 125
    assert "node2 does not have a port for each of its tasks: too many open files" in played.told
    assert not played.all(events.StartTask)


def test_ports_refused_by_two_hosts_and_after_ctrl_c():
    script = Script(job("worker 2"), hosts(2))
    played = script.play("ready node1\nready node2\nrefused node2\nrefused node1\nclosed")
    assert [close.host for close in played.all(events.CloseAgent)] == ["node1", "node2"]
    assert [told.split()[0] for told in played.told] == ["node2", "node1"]
    played = Script(job("worker 1")).play("ready node1\nCtrl-C\nrefused node1\nclosed")
    assert played.exit_code == 130
    assert len(played.all(events.CloseAgent)) == 1


# ---------------------------------------------------------------------- an agent that is ended from outside


def test_an_agent_that_ends_its_tasks_unasked_is_no_success():
    """Somebody sent SIGTERM to it, or killed its guardian: the tasks did not end by themselves."""
    played = Script(job("worker 2")).play(
        """
        up
        worker/0 gets 15
        worker/1 gets 15
        worker/0 dies 15
        worker/0 gone
        worker/1 exits 0
        worker/1 gone
        closed
        """
    )
    assert played.exit_code == 125
    assert set(states(played).values()) == {"stopped: stopped"}
    why = "host node1 is lost: its agent was ended from outside, and ends its tasks"
    assert played.told[0] == why
    assert played.report.failure is not None and played.report.failure.text == why


def test_an_agent_that_ends_unasked_stops_the_other_hosts():
    played = Script(job("worker 2"), hosts(2)).play(
        "up\nworker/1 gets 15\nworker/1 dies 15\nworker/1 gone\nclosed node2\nworker/0 ends\nclosed node1"
    )
    assert played.exit_code == 125
    assert [stop.host for stop in played.all(events.StopTasks)][0] == "node1"


def test_an_agent_that_ends_unasked_under_continue():
    script = Script(job("worker 2", on_failure="continue"), hosts(2))
    played = script.play(
        """
        up
        worker/1 gets 15
        worker/1 gets 9
        worker/1 unkillable 4711
        lost node2                  # killed in the end
        worker/0 exits 0
        worker/0 gone
        closed node1
        """
    )
    assert played.exit_code == 125
    assert states(played) == {"worker/0": "succeeded: exit", "worker/1": "stopped: stopped"}


@pytest.mark.parametrize("history", ["ready node1", "up"])
def test_an_agent_that_closes_unasked_is_lost(history: str):
    played = Script(job("worker 1")).play(f"{history}\nclosed node1")
    assert played.exit_code == 125
    assert played.told[-1].removeprefix("host node1 is lost: ").removeprefix(
        "host node1 can't be used: "
    ) == ("its agent was ended from outside, and ends its tasks")


# ---------------------------------------------------------------------- hosts that do not answer


def test_no_agent_in_time():
    played = Script(job("worker 3"), hosts(3)).play(
        "ready node1\nheld node1\nready node2\ntime up ready\nclosed node1"
    )
    assert played.exit_code == 125
    assert played.told == tuple(
        f"host {name} can't be used: no answer from its agent in 60 s" for name in ("node2", "node3")
    )
    assert [hang.host for hang in played.all(events.HangUp)] == ["node2", "node3"]


def test_no_start_in_time():
    played = Script(job("worker 2"), hosts(2)).play(
        """
        ready node1
        ready node2
        held node1
        held node2
        worker/0 starts
        time up start
        worker/0 ends
        closed node1
        """
    )
    assert played.exit_code == 125
    assert played.told == ("host node2 is lost: its agent could not start a task in 60 s",)
    assert states(played)["worker/1"] == "lost: host lost"


def test_no_end_in_time():
    played = Script(job("worker 2"), hosts(2)).play(
        "up\nworker/0 exits 7\nworker/0 gone\ntime up end\nclosed node1"
    )
    assert played.exit_code == 7
    assert played.told[-1] == "host node2 is lost: its agent did not end the tasks"
    assert events.HangUp("node2") in played.orders


def test_no_close_in_time():
    played = Script(job("worker 2"), hosts(2)).play(
        "up\nCtrl-C\nworker/0 ends\nworker/1 ends\nclosed node1\ntime up close"
    )
    assert played.exit_code == 130
    assert played.told[-1] == "host node2 is lost: its agent did not close in 15 s"


# ---------------------------------------------------------------------- many


def test_500_tasks_on_50_hosts_cost_few_orders():
    script = Script(job("worker 496", "ps 4"), hosts(50))
    history = "\n".join(
        [
            "up",
            "worker/7 exits 7",
            "worker/7 gone",
            *(f"{t} ends" for t in script.host_of if t != "worker/7"),
            "closed",
        ]
    )
    played = script.play(history)
    assert played.exit_code == 7
    assert len(played.all(events.HoldPorts)) == 50
    assert len(played.all(events.MakePlan)) == 1
    assert len(played.all(events.StartTask)) == 500
    assert len(played.all(events.StopTasks)) == 50
    assert len(played.all(events.CloseAgent)) == 50
    assert len(played.orders) < 500 + 200
    assert max(len(step.orders) for step in played.steps[-600:] if step.fact) < 120


def test_500_tasks_that_all_end_well_cost_few_orders():
    names = [f"worker/{n}" for n in range(500)]
    lines = [line for name in names for line in (f"{name} exits 0", f"{name} gone")]
    played = Script(job("worker 500")).play("\n".join(["up", *lines, "closed"]))
    assert played.exit_code == 0
    assert len(played.orders) < 500 + 25


def test_a_job_without_tasks_is_over():
    played = Script(job("worker 0")).play("")
    assert played.exit_code == 0

"""Who may end by itself when the job is done; sidecars, whose ends are none of the job's."""

from __future__ import annotations

import pytest

from launcher import events
from launcher.report import Reason
from tests.histories.script import Script, after, hosts, job, states

DRAINING = ("worker 1", "evaluator 1 drain 60", "ps 1")

DONE = "up; worker/0 finishes 0; "


def timers(*found: events.Command) -> dict[str, float]:
    return {command.timer: command.seconds for command in found if isinstance(command, events.SetTimer)}


def stopped(*found: events.Command) -> list[str]:
    return [task for command in found if isinstance(command, events.StopTasks) for task in command.tasks]


def test_the_job_is_done_and_the_evaluator_goes_on():
    """Everybody else is stopped at once."""
    replay = Script(job(*DRAINING)).play("up; worker/0 exits 0")
    assert stopped(*after(replay)) == ["ps/0"]
    assert timers(*after(replay)) == {"patience": 2.0, "drain": 60.0}


def test_it_ends_by_itself():
    replay = Script(job(*DRAINING)).play(
        DONE + "ps/0 ends; evaluator/0 exits 0 @ 40; evaluator/0 gone; closed"
    )
    assert replay.exit_code == 0 and not replay.notices
    assert states(replay)["evaluator/0"] == "succeeded: exit"
    assert states(replay)["ps/0"] == "stopped: stopped"


def test_it_ended_before_the_job_was_done():
    replay = Script(job(*DRAINING)).play("up; evaluator/0 finishes 0; worker/0 exits 0")
    assert stopped(*after(replay)) == ["ps/0"]
    assert "drain" not in replay.timers


def test_waiting_is_said():
    replay = Script(job(*DRAINING)).play(DONE + "time up patience; time up patience")
    waiting = "waiting for evaluator/0 to finish"
    assert replay.notices == (f"{waiting} (58 s left)", f"{waiting} (48 s left)")


def test_its_time_is_over():
    script = Script(job(*DRAINING))
    replay = script.play(DONE + "ps/0 ends; time up drain")
    assert stopped(*after(replay)) == ["evaluator/0"]
    assert replay.notices == ("evaluator/0 did not finish within 60 s of the job's end: stopped",)
    replay = Script(job(*DRAINING)).play(DONE + "ps/0 ends; time up drain; evaluator/0 ends; closed")
    assert (replay.exit_code, states(replay)["evaluator/0"]) == (0, "stopped: stopped")


def test_nobody_is_told_twice():
    """Who is being ended already keeps the time that it has left."""
    replay = Script(job(*DRAINING)).play(DONE + "ps/0 gets 15; time up drain")
    assert stopped(*after(replay)) == ["evaluator/0"]


def test_each_role_has_its_own_time():
    spec = job("worker 1", "evaluator 1 drain 60", "ps 1 drain 20")
    replay = Script(spec).play("up; worker/0 exits 0")
    assert (stopped(*after(replay)), timers(*after(replay))["drain"]) == ([], 20.0)
    replay = Script(spec).play(DONE + "time up drain")
    assert (stopped(*after(replay)), timers(*after(replay))) == (["ps/0"], {"drain": 40.0})
    replay = Script(spec).play(DONE + "time up drain; ps/0 ends; time up drain")
    assert stopped(*after(replay)) == ["evaluator/0"]


def test_each_end_names_who_did_not_finish():
    """Of times, too, that no sum of others is."""
    spec = job("worker 1", "evaluator 1 drain 0.9", "ps 1 drain 0.2")
    replay = Script(spec).play(DONE + "time up drain; ps/0 ends; time up drain")
    assert replay.notices == (
        "ps/0 did not finish within 0.2 s of the job's end: stopped",
        "evaluator/0 did not finish within 0.9 s of the job's end: stopped",
    )


@pytest.mark.parametrize(
    ("what", "notices"),
    [
        ("Ctrl-C", "Ctrl-C: the job is done; stopping 2 tasks, up to 10 s; once more kills them at once"),
        ("time up job", "the time limit of 90 s is over: stopping 2 tasks"),
    ],
)
def test_what_ends_the_wait(what: str, notices: str):
    """The job was done, so it is a success."""
    script = Script(job(*DRAINING, timeout=90))
    replay = script.play(DONE + what)
    assert (stopped(*after(replay)), replay.notices) == (["evaluator/0"], (notices,))
    replay = Script(job(*DRAINING, timeout=90)).play(DONE + what + "; evaluator/0,ps/0 ends; closed")
    assert replay.exit_code == 0


def test_ctrl_c_does_not_wait_for_a_silent_host():
    """The end of its lease is far away. Nobody saw how its service ended, so it is no success."""
    script = Script(job(*DRAINING), hosts(3, slots=1))
    text = DONE + "ps/0 ends; Ctrl-C @ 5.0"
    replay = script.play(text)
    assert replay.timers["answer"] == 13.0
    replay = script.play(text + "; time up answer @ 18.0")
    where = script.host_of["evaluator/0"]
    assert [command.host for command in after(replay) if isinstance(command, events.HangUp)] == [where]
    assert replay.notices[-1] == f"host {where} is lost: its agent did not answer in 13 s"
    replay = script.play(text + "; time up answer @ 18.0; closed node1; closed node2; closed node3")
    assert replay.exit_code == 125
    answered = script.play(text + "; evaluator/0 ends; closed")
    assert answered.exit_code == 0


def test_ctrl_c_again_kills_at_once():
    replay = Script(job(*DRAINING)).play(DONE + "Ctrl-C; Ctrl-C @ 9")
    (stop,) = (command for command in after(replay) if isinstance(command, events.StopTasks))
    assert (set(stop.tasks), stop.ladder[0][0]) == ({"evaluator/0", "ps/0"}, 9)


def test_its_failure_is_the_job_s():
    replay = Script(job(*DRAINING)).play(DONE + "ps/0 ends; evaluator/0 finishes 3; closed")
    assert replay.exit_code == 3
    assert states(replay)["evaluator/0"] == "failed: exit"


def test_a_failure_ends_the_wait_for_the_others():
    spec = ("worker 1", "evaluator 1 drain 60", "ps 1 drain 60")
    replay = Script(job(*spec)).play(DONE + "ps/0 dies 11")
    assert stopped(*after(replay)) == ["evaluator/0"]
    going_on = Script(job(*spec, on_failure="continue")).play(DONE + "ps/0 dies 11")
    assert stopped(*after(going_on)) == []


def test_a_lost_host_ends_the_wait():
    script = Script(job("worker 1", "evaluator 1 drain 60", "ps 1 drain 60"), hosts(3, slots=1))
    where = script.host_of["ps/0"]
    assert where != script.host_of["evaluator/0"]
    replay = script.play(DONE + f"lost {where}")
    assert stopped(*after(replay)) == ["evaluator/0"]


def test_a_failed_job_waits_for_nobody():
    replay = Script(job(*DRAINING)).play("up; worker/0 exits 7")
    assert set(stopped(*after(replay))) == {"evaluator/0", "ps/0"}


# ---------------------------------------------------------------------- workers that a chief leaves

WORKING = ("chief 1", "worker 2 drain 60", "ps 1")

CHIEF_DONE = "up; chief/0 finishes 0; "


def test_a_worker_goes_on_when_the_chief_is_done_and_keeps_its_ps():
    replay = Script(job(*WORKING)).play(CHIEF_DONE + "worker/1 finishes 0")
    assert stopped(*replay.commands) == []
    replay = Script(job(*WORKING)).play(CHIEF_DONE + "worker/1 finishes 0; worker/0 exits 0")
    assert stopped(*after(replay)) == ["ps/0"]
    ends = "worker/1,worker/0 finishes 0; ps/0 ends; closed"
    replay = Script(job(*WORKING)).play(CHIEF_DONE + ends)
    assert (replay.exit_code, replay.notices) == (0, ())
    assert states(replay) == {
        "chief/0": "succeeded: exit", "worker/0": "succeeded: exit", "worker/1": "succeeded: exit",
        "ps/0": "stopped: stopped",
    }  # fmt: skip


def test_a_worker_of_another_host_that_ended_later_is_heard_earlier():
    """Of the chief's end and its own, whichever is answered first, its exit code counts."""
    for text in (
        "worker/0 exits 0 @ 5.2; chief/0 exits 0 @ 5.1",
        "chief/0 exits 0 @ 5.1; worker/0 exits 0 @ 5.2",
    ):
        replay = Script(job("chief 1", "worker 1 drain 60"), hosts(2, slots=1)).play("up; " + text)
        assert replay.report.tasks[1].reason is Reason.EXIT
    late = "chief/0 exits 0 @ 5.1; worker/0 exits 3 @ 5.2"
    replay = Script(job("chief 1", "worker 1 drain 60"), hosts(2, slots=1)).play("up; " + late)
    assert replay.report.exit_code == 3


def test_a_ps_stays_for_workers_though_its_own_time_is_over():
    spec = job("chief 1", "worker 1 drain 60", "ps 1 drain 20", "evaluator 1 drain 90")
    replay = Script(spec).play(CHIEF_DONE + "time up drain")
    assert (stopped(*replay.commands), replay.notices, replay.timers["drain"]) == ([], (), 40.0)
    replay = Script(spec).play(CHIEF_DONE + "time up drain; worker/0 exits 0")
    assert stopped(*after(replay)) == ["ps/0"]  # the evaluator has more time
    replay = Script(spec).play(CHIEF_DONE + "time up drain; time up drain")
    assert sorted(stopped(*after(replay))) == ["ps/0", "worker/0"]
    assert replay.notices == ("worker/0 did not finish within 60 s of the job's end: stopped",)


def test_who_ends_early_takes_nothing_of_the_time_of_others():
    spec = job("chief 1", "worker 1 drain 60", "evaluator 1 drain 300")
    replay = Script(spec).play(CHIEF_DONE + "worker/0 finishes 0; time up drain")
    assert (stopped(*replay.commands), replay.notices, replay.timers["drain"]) == ([], (), 240.0)
    replay = Script(spec).play(CHIEF_DONE + "worker/0 finishes 0; time up drain; time up drain")
    assert stopped(*after(replay)) == ["evaluator/0"]
    assert replay.notices == ("evaluator/0 did not finish within 300 s of the job's end: stopped",)


def test_a_chief_that_fails_is_told_as_it_is():
    spec = job("chief 1", "worker 1 drain 60", on_failure="continue")
    replay = Script(spec).play("up; chief/0 exits 3")
    assert stopped(*replay.commands) == []
    assert replay.notices == ("chief/0 failed on node1 after 0.0s: exit code 3; 1 task left",)


def test_a_worker_s_time_is_over():
    replay = Script(job(*WORKING)).play(CHIEF_DONE + "time up drain; worker/0,worker/1,ps/0 ends; closed")
    assert replay.notices == ("worker/0, worker/1 did not finish within 60 s of the job's end: stopped",)
    assert (replay.exit_code, states(replay)["worker/0"]) == (0, "stopped: stopped")


@pytest.mark.parametrize("task", ["worker/0", "ps/0"])
def test_what_fails_while_workers_go_on_is_the_job_s_failure(task: str):
    replay = Script(job(*WORKING)).play(CHIEF_DONE + f"{task} exits 3")
    assert sorted(stopped(*after(replay))) == sorted({"worker/0", "worker/1", "ps/0"} - {task})
    assert replay.report.exit_code == 3


def test_a_failed_chief_waits_for_no_worker():
    replay = Script(job(*WORKING)).play("up; chief/0 exits 7")
    assert set(stopped(*after(replay))) == {"worker/0", "worker/1", "ps/0"}


# ---------------------------------------------------------------------- what is said of --drain

HOLDS = "worker/1,worker/0,ps/0 gets 15; "
DRAIN = "`--drain 60s` allows it"


def test_who_holds_sigterm_when_the_chief_is_done_is_told_of_drain_once():
    history = CHIEF_DONE + HOLDS + "ps/0 gets 6; worker/0 gets 6; worker/1 gets 6"
    replay = Script(job("chief 1", "worker 2", "ps 1")).play(history)
    assert [DRAIN in text for text in replay.notices] == [False, True, False]
    assert replay.notices[1].startswith("worker/0 did not end on SIGTERM: sent SIGABRT")


@pytest.mark.parametrize(
    "history",
    [
        "up; Ctrl-C; " + HOLDS + "worker/0 gets 6",
        "up; chief/0 exits 7; " + HOLDS + "worker/0 gets 6",
        CHIEF_DONE + "worker/0 exits 0; " + HOLDS + "worker/0 gets 6",  # what it left behind
    ],
)
def test_where_drain_would_not_have_helped_it_is_not_told(history: str):
    replay = Script(job("chief 1", "worker 2", "ps 1")).play(history)
    assert "sent SIGABRT" in replay.notices[-1]
    assert not any(DRAIN in text for text in replay.notices)


def test_who_had_time_is_not_told_of_drain():
    replay = Script(job(*WORKING)).play(CHIEF_DONE + "time up drain; " + HOLDS + "worker/0 gets 6")
    assert "sent SIGABRT" in replay.notices[-1] and DRAIN not in replay.notices[-1]


# ---------------------------------------------------------------------- sidecars

SIDECAR = ("worker 1", "board 1 sidecar")


def test_a_sidecar_is_stopped_with_the_job():
    replay = Script(job(*SIDECAR)).play(DONE + "board/0 ends; closed")
    assert (replay.exit_code, states(replay)["board/0"]) == (0, "stopped: stopped")


@pytest.mark.parametrize(
    ("end", "notices", "state"),
    [
        ("exits 1", "board/0 failed on node1 after 0.0s: exit code 1; it is a sidecar:", "failed: exit"),
        (
            "dies 9",
            "board/0 failed on node1 after 0.0s: killed by SIGKILL; it is a sidecar:",
            "failed: signal",
        ),
        ("exits 0", "board/0 ended by itself (exit code 0) before the job was done", "succeeded: exit"),
    ],
)
def test_a_sidecar_s_end_is_none_of_the_job_s(end: str, notices: str, state: str):
    replay = Script(job(*SIDECAR)).play(f"up; board/0 {end}; board/0 gone; worker/0 finishes 0; closed")
    assert (replay.exit_code, replay.report.failure) == (0, None)
    assert states(replay)["board/0"] == state
    assert replay.notices[0].startswith(notices)


def test_a_sidecar_that_can_t_be_started():
    begun = "ready node1; held node1; worker/0 starts; board/0 cannot start 127; "
    text = begun + "worker/0 finishes 0; closed"
    replay = Script(job(*SIDECAR)).play(text)
    assert (replay.exit_code, states(replay)["board/0"]) == (0, "failed: not found")


def test_a_host_of_sidecars_alone_can_be_lost():
    spec = job(*SIDECAR)
    apart = spec._replace(roles=(spec.roles[0], spec.roles[1]._replace(hosts=("node2",))))
    replay = Script(apart, hosts(2)).play("up; lost node2; worker/0 finishes 0; closed")
    assert (replay.exit_code, states(replay)["board/0"]) == (0, "lost: host lost")
    assert [task.sidecar for task in replay.report.tasks] == [False, True]


def test_sidecars_stay_while_others_drain():
    replay = Script(job(*DRAINING, "board 1 sidecar")).play(DONE)
    assert stopped(*replay.commands) == ["ps/0"]
    replay = Script(job(*DRAINING, "board 1 sidecar")).play(DONE + "ps/0 ends; evaluator/0 exits 0")
    assert stopped(*after(replay)) == ["board/0"]

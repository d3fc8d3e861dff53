"""Who may end by itself when the job is done; sidecars, whose ends are none of the job's."""

from __future__ import annotations

import pytest

from launcher import events
from launcher.report import Reason
from tests.histories.script import Script, after, hosts, job, states

DRAINING = ("worker 1", "evaluator 1 drain 60", "ps 1")

DONE = """
up
worker/0 exits 0
worker/0 gone
"""


def timers(*found: events.Command) -> dict[str, float]:
    return {order.timer: order.seconds for order in found if isinstance(order, events.SetTimer)}


def stopped(*found: events.Command) -> list[str]:
    return [task for order in found if isinstance(order, events.StopTasks) for task in order.tasks]


def test_the_job_is_done_and_the_evaluator_goes_on():
    """Everybody else is stopped at once."""
    played = Script(job(*DRAINING)).play("up\nworker/0 exits 0")
    assert stopped(*after(played)) == ["ps/0"]
    assert timers(*after(played)) == {"patience": 2.0, "drain": 60.0}


def test_it_ends_by_itself():
    played = Script(job(*DRAINING)).play(
        DONE + "ps/0 ends\nevaluator/0 exits 0 @ 40\nevaluator/0 gone\nclosed"
    )
    assert played.exit_code == 0 and not played.told
    assert states(played)["evaluator/0"] == "succeeded: exit"
    assert states(played)["ps/0"] == "stopped: stopped"


def test_it_ended_before_the_job_was_done():
    played = Script(job(*DRAINING)).play("up\nevaluator/0 exits 0\nevaluator/0 gone\nworker/0 exits 0")
    assert stopped(*after(played)) == ["ps/0"]
    assert "drain" not in played.timers


def test_waiting_is_said():
    played = Script(job(*DRAINING)).play(DONE + "time up patience\ntime up patience")
    waiting = "waiting for evaluator/0 to finish"
    assert played.told == (f"{waiting} (58 s left)", f"{waiting} (48 s left)")


def test_its_time_is_over():
    script = Script(job(*DRAINING))
    played = script.play(DONE + "ps/0 ends\ntime up drain")
    assert stopped(*after(played)) == ["evaluator/0"]
    assert played.told == ("evaluator/0 did not finish within 60 s of the job's end: stopped",)
    played = Script(job(*DRAINING)).play(DONE + "ps/0 ends\ntime up drain\nevaluator/0 ends\nclosed")
    assert (played.exit_code, states(played)["evaluator/0"]) == (0, "stopped: stopped")


def test_nobody_is_told_twice():
    """Who is being ended already keeps the time that it has left."""
    played = Script(job(*DRAINING)).play(DONE + "ps/0 gets 15\ntime up drain")
    assert stopped(*after(played)) == ["evaluator/0"]


def test_each_role_has_its_own_time():
    spec = job("worker 1", "evaluator 1 drain 60", "ps 1 drain 20")
    played = Script(spec).play("up\nworker/0 exits 0")
    assert (stopped(*after(played)), timers(*after(played))["drain"]) == ([], 20.0)
    played = Script(spec).play(DONE + "time up drain")
    assert (stopped(*after(played)), timers(*after(played))) == (["ps/0"], {"drain": 40.0})
    played = Script(spec).play(DONE + "time up drain\nps/0 ends\ntime up drain")
    assert stopped(*after(played)) == ["evaluator/0"]


def test_each_end_names_who_did_not_finish():
    """Of times, too, that no sum of others is."""
    spec = job("worker 1", "evaluator 1 drain 0.9", "ps 1 drain 0.2")
    played = Script(spec).play(DONE + "time up drain\nps/0 ends\ntime up drain")
    assert played.told == (
        "ps/0 did not finish within 0.2 s of the job's end: stopped",
        "evaluator/0 did not finish within 0.9 s of the job's end: stopped",
    )


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("Ctrl-C", "Ctrl-C: the job is done; stopping 2 tasks, up to 10 s; once more kills them at once"),
        ("time up job", "the time limit of 90 s is over: stopping 2 tasks"),
    ],
)
def test_what_ends_the_wait(what: str, told: str):
    """The job was done, so it is a success."""
    script = Script(job(*DRAINING, timeout=90))
    played = script.play(DONE + what)
    assert (stopped(*after(played)), played.told) == (["evaluator/0"], (told,))
    played = Script(job(*DRAINING, timeout=90)).play(DONE + what + "\nevaluator/0 ends\nps/0 ends\nclosed")
    assert played.exit_code == 0


def test_ctrl_c_does_not_wait_for_a_silent_host():
    """The end of its lease is far away. Nobody saw how its service ended, so it is no success."""
    script = Script(job(*DRAINING), hosts(3, slots=1))
    text = DONE + "ps/0 ends\nCtrl-C @ 5.0"
    played = script.play(text)
    assert played.timers["answer"] == 13.0
    played = script.play(text + "\ntime up answer @ 18.0")
    where = script.host_of["evaluator/0"]
    assert [order.host for order in after(played) if isinstance(order, events.HangUp)] == [where]
    assert played.told[-1] == f"host {where} is lost: its agent did not answer in 13 s"
    played = script.play(text + "\ntime up answer @ 18.0\nclosed node1\nclosed node2\nclosed node3")
    assert played.exit_code == 125
    heard = script.play(text + "\nevaluator/0 ends\nclosed")
    assert heard.exit_code == 0


def test_ctrl_c_again_kills_at_once():
    played = Script(job(*DRAINING)).play(DONE + "Ctrl-C\nCtrl-C @ 9")
    (stop,) = (order for order in after(played) if isinstance(order, events.StopTasks))
    assert (set(stop.tasks), stop.ladder[0][0]) == ({"evaluator/0", "ps/0"}, 9)


def test_its_failure_is_the_job_s():
    played = Script(job(*DRAINING)).play(DONE + "ps/0 ends\nevaluator/0 exits 3\nevaluator/0 gone\nclosed")
    assert played.exit_code == 3
    assert states(played)["evaluator/0"] == "failed: exit"


def test_a_failure_ends_the_wait_for_the_others():
    spec = ("worker 1", "evaluator 1 drain 60", "ps 1 drain 60")
    played = Script(job(*spec)).play(DONE + "ps/0 dies 11")
    assert stopped(*after(played)) == ["evaluator/0"]
    going_on = Script(job(*spec, on_failure="continue")).play(DONE + "ps/0 dies 11")
    assert stopped(*after(going_on)) == []


def test_a_lost_host_ends_the_wait():
    script = Script(job("worker 1", "evaluator 1 drain 60", "ps 1 drain 60"), hosts(3, slots=1))
    where = script.host_of["ps/0"]
    assert where != script.host_of["evaluator/0"]
    played = script.play(DONE + f"lost {where}")
    assert stopped(*after(played)) == ["evaluator/0"]


def test_a_failed_job_waits_for_nobody():
    played = Script(job(*DRAINING)).play("up\nworker/0 exits 7")
    assert set(stopped(*after(played))) == {"evaluator/0", "ps/0"}


# ---------------------------------------------------------------------- workers that a chief leaves

WORKING = ("chief 1", "worker 2 drain 60", "ps 1")

CHIEF_DONE = """
up
chief/0 exits 0
chief/0 gone
"""


def test_a_worker_goes_on_when_the_chief_is_done_and_keeps_its_ps():
    played = Script(job(*WORKING)).play(CHIEF_DONE + "worker/1 exits 0\nworker/1 gone")
    assert stopped(*played.orders) == []
    played = Script(job(*WORKING)).play(CHIEF_DONE + "worker/1 exits 0\nworker/1 gone\nworker/0 exits 0")
    assert stopped(*after(played)) == ["ps/0"]
    ends = "worker/1 exits 0\nworker/1 gone\nworker/0 exits 0\nworker/0 gone\nps/0 ends\nclosed"
    played = Script(job(*WORKING)).play(CHIEF_DONE + ends)
    assert (played.exit_code, played.told) == (0, ())
    assert states(played) == {
        "chief/0": "succeeded: exit", "worker/0": "succeeded: exit", "worker/1": "succeeded: exit",
        "ps/0": "stopped: stopped",
    }  # fmt: skip


def test_a_worker_of_another_host_that_ended_later_is_heard_earlier():
    """Of the chief's end and its own, whichever is heard first, its exit code counts."""
    for text in (
        "worker/0 exits 0 @ 5.2\nchief/0 exits 0 @ 5.1",
        "chief/0 exits 0 @ 5.1\nworker/0 exits 0 @ 5.2",
    ):
        played = Script(job("chief 1", "worker 1 drain 60"), hosts(2, slots=1)).play("up\n" + text)
        assert played.report.tasks[1].reason is Reason.EXIT
    late = "chief/0 exits 0 @ 5.1\nworker/0 exits 3 @ 5.2"
    played = Script(job("chief 1", "worker 1 drain 60"), hosts(2, slots=1)).play("up\n" + late)
    assert played.report.exit_code == 3


def test_a_ps_stays_for_workers_though_its_own_time_is_over():
    spec = job("chief 1", "worker 1 drain 60", "ps 1 drain 20", "evaluator 1 drain 90")
    played = Script(spec).play(CHIEF_DONE + "time up drain")
    assert (stopped(*played.orders), played.told, played.timers["drain"]) == ([], (), 40.0)
    played = Script(spec).play(CHIEF_DONE + "time up drain\nworker/0 exits 0")
    assert stopped(*after(played)) == ["ps/0"]  # the evaluator has more time
    played = Script(spec).play(CHIEF_DONE + "time up drain\ntime up drain")
    assert sorted(stopped(*after(played))) == ["ps/0", "worker/0"]
    assert played.told == ("worker/0 did not finish within 60 s of the job's end: stopped",)


def test_who_ends_early_takes_nothing_of_the_time_of_others():
    spec = job("chief 1", "worker 1 drain 60", "evaluator 1 drain 300")
    played = Script(spec).play(CHIEF_DONE + "worker/0 exits 0\nworker/0 gone\ntime up drain")
    assert (stopped(*played.orders), played.told, played.timers["drain"]) == ([], (), 240.0)
    played = Script(spec).play(CHIEF_DONE + "worker/0 exits 0\nworker/0 gone\ntime up drain\ntime up drain")
    assert stopped(*after(played)) == ["evaluator/0"]
    assert played.told == ("evaluator/0 did not finish within 300 s of the job's end: stopped",)


def test_a_chief_that_fails_is_told_as_it_is():
    spec = job("chief 1", "worker 1 drain 60", on_failure="continue")
    played = Script(spec).play("up\nchief/0 exits 3")
    assert stopped(*played.orders) == []
    assert played.told == ("chief/0 failed on node1 after 0.0s: exit code 3; 1 task left",)


def test_a_worker_s_time_is_over():
    played = Script(job(*WORKING)).play(
        CHIEF_DONE + "time up drain\nworker/0 ends\nworker/1 ends\nps/0 ends\nclosed"
    )
    assert played.told == ("worker/0, worker/1 did not finish within 60 s of the job's end: stopped",)
    assert (played.exit_code, states(played)["worker/0"]) == (0, "stopped: stopped")


@pytest.mark.parametrize("who", ["worker/0", "ps/0"])
def test_what_fails_while_workers_go_on_is_the_job_s_failure(who: str):
    played = Script(job(*WORKING)).play(CHIEF_DONE + f"{who} exits 3")
    assert sorted(stopped(*after(played))) == sorted({"worker/0", "worker/1", "ps/0"} - {who})
    assert played.report.exit_code == 3


def test_a_failed_chief_waits_for_no_worker():
    played = Script(job(*WORKING)).play("up\nchief/0 exits 7")
    assert set(stopped(*after(played))) == {"worker/0", "worker/1", "ps/0"}


# ---------------------------------------------------------------------- what is said of --drain

HOLDS = "worker/1 gets 15\nworker/0 gets 15\nps/0 gets 15\n"
DRAIN = "`--drain 60s` allows it"


def test_who_holds_sigterm_when_the_chief_is_done_is_told_of_drain_once():
    history = CHIEF_DONE + HOLDS + "ps/0 gets 6\nworker/0 gets 6\nworker/1 gets 6"
    played = Script(job("chief 1", "worker 2", "ps 1")).play(history)
    assert [DRAIN in text for text in played.told] == [False, True, False]
    assert played.told[1].startswith("worker/0 did not end on SIGTERM: sent SIGABRT")


@pytest.mark.parametrize(
    "history",
    [
        "up\nCtrl-C\n" + HOLDS + "worker/0 gets 6",
        "up\nchief/0 exits 7\n" + HOLDS + "worker/0 gets 6",
        CHIEF_DONE + "worker/0 exits 0\n" + HOLDS + "worker/0 gets 6",  # what it left behind
    ],
)
def test_where_drain_would_not_have_helped_it_is_not_told(history: str):
    played = Script(job("chief 1", "worker 2", "ps 1")).play(history)
    assert "sent SIGABRT" in played.told[-1]
    assert not any(DRAIN in text for text in played.told)


def test_who_had_time_is_not_told_of_drain():
    played = Script(job(*WORKING)).play(CHIEF_DONE + "time up drain\n" + HOLDS + "worker/0 gets 6")
    assert "sent SIGABRT" in played.told[-1] and DRAIN not in played.told[-1]


# ---------------------------------------------------------------------- sidecars

SIDECAR = ("worker 1", "board 1 sidecar")


def test_a_sidecar_is_stopped_with_the_job():
    played = Script(job(*SIDECAR)).play(DONE + "board/0 ends\nclosed")
    assert (played.exit_code, states(played)["board/0"]) == (0, "stopped: stopped")


@pytest.mark.parametrize(
    ("end", "told", "state"),
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
def test_a_sidecar_s_end_is_none_of_the_job_s(end: str, told: str, state: str):
    played = Script(job(*SIDECAR)).play(
        f"up\nboard/0 {end}\nboard/0 gone\nworker/0 exits 0\nworker/0 gone\nclosed"
    )
    assert (played.exit_code, played.report.failure) == (0, None)
    assert states(played)["board/0"] == state
    assert played.told[0].startswith(told)


def test_a_sidecar_that_can_t_be_started():
    begun = "ready node1\nheld node1\nworker/0 starts\nboard/0 cannot start 127\n"
    text = begun + "worker/0 exits 0\nworker/0 gone\nclosed"
    played = Script(job(*SIDECAR)).play(text)
    assert (played.exit_code, states(played)["board/0"]) == (0, "failed: not found")


def test_a_host_of_sidecars_alone_can_be_lost():
    spec = job(*SIDECAR)
    apart = spec._replace(roles=(spec.roles[0], spec.roles[1]._replace(hosts=("node2",))))
    played = Script(apart, hosts(2)).play("up\nlost node2\nworker/0 exits 0\nworker/0 gone\nclosed")
    assert (played.exit_code, states(played)["board/0"]) == (0, "lost: host lost")
    assert [task.sidecar for task in played.report.tasks] == [False, True]


def test_sidecars_stay_while_others_drain():
    played = Script(job(*DRAINING, "board 1 sidecar")).play(DONE)
    assert stopped(*played.orders) == ["ps/0"]
    played = Script(job(*DRAINING, "board 1 sidecar")).play(DONE + "ps/0 ends\nevaluator/0 exits 0")
    assert stopped(*after(played)) == ["board/0"]

"""How jobs end because the user or the clock says so."""

from __future__ import annotations

import pytest

from launcher import events
from launcher.report import Reason
from launcher.supervisor.ending import CLOSE_LIMIT
from launcher.supervisor.requests import READY_LIMIT, START_LIMIT
from launcher.supervisor.state import PATIENCE, REPEAT
from tests.histories.script import Script, after, hosts, job, states

TERM_ABRT_KILL = ((15, 10.0), (6, 2.0), (9, 5.0))
KILL = ((9, 5.0),)


def ladders(played) -> list[events.Ladder]:
    """Of all stop orders."""
    return [stop.ladder for stop in played.all(events.StopTasks)]


# ---------------------------------------------------------------------- the user


@pytest.mark.parametrize(("signal", "code"), [("Ctrl-C", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_asked_once_ends_it_in_order(signal: str, code: int):
    played = Script(job("worker 2")).play(f"up\n{signal}\nworker/0 ends\nworker/1 ends\nclosed")
    assert played.exit_code == code
    assert ladders(played) == [TERM_ABRT_KILL]
    assert states(played) == {"worker/0": "stopped: stopped", "worker/1": "stopped: stopped"}
    assert played.report.failure is not None
    assert (played.report.failure.reason, played.report.failure.task) == (Reason.INTERRUPTED, None)
    assert played.report.failure.text == f"stopped by {signal}"
    again = "Ctrl-C" if signal == "SIGHUP" else "once more"  # a terminal is closed only once
    assert played.told == (f"{signal}: stopping 2 tasks, up to 10 s; {again} kills them at once",)


def test_asked_twice_kills_at_once():
    script = Script(job("worker 2"))
    played = script.play("up\nworker/0 exits 0\nCtrl-C @ 5.0\nCtrl-C @ 5.3")
    assert ladders(played) == [TERM_ABRT_KILL, KILL]
    assert [stop.tasks for stop in played.all(events.StopTasks)] == [
        ("worker/1",),
        ("worker/0", "worker/1"),  # also what is left of one that has exited
    ]
    assert played.told[1] == "Ctrl-C again: killing what is left of 2 tasks at once"
    assert played.timers["end"] == 15.0
    assert played.report.exit_code == 130


def test_who_does_not_answer_somebody_in_a_hurry_is_lost():
    """His agent is stopped, or stuck; the other's has said something."""
    script = Script(job("worker 2"), hosts(2))
    played = script.play("up\nCtrl-C @ 5.0\nCtrl-C @ 5.3\nworker/0 ends\ntime up answer @ 6.3")
    assert [order.host for order in after(played) if isinstance(order, events.HangUp)] == ["node2"]
    assert states(played) == {"worker/0": "stopped: stopped", "worker/1": "lost: host lost"}
    assert "its agent did not answer in 1 s" in played.told[-1]
    assert played.report.exit_code == 130


def test_who_has_not_answered_before_is_lost_when_somebody_is_in_a_hurry():
    """The network to it is cut: nobody waits for it again."""
    played = Script(job("worker 2"), hosts(2)).play("up\nCtrl-C @ 5.0\nworker/0 gets 15\nCtrl-C @ 7.0")
    assert [order.host for order in after(played) if isinstance(order, events.HangUp)] == ["node2"]
    assert states(played)["worker/1"] == "lost: host lost"
    assert "host node2 is lost: its agent did not answer in " in played.told[-1]


def test_who_does_not_answer_somebody_patient_is_lost_after_the_grace():
    """The reachable host has its grace; for the other the end of its lease is not waited for."""
    script = Script(job("worker 2"), hosts(2))
    played = script.play("up\nCtrl-C @ 5.0\nworker/0 ends")
    assert played.timers["answer"] == 13.0
    played = script.play("up\nCtrl-C @ 5.0\nworker/0 ends\ntime up answer @ 18.0\nclosed node1")
    assert states(played) == {"worker/0": "stopped: stopped", "worker/1": "lost: host lost"}
    assert played.told[-1] == "host node2 is lost: its agent did not answer in 13 s"
    assert played.exit_code == 130


def test_after_an_end_at_once_no_answer_is_awaited():
    played = Script(job("worker 1")).play("up\nCtrl-C @ 5.0\nCtrl-C @ 5.3\nworker/0 ends")
    assert "answer" not in played.timers


def test_two_signals_within_a_moment_are_one_wish():
    """GNU ``timeout`` signals its command and then its command's whole group."""
    played = Script(job("worker 1")).play("up\nSIGTERM @ 5.0\nSIGTERM @ 5.001\nSIGTERM @ 5.01")
    assert ladders(played) == [TERM_ABRT_KILL]
    assert not after(played, 2)


def test_asked_a_third_time_says_what_is_awaited_and_moves_no_timer():
    played = Script(job("worker 2")).play("up\nCtrl-C @ 5\nCtrl-C @ 5.5\nCtrl-C @ 6")
    assert ladders(played) == [TERM_ABRT_KILL, KILL]
    (tell,) = after(played)
    assert tell.text == "Ctrl-C again: they were killed; waiting for worker/0, worker/1 to end"


def test_ctrl_c_while_agents_come_up():
    played = Script(job("worker 3"), hosts(3)).play("ready node1\nready node2\nheld node1\nCtrl-C\nclosed")
    assert played.exit_code == 130
    assert not played.all(events.StartTask) and not played.all(events.StopTasks)
    assert [close.host for close in played.all(events.CloseAgent)] == ["node1", "node2", "node3"]
    assert set(states(played).values()) == {"cancelled: never started"}
    assert played.told == ("Ctrl-C: no task was started yet",)


def test_an_agent_that_comes_up_after_the_end_is_told_to_close():
    """Its link may have been opened when the others had been told already."""
    played = Script(job("worker 2"), hosts(2)).play("ready node1\nCtrl-C\nheld node1\nready node2")
    assert after(played, 2) == (events.CloseAgent("node2"),)


def test_ctrl_c_after_a_failure_hurries_and_keeps_its_exit_code():
    played = Script(job("worker 2")).play("up\nworker/0 exits 7\nCtrl-C\nworker/0 gone\nworker/1 dies 9")
    assert ladders(played) == [TERM_ABRT_KILL, KILL]
    assert played.told[-1] == "Ctrl-C: killing what is left of 2 tasks at once"
    assert played.report.exit_code == 7


def test_ctrl_c_after_success_hurries_and_it_stays_a_success():
    played = Script(job("worker 1", "ps 1")).play(
        """
        up
        worker/0 exits 0
        Ctrl-C
        worker/0 gone
        ps/0 gets 15
        ps/0 gets 9
        ps/0 dies 9
        ps/0 gone
        closed
        """
    )
    assert ladders(played) == [TERM_ABRT_KILL, KILL]
    assert played.exit_code == 0


def test_a_task_that_had_failed_before_ctrl_c_is_the_cause():
    played = Script(job("worker 2"), hosts(2)).play("up\nCtrl-C @ 5.0\nworker/0 exits 7 @ 4.99")
    assert played.report.exit_code == 7


def test_a_task_that_fails_after_ctrl_c_is_not():
    played = Script(job("worker 2"), hosts(2)).play("up\nCtrl-C @ 5.0\nworker/0 exits 7 @ 5.01")
    assert played.report.exit_code == 130


def test_ctrl_c_while_agents_close_waits_no_longer():
    script = Script(job("worker 2"), hosts(2))
    played = script.play("up\nCtrl-C @ 5\nworker/0 ends\nworker/1 ends\nclosed node1\nCtrl-C @ 6")
    tell, hang_up, finish = after(played)
    assert tell.text == "Ctrl-C again: not waiting for the agent on node2 to close"
    assert (hang_up, finish) == (events.HangUp("node2"), events.Finish(130))


def test_ctrl_c_with_grace_0():
    played = Script(job("worker 1", grace=0)).play("up\nCtrl-C")
    assert ladders(played) == [KILL]
    assert played.told == ("Ctrl-C: stopping 1 task",)


def test_a_failure_before_ctrl_c_under_continue_stays_the_cause():
    played = Script(job("worker 2", on_failure="continue")).play("up\nworker/0 exits 7\nCtrl-C")
    assert ladders(played) == [TERM_ABRT_KILL]
    assert played.report.exit_code == 7


# ---------------------------------------------------------------------- the time limit


def test_time_limit_while_it_runs():
    played = Script(job("worker 2", timeout=60)).play(
        "up\ntime up job\nworker/0 ends\nworker/1 ends\nclosed",
    )
    assert played.exit_code == 124
    assert ladders(played) == [TERM_ABRT_KILL]
    assert played.told == ("the time limit of 60 s is over: stopping 2 tasks",)
    assert played.report.failure is not None and played.report.failure.reason is Reason.TIMEOUT
    assert played.report.failure.text == "the job took longer than its time limit of 60 s"


def test_the_time_limit_tells_who_hung():
    """Who waits for whom in a hang is half of its cause."""
    played = Script(job("worker 3", "ps 1", timeout=60)).play("up\nworker/1 exits 0 @ 108.7\ntime up job")
    assert played.report.failure is not None
    text = "the job took longer than its time limit of 60 s; worker/1 ended after"
    assert played.report.failure.text.startswith(text)
    assert played.report.failure.text.endswith("s, worker/0, worker/2 went on")
    assert "faulthandler" in played.report.failure.hint


def test_who_had_ended_before_the_first_that_failed():
    """It may be the cause: what is computed together waits for all, for a while."""
    history = "up\nps/0 exits 0\nworker/2 exits 0 @ 101\nworker/0 exits 0 @ 108.5\nworker/1 exits 1 @ 112"
    played = Script(job("worker 3", "ps 1")).play(history)
    assert played.report.failure is not None
    assert played.report.failure.hint == (
        "worker/0, worker/2 had ended with 0, 3.5s before: "
        "tasks that communicate collectively must end together"
    )
    crossed = Script(job("worker 2")).play("up\nworker/0 exits 0 @ 112\nworker/1 exits 1 @ 111")
    assert crossed.report.failure is not None and crossed.report.failure.hint == ""
    late = Script(job("worker 2")).play("up\nworker/0 exits 0 @ 112\nworker/1 exits 1 @ 4000")
    assert late.report.failure is not None and late.report.failure.hint == ""
    played = Script(job("worker 2", "ps 1")).play("up\nworker/0 exits 0\nps/0 exits 1")
    assert played.report.failure is not None and played.report.failure.hint == ""


def test_time_limit_while_agents_come_up():
    played = Script(job("worker 2", timeout=5), hosts(2)).play("ready node1\ntime up job\nclosed")
    assert played.exit_code == 124
    assert played.told == ("the time limit of 5 s is over: no task was started yet",)


@pytest.mark.parametrize("end", ["worker/0 exits 0", "worker/0 exits 7", "Ctrl-C"])
def test_no_time_limit_once_it_ends(end: str):
    played = Script(job("worker 2", "chief 1", timeout=5)).play(f"up\nchief/0 exits 0\n{end}")
    assert "job" not in played.timers


def test_a_failure_before_the_time_limit_stays_the_cause():
    played = Script(job("worker 2", on_failure="continue", timeout=5)).play(
        "up\nworker/0 exits 7\ntime up job"
    )
    assert ladders(played) == [TERM_ABRT_KILL]
    assert played.report.exit_code == 7


# ---------------------------------------------------------------------- every wait has a name and an end

WAITS = [
    ("", {"ready": READY_LIMIT}, "waiting for the agent on node1, node2"),
    ("ready node1\nheld node1", {"ready": READY_LIMIT}, "waiting for the agent on node2"),
    (
        "ready node1\nready node2\nheld node1\nheld node2\nworker/1 starts",
        {"start": START_LIMIT},
        "waiting for worker/0, worker/2 to start",
    ),
    ("up\nworker/1 exits 7\nworker/1 gone", {"end": 27.0}, "waiting for worker/0, worker/2 to end"),
    (
        "up\nCtrl-C\nworker/0 ends\nworker/1 ends\nworker/2 ends\nclosed node1",
        {"close": CLOSE_LIMIT},
        "waiting for the agent on node2 to close",
    ),
]


@pytest.mark.parametrize(("history", "timer", "told"), WAITS)
def test_each_wait_has_a_name_and_an_end(history: str, timer: dict[str, float], told: str):
    script = Script(job("worker 3"), hosts(2))
    played = script.play(history)
    assert dict(played.timers) == {**timer, "patience": PATIENCE}
    played = Script(job("worker 3"), hosts(2)).play(f"{history}\ntime up patience\ntime up patience")
    assert after(played) == (events.Tell(told), events.SetTimer("patience", REPEAT))


def test_a_job_that_runs_is_not_waited_for():
    assert not Script(job("worker 3")).play("up").timers


def test_many_are_not_all_named():
    played = Script(job("worker 9")).play("up\nCtrl-C\ntime up patience")
    assert played.told[-1] == "waiting for worker/0, worker/1, worker/2, worker/3 and 5 more to end"


# ---------------------------------------------------------------------- what does not go by itself


def test_who_does_not_end_on_sigterm_is_told():
    lines = [f"worker/{n} gets 6" for n in range(6)]
    played = Script(job("worker 6")).play("\n".join(["up", "Ctrl-C", *lines]))
    told = " did not end on SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
    assert played.told[1:] == tuple(who + told for who in ("worker/0", "worker/1", "worker/2", "more tasks"))


def test_leftovers_that_do_not_end_on_sigterm_are_told_as_such():
    played = Script(job("worker 2", on_failure="continue")).play(
        "up\nworker/0 exits 0\nworker/0 gets 15\nworker/0 gets 6\nworker/0 left 1"
    )
    assert played.told == (
        "a process that worker/0 left behind did not end on SIGTERM: sent SIGABRT, "
        "so that Python shows its stacks; SIGKILL is next",
        "worker/0 left 1 process behind: ended by us",
    )
    assert states(played)["worker/0"] == "succeeded: exit"


def test_whom_we_kill_leaves_nothing_behind():
    """It had no time to end its own processes: that is no news of the program's."""
    played = Script(job("worker 1", grace=0)).play(
        "up\nCtrl-C\nworker/0 gets 9\nworker/0 dies 9\nworker/0 left 1"
    )
    assert played.told == ("Ctrl-C: stopping 1 task",)


def test_an_unkillable_task_is_told_and_the_job_ends():
    played = Script(job("worker 2"), hosts(2)).play(
        """
        up
        worker/0 exits 7
        worker/0 gone
        worker/1 gets 15
        worker/1 gets 9
        worker/1 unkillable 4711
        closed
        """
    )
    assert played.exit_code == 7
    tell = played.all(events.Tell)[-1]
    assert tell == events.Tell("worker/1: SIGKILL did not end pid 4711 on node2", urgent=True)
    assert states(played)["worker/1"] == "stopped: stopped"
    assert played.report.tasks[1].detail == "SIGKILL did not end it"
    assert played.report.tasks[1].unkillable == (4711,)

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


def sequences(replay) -> list[events.Ladder]:
    """Of all stop commands."""
    return [stop.ladder for stop in replay.all(events.StopTasks)]


# ---------------------------------------------------------------------- the user


@pytest.mark.parametrize(("signal", "code"), [("Ctrl-C", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_asked_once_ends_it_in_order(signal: str, code: int):
    replay = Script(job("worker 2")).play(f"up; {signal}; worker/0,worker/1 ends; closed")
    assert replay.exit_code == code
    assert sequences(replay) == [TERM_ABRT_KILL]
    assert states(replay) == {"worker/0": "stopped: stopped", "worker/1": "stopped: stopped"}
    assert replay.report.failure is not None
    assert (replay.report.failure.reason, replay.report.failure.task) == (Reason.INTERRUPTED, None)
    assert replay.report.failure.text == f"stopped by {signal}"
    again = "Ctrl-C" if signal == "SIGHUP" else "once more"  # a terminal is closed only once
    assert replay.notices == (f"{signal}: stopping 2 tasks, up to 10 s; {again} kills them at once",)


def test_asked_twice_kills_at_once():
    script = Script(job("worker 2"))
    replay = script.play("up; worker/0 exits 0; Ctrl-C @ 5.0; Ctrl-C @ 5.3")
    assert sequences(replay) == [TERM_ABRT_KILL, KILL]
    assert [stop.tasks for stop in replay.all(events.StopTasks)] == [
        ("worker/1",),
        ("worker/0", "worker/1"),  # also what is left of one that has exited
    ]
    assert replay.notices[1] == "Ctrl-C again: killing what is left of 2 tasks at once"
    assert replay.timers["end"] == 15.0
    assert replay.report.exit_code == 130


def test_who_does_not_answer_somebody_in_a_hurry_is_lost():
    """His agent is stopped, or stuck; the other's has said something."""
    script = Script(job("worker 2"), hosts(2))
    replay = script.play("up; Ctrl-C @ 5.0; Ctrl-C @ 5.3; worker/0 ends; time up answer @ 6.3")
    assert [command.host for command in after(replay) if isinstance(command, events.HangUp)] == ["node2"]
    assert states(replay) == {"worker/0": "stopped: stopped", "worker/1": "lost: host lost"}
    assert "its agent did not answer in 1 s" in replay.notices[-1]
    assert replay.report.exit_code == 130


def test_who_has_not_answered_before_is_lost_when_somebody_is_in_a_hurry():
    """The network to it is cut: nobody waits for it again."""
    replay = Script(job("worker 2"), hosts(2)).play("up; Ctrl-C @ 5.0; worker/0 gets 15; Ctrl-C @ 7.0")
    assert [command.host for command in after(replay) if isinstance(command, events.HangUp)] == ["node2"]
    assert states(replay)["worker/1"] == "lost: host lost"
    assert "host node2 is lost: its agent did not answer in " in replay.notices[-1]


def test_who_does_not_answer_somebody_patient_is_lost_after_the_grace():
    """The reachable host has its grace; for the other the end of its lease is not waited for."""
    script = Script(job("worker 2"), hosts(2))
    replay = script.play("up; Ctrl-C @ 5.0; worker/0 ends")
    assert replay.timers["answer"] == 13.0
    replay = script.play("up; Ctrl-C @ 5.0; worker/0 ends; time up answer @ 18.0; closed node1")
    assert states(replay) == {"worker/0": "stopped: stopped", "worker/1": "lost: host lost"}
    assert replay.notices[-1] == "host node2 is lost: its agent did not answer in 13 s"
    assert replay.exit_code == 130


def test_after_an_end_at_once_no_answer_is_awaited():
    replay = Script(job("worker 1")).play("up; Ctrl-C @ 5.0; Ctrl-C @ 5.3; worker/0 ends")
    assert "answer" not in replay.timers


def test_two_signals_within_a_moment_are_one_wish():
    """GNU ``timeout`` signals its command and then its command's whole group."""
    replay = Script(job("worker 1")).play("up; SIGTERM @ 5.0; SIGTERM @ 5.001; SIGTERM @ 5.01")
    assert sequences(replay) == [TERM_ABRT_KILL]
    assert not after(replay, 2)


def test_asked_a_third_time_says_what_is_awaited_and_moves_no_timer():
    replay = Script(job("worker 2")).play("up; Ctrl-C @ 5; Ctrl-C @ 5.5; Ctrl-C @ 6")
    assert sequences(replay) == [TERM_ABRT_KILL, KILL]
    (notice,) = after(replay)
    assert notice.text == "Ctrl-C again: they were killed; waiting for worker/0, worker/1 to end"


def test_ctrl_c_while_agents_come_up():
    replay = Script(job("worker 3"), hosts(3)).play("ready node1; ready node2; held node1; Ctrl-C; closed")
    assert replay.exit_code == 130
    assert not replay.all(events.StartTask) and not replay.all(events.StopTasks)
    assert [close.host for close in replay.all(events.CloseAgent)] == ["node1", "node2", "node3"]
    assert set(states(replay).values()) == {"cancelled: never started"}
    assert replay.notices == ("Ctrl-C: no task was started yet",)


def test_an_agent_that_comes_up_after_the_end_is_told_to_close():
    """Its link may have been opened when the others had been notices already."""
    replay = Script(job("worker 2"), hosts(2)).play("ready node1; Ctrl-C; held node1; ready node2")
    assert after(replay, 2) == (events.CloseAgent("node2"),)


def test_ctrl_c_after_a_failure_hurries_and_keeps_its_exit_code():
    replay = Script(job("worker 2")).play("up; worker/0 exits 7; Ctrl-C; worker/0 gone; worker/1 dies 9")
    assert sequences(replay) == [TERM_ABRT_KILL, KILL]
    assert replay.notices[-1] == "Ctrl-C: killing what is left of 2 tasks at once"
    assert replay.report.exit_code == 7


def test_ctrl_c_after_success_hurries_and_it_stays_a_success():
    replay = Script(job("worker 1", "ps 1")).play(
        "up; worker/0 exits 0; Ctrl-C; worker/0 gone; "
        "ps/0 gets 15; ps/0 gets 9; ps/0 dies 9; ps/0 gone; closed"
    )
    assert sequences(replay) == [TERM_ABRT_KILL, KILL]
    assert replay.exit_code == 0


def test_a_task_that_had_failed_before_ctrl_c_is_the_cause():
    replay = Script(job("worker 2"), hosts(2)).play("up; Ctrl-C @ 5.0; worker/0 exits 7 @ 4.99")
    assert replay.report.exit_code == 7


def test_a_task_that_fails_after_ctrl_c_is_not():
    replay = Script(job("worker 2"), hosts(2)).play("up; Ctrl-C @ 5.0; worker/0 exits 7 @ 5.01")
    assert replay.report.exit_code == 130


def test_ctrl_c_while_agents_close_waits_no_longer():
    script = Script(job("worker 2"), hosts(2))
    replay = script.play("up; Ctrl-C @ 5; worker/0,worker/1 ends; closed node1; Ctrl-C @ 6")
    notice, hang_up, finish = after(replay)
    assert notice.text == "Ctrl-C again: not waiting for the agent on node2 to close"
    assert (hang_up, finish) == (events.HangUp("node2"), events.Finish(130))


def test_ctrl_c_with_grace_0():
    replay = Script(job("worker 1", grace=0)).play("up; Ctrl-C")
    assert sequences(replay) == [KILL]
    assert replay.notices == ("Ctrl-C: stopping 1 task",)


def test_a_failure_before_ctrl_c_under_continue_stays_the_cause():
    replay = Script(job("worker 2", on_failure="continue")).play("up; worker/0 exits 7; Ctrl-C")
    assert sequences(replay) == [TERM_ABRT_KILL]
    assert replay.report.exit_code == 7


# ---------------------------------------------------------------------- the time limit


def test_time_limit_while_it_runs():
    replay = Script(job("worker 2", timeout=60)).play(
        "up; time up job; worker/0,worker/1 ends; closed",
    )
    assert replay.exit_code == 124
    assert sequences(replay) == [TERM_ABRT_KILL]
    assert replay.notices == ("the time limit of 60 s is over: stopping 2 tasks",)
    assert replay.report.failure is not None and replay.report.failure.reason is Reason.TIMEOUT
    assert replay.report.failure.text == "the job took longer than its time limit of 60 s"


def test_the_time_limit_tells_who_hung():
    """Who waits for whom in a hang is half of its cause."""
    replay = Script(job("worker 3", "ps 1", timeout=60)).play("up; worker/1 exits 0 @ 108.7; time up job")
    assert replay.report.failure is not None
    text = "the job took longer than its time limit of 60 s; worker/1 ended after"
    assert replay.report.failure.text.startswith(text)
    assert replay.report.failure.text.endswith("s, worker/0, worker/2 went on")
    assert "faulthandler" in replay.report.failure.hint


def test_who_had_ended_before_the_first_that_failed():
    """It may be the cause: what is computed together waits for all, for a while."""
    history = "up; ps/0 exits 0; worker/2 exits 0 @ 101; worker/0 exits 0 @ 108.5; worker/1 exits 1 @ 112"
    replay = Script(job("worker 3", "ps 1")).play(history)
    assert replay.report.failure is not None
    assert replay.report.failure.hint == (
        "worker/0, worker/2 had ended with 0, 3.5s before: "
        "tasks that communicate collectively must end together"
    )
    crossed = Script(job("worker 2")).play("up; worker/0 exits 0 @ 112; worker/1 exits 1 @ 111")
    assert crossed.report.failure is not None and crossed.report.failure.hint == ""
    late = Script(job("worker 2")).play("up; worker/0 exits 0 @ 112; worker/1 exits 1 @ 4000")
    assert late.report.failure is not None and late.report.failure.hint == ""
    replay = Script(job("worker 2", "ps 1")).play("up; worker/0 exits 0; ps/0 exits 1")
    assert replay.report.failure is not None and replay.report.failure.hint == ""


def test_time_limit_while_agents_come_up():
    replay = Script(job("worker 2", timeout=5), hosts(2)).play("ready node1; time up job; closed")
    assert replay.exit_code == 124
    assert replay.notices == ("the time limit of 5 s is over: no task was started yet",)


@pytest.mark.parametrize("end", ["worker/0 exits 0", "worker/0 exits 7", "Ctrl-C"])
def test_no_time_limit_once_it_ends(end: str):
    replay = Script(job("worker 2", "chief 1", timeout=5)).play(f"up; chief/0 exits 0; {end}")
    assert "job" not in replay.timers


def test_a_failure_before_the_time_limit_stays_the_cause():
    replay = Script(job("worker 2", on_failure="continue", timeout=5)).play(
        "up; worker/0 exits 7; time up job"
    )
    assert sequences(replay) == [TERM_ABRT_KILL]
    assert replay.report.exit_code == 7


# ---------------------------------------------------------------------- every wait has a name and an end

WAITS = [
    ("", {"ready": READY_LIMIT}, "waiting for the agent on node1, node2"),
    ("ready node1; held node1", {"ready": READY_LIMIT}, "waiting for the agent on node2"),
    (
        "ready node1; ready node2; held node1; held node2; worker/1 starts",
        {"start": START_LIMIT},
        "waiting for worker/0, worker/2 to start",
    ),
    ("up; worker/1 finishes 7", {"end": 27.0}, "waiting for worker/0, worker/2 to end"),
    (
        "up; Ctrl-C; worker/0,worker/1,worker/2 ends; closed node1",
        {"close": CLOSE_LIMIT},
        "waiting for the agent on node2 to close",
    ),
]


@pytest.mark.parametrize(("history", "timer", "notices"), WAITS)
def test_each_wait_has_a_name_and_an_end(history: str, timer: dict[str, float], notices: str):
    script = Script(job("worker 3"), hosts(2))
    replay = script.play(history)
    assert dict(replay.timers) == {**timer, "patience": PATIENCE}
    replay = Script(job("worker 3"), hosts(2)).play(f"{history}; time up patience; time up patience")
    assert after(replay) == (events.Tell(notices), events.SetTimer("patience", REPEAT))


def test_a_job_that_runs_is_not_waited_for():
    assert not Script(job("worker 3")).play("up").timers


def test_many_are_not_all_named():
    replay = Script(job("worker 9")).play("up; Ctrl-C; time up patience")
    assert replay.notices[-1] == "waiting for worker/0, worker/1, worker/2, worker/3 and 5 more to end"


# ---------------------------------------------------------------------- what does not go by itself


def test_who_does_not_end_on_sigterm_is_told():
    lines = [f"worker/{n} gets 6" for n in range(6)]
    replay = Script(job("worker 6")).play("; ".join(["up", "Ctrl-C", *lines]))
    stubborn = " did not end on SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
    assert replay.notices[1:] == tuple(
        task + stubborn for task in ("worker/0", "worker/1", "worker/2", "more tasks")
    )


def test_leftovers_that_do_not_end_on_sigterm_are_told_as_such():
    replay = Script(job("worker 2", on_failure="continue")).play(
        "up; worker/0 exits 0; worker/0 gets 15; worker/0 gets 6; worker/0 left 1"
    )
    assert replay.notices == (
        "a process that worker/0 left behind did not end on SIGTERM: sent SIGABRT, "
        "so that Python shows its stacks; SIGKILL is next",
        "worker/0 left 1 process behind: ended by us",
    )
    assert states(replay)["worker/0"] == "succeeded: exit"


def test_whom_we_kill_leaves_nothing_behind():
    """It had no time to end its own processes: that is no news of the program's."""
    replay = Script(job("worker 1", grace=0)).play(
        "up; Ctrl-C; worker/0 gets 9; worker/0 dies 9; worker/0 left 1"
    )
    assert replay.notices == ("Ctrl-C: stopping 1 task",)


def test_an_unkillable_task_is_told_and_the_job_ends():
    replay = Script(job("worker 2"), hosts(2)).play(
        "up; worker/0 finishes 7; worker/1 gets 15; worker/1 gets 9; worker/1 unkillable 4711; closed"
    )
    assert replay.exit_code == 7
    notice = replay.all(events.Tell)[-1]
    assert notice == events.Tell("worker/1: SIGKILL did not end pid 4711 on node2", urgent=True)
    assert states(replay)["worker/1"] == "stopped: stopped"
    assert replay.report.tasks[1].detail == "SIGKILL did not end it"
    assert replay.report.tasks[1].unkillable == (4711,)

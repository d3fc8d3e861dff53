"""How jobs end because of the user or the clock."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from launcher.common.report import Failure, Reason
from launcher.supervisor import Timer, TimerKind, commands
from tests.histories.script import Case, Replay, after, cases, check, play, script, states


def failure(replay: Replay) -> Failure:
    assert replay.report.failure is not None
    return replay.report.failure




@pytest.mark.promise("a stop is one stop: no signal, `scancel` or closed pipe or terminal shortens it")
@pytest.mark.promise("`launch stop RUN TASK`: the others go on, and it is no failure")
@pytest.mark.parametrize("case", cases("stops.txt"))
def test_stops(case: Case, snapshot: SnapshotAssertion):
    check(case, snapshot)


# ---------------------------------------------------------------------- the user


def test_a_second_signal_kills_also_what_ended_tasks_left_behind():
    replay = play("worker 2", "up; worker/0 exits 0; Ctrl-C @ 5.0; Ctrl-C @ 5.4")
    tasks = [stop.tasks for stop in replay.all(events.StopTasks)]
    assert tasks == [("worker/1",), ("worker/0", "worker/1")]
    assert replay.timers["end"] == 15.0


def test_an_agent_that_has_not_come_up_is_not_waited_for():
    replay = play("worker 2, hosts 2", "ready node1; Ctrl-C")
    assert {commands.CloseLink("node2"), events.CloseAgent("node1")} <= set(after(replay))
    ended = play("worker 2, hosts 2", "ready node1; Ctrl-C; held node1; ready node2; closed node1")
    assert ended.exit_code == 130


def test_ctrl_c_while_agents_close_waits_no_longer():
    history = "up; Ctrl-C @ 5; worker/0,worker/1 ends; closed node1; SIGTERM @ 5.5; SIGHUP @ 5.6"
    assert play("worker 2, hosts 2", history).exit_code is None
    replay = play("worker 2, hosts 2", f"{history}; Ctrl-C @ 6")
    notice, hang_up = after(replay)
    assert notice.text.startswith("Ctrl-C again: ") and "node2" in notice.text
    assert (hang_up, replay.exit_code) == (commands.CloseLink("node2"), 130)


# ---------------------------------------------------------------------- the time limit


def test_the_time_limit_does_not_wait_for_a_host_that_does_not_obey():
    """Output is no answer."""
    it = script("worker 2, timeout 5, hosts 2, slots 1")
    text = "up; time up job @ 5.0; worker/0 gets 15 @ 5.1; says worker/1 x @ 5.2"
    assert it.play(text).timers["answer"] == 13.0
    replay = it.play(f"{text}; time up answer @ 18.0")
    assert after(replay)[0] == commands.CloseLink("node2")
    assert "node2" in replay.notices[-1] and "13s" in replay.notices[-1]


def test_the_time_limit_names_tasks_that_hung():
    """The tasks that had ended are often the cause."""
    silent = "says worker/2 x; silence 9; says worker/2 x; silence 1"
    history = f"up; worker/1 exits 0 @ 108.7; {silent}; time up job"
    found = failure(play("worker 3, ps 1, timeout 60", history))
    assert (found.reason, "60s; worker/1 ended after" in found.text) == (Reason.TIMEOUT, True)
    assert found.text.endswith("worker/0, worker/2 went on")
    assert "worker/0" in found.hint and "faulthandler" in found.hint


def test_the_time_limit_has_no_hint_about_tasks_that_print():
    history = "; ".join(["up", *["says worker/0 x; says worker/1 x; silence 1"] * 9, "time up job"])
    assert failure(play("worker 2, timeout 60", history)).hint == ""


def test_the_time_limit_names_no_task_as_ended_that_waits_to_start_again():
    setup = "chief 1, worker 2, ps 1, timeout 60, restarts 1"
    replay = play(setup, "up; worker/1 exits 1; worker/1 gone; time up job")
    assert failure(replay).text.endswith(" 60s")


@pytest.mark.parametrize(
    ("history", "ended"),
    [
        ("ps/0 exits 0; worker/2 exits 0 @ 101; worker/0 exits 0 @ 108.5; worker/1 exits 1 @ 112", "3.5s"),
        ("worker/0 exits 0 @ 112; worker/1 exits 1 @ 111", ""),
        ("worker/0 exits 0 @ 112; worker/1 exits 1 @ 4000", ""),
        ("worker/0 exits 0; ps/0 exits 1", ""),
    ],
)
def test_peers_that_ended_before_the_failure(history: str, ended: str):
    """They may be the cause: a collective waits for all of its tasks, for a while."""
    hint = failure(play("worker 3, ps 1", f"up; {history}")).hint
    assert bool(hint) == bool(ended)
    assert not ended or hint.startswith("worker/0, worker/2 ") and ended in hint and "collectively" in hint


# ---------------------------------------------------------------------- every wait has a name and an end


HELD = "ready node1; ready node2; held node1; held node2"
ENDED = "up; Ctrl-C; worker/0,worker/1,worker/2 ends"


@pytest.mark.parametrize(
    ("history", "timer", "notice"),
    [
        ("", {"ready": 60.0}, "waiting for the agent on node1, node2"),
        ("ready node1; held node1", {"ready": 60.0}, "waiting for the agent on node2"),
        (f"{HELD}; worker/1 starts", {"start": 60.0}, "waiting for worker/0, worker/2 to start"),
        ("up; worker/1 finishes 7", {"end": 27.0}, "waiting for worker/0, worker/2 to end"),
        (f"{ENDED}; closed node1", {"close": 15.0}, "waiting for the agent on node2 to close"),
    ],
)
def test_each_wait_has_a_name_and_an_end(history: str, timer: dict[str, float], notice: str):
    it = script("worker 3, hosts 2")
    timers = {name: seconds for name, seconds in it.play(history).timers.items() if name != "silence"}
    assert timers == {**timer, "notice": 2.0}
    again = commands.SetTimer(Timer(TimerKind.NOTICE), 10.0)
    assert after(it.play(f"{history}; time up notice")) == (events.Tell(notice), again)
    assert after(it.play(f"{history}; time up notice; time up notice")) == (again,), "it is told once"


def test_a_job_that_runs_is_not_waited_for():
    assert set(play("worker 3", "up").timers) == {"silence"}
    unstarted = "ready node1; held node1; worker/0 starts; worker/1 cannot start 127"
    assert set(play("worker 2, continue", unstarted).timers) == {"silence"}


def test_few_of_many_stubborn_tasks_are_named():
    names = ",".join(f"worker/{n}" for n in range(6))
    replay = play("worker 6", f"up; Ctrl-C; {names} gets 6")
    named = ("worker/0", "worker/1", "worker/2", "more tasks")
    assert [notice.partition(" ignored")[0] for notice in replay.notices[1:]] == [*named]


def test_a_job_ends_though_a_task_is_unkillable():
    history = "up; worker/0 finishes 7; worker/1 gets 15; worker/1 gets 9; worker/1 unkillable 4711; closed"
    replay = play("worker 2, hosts 2", history)
    assert replay.exit_code == 7
    notice = replay.all(events.Tell)[-1]
    assert notice == events.Tell("worker/1: SIGKILL did not stop pid 4711 on node2", urgent=True)
    assert states(replay)["worker/1"] == "stopped: stopped"
    assert replay.report.tasks[1].detail == "SIGKILL did not stop it"
    assert replay.report.tasks[1].unkillable == (4711,)

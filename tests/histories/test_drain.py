"""Tasks that may end by themselves when the job is done; sidecars, whose ends do not matter to the job."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from launcher.common.record import replace
from launcher.supervisor import commands
from tests.histories.script import Case, Script, after, cases, check, hosts, play, script, states

DRAINING = "worker 1, evaluator 1 drain 60, ps 1"
PS_DRAINS = "worker 1, evaluator 1 drain 60, ps 1 drain 60"
APART = "worker 1, evaluator 1 drain 60, ps 1 drain 20"
#: Workers that a chief leaves.
WORKING = "chief 1, worker 2 drain 60, ps 1"
PS_STAYS = "chief 1, worker 1 drain 60, ps 1 drain 20, evaluator 1 drain 90"
EARLY = "chief 1, worker 1 drain 60, evaluator 1 drain 300"
BOARD = f"{DRAINING}, board 1 sidecar"

DONE = "up; worker/0 finishes 0; "
CHIEF_DONE = "up; chief/0 finishes 0; "
HOLDS = "worker/1,worker/0,ps/0 gets 15; "
DRAIN = "`--drain 60s` gives it time to finish"


def stopped(*found: commands.Command) -> list[str]:
    return [task for command in found if isinstance(command, events.StopTasks) for task in command.tasks]


@pytest.mark.parametrize(
    ("setup", "history", "tasks"),
    [
        # All but the evaluator are stopped at once, each once.
        (DRAINING, "up; worker/0 exits 0", "ps/0"),
        (DRAINING, "up; evaluator/0 finishes 0; worker/0 exits 0", "ps/0"),
        (DRAINING, DONE + "ps/0 ends; time up drain", "evaluator/0"),
        (DRAINING, DONE + "ps/0 gets 15; time up drain", "evaluator/0"),
        (DRAINING, DONE + "Ctrl-C", "evaluator/0"),
        (DRAINING, DONE + "Ctrl-C; Ctrl-C @ 9", "evaluator/0 ps/0"),
        (DRAINING, "up; worker/0 exits 7", "evaluator/0 ps/0"),
        # Each role has its own time.
        (APART, "up; worker/0 exits 0", ""),
        (APART, DONE + "time up drain", "ps/0"),
        (APART, DONE + "time up drain; ps/0 ends; time up drain", "evaluator/0"),
        # A failure ends the time of the others.
        (PS_DRAINS, DONE + "ps/0 dies 11", "evaluator/0"),
        # A ps stays for workers that go on, though its own time is over.
        (WORKING, CHIEF_DONE + "worker/1 finishes 0", ""),
        (WORKING, CHIEF_DONE + "worker/1 finishes 0; worker/0 exits 0", "ps/0"),
        (WORKING, CHIEF_DONE + "worker/0 exits 3", "ps/0 worker/1"),
        (WORKING, CHIEF_DONE + "ps/0 exits 3", "worker/0 worker/1"),
        (WORKING, "up; chief/0 exits 7", "ps/0 worker/0 worker/1"),
        (PS_STAYS, CHIEF_DONE + "time up drain", ""),
        (PS_STAYS, CHIEF_DONE + "time up drain; worker/0 exits 0", "ps/0"),
        (PS_STAYS, CHIEF_DONE + "time up drain; time up drain", "ps/0 worker/0"),
        (EARLY, CHIEF_DONE + "worker/0 finishes 0; time up drain", ""),
        (EARLY, CHIEF_DONE + "worker/0 finishes 0; time up drain; time up drain", "evaluator/0"),
        (BOARD, DONE + "ps/0 ends", ""),
        (BOARD, DONE + "ps/0 ends; evaluator/0 exits 0", "board/0"),
    ],
)
def test_the_tasks_that_the_last_event_stops(setup: str, history: str, tasks: str):
    assert sorted(stopped(*after(play(setup, history)))) == tasks.split()




@pytest.mark.parametrize("case", cases("drain.txt"))
def test_a_job_that_is_done_is_a_success(case: Case, snapshot: SnapshotAssertion):
    check(case, snapshot)


def test_the_time_that_is_left():
    begun = play(DRAINING, "up; worker/0 exits 0")
    assert (begun.timers["notice"], begun.timers["drain"]) == (2.0, 60.0)
    (notice,) = play(DRAINING, DONE + "time up notice").notices
    assert "evaluator/0" in notice and "60s" in notice
    assert play(APART, DONE + "time up drain").timers["drain"] == 40.0
    assert play(PS_STAYS, CHIEF_DONE + "time up drain").timers["drain"] == 40.0
    assert play(EARLY, CHIEF_DONE + "worker/0 finishes 0; time up drain").timers["drain"] == 240.0


def test_ctrl_c_does_not_wait_for_a_silent_host():
    """The end of its lease is far away. The end of its service is not known, so it is no success."""
    it = script(f"{DRAINING}, hosts 3, slots 1")
    text = DONE + "ps/0 ends; Ctrl-C @ 5.0; "
    assert it.play(text).timers["answer"] == 13.0
    replay = it.play(text + "time up answer @ 18.0")
    where = it.host_of["evaluator/0"]
    assert [command.host for command in after(replay) if isinstance(command, commands.CloseLink)] == [where]
    failure = replay.report.failure
    assert failure is not None and failure.host == where and "13s" in failure.text
    replay = it.play(text + "time up answer @ 18.0; closed node1; closed node2; closed node3")
    assert replay.exit_code == 125
    assert it.play(text + "evaluator/0 ends; closed").exit_code == 0


def test_a_lost_host_ends_the_wait():
    it = script(f"{PS_DRAINS}, hosts 3, slots 1")
    where = it.host_of["ps/0"]
    assert where != it.host_of["evaluator/0"]
    assert stopped(*after(it.play(DONE + f"lost {where}"))) == ["evaluator/0"]


# ---------------------------------------------------------------------- advice: --drain


def test_drain_is_advised_where_the_chief_is_done():
    history = CHIEF_DONE + HOLDS + "ps/0 gets 6; worker/0 gets 6; worker/1 gets 6"
    replay = play("chief 1, worker 2, ps 1", history)
    assert [DRAIN in text for text in replay.notices] == [False, True, True]
    assert "worker/0" in replay.notices[1] and "SIGABRT" in replay.notices[1]


@pytest.mark.parametrize(
    ("drain", "history"),
    [
        ("", "up; Ctrl-C; " + HOLDS + "worker/0 gets 6"),
        ("", "up; chief/0 exits 7; " + HOLDS + "worker/0 gets 6"),
        ("", CHIEF_DONE + "worker/0 exits 0; " + HOLDS + "worker/0 gets 6"),  # a process that it left behind
        (" drain 60", CHIEF_DONE + "time up drain; " + HOLDS + "worker/0 gets 6"),
    ],
)
def test_drain_is_not_advised_where_it_does_not_help(drain: str, history: str):
    replay = play(f"chief 1, worker 2{drain}, ps 1", history)
    assert "sent SIGABRT" in replay.notices[-1]
    assert not any(DRAIN in text for text in replay.notices)


# ---------------------------------------------------------------------- sidecars

def test_a_host_of_sidecars_alone_can_be_lost():
    spec = script("worker 1, board 1 sidecar").job
    apart = replace(spec, roles=(spec.roles[0], replace(spec.roles[1], hosts=("node2",))))
    replay = Script(apart, hosts(2)).play("up; lost node2; worker/0 finishes 0; closed")
    assert (replay.exit_code, states(replay)["board/0"]) == (0, "lost: host lost")
    assert [task.sidecar for task in replay.report.tasks] == [False, True]


TRAINED = "; ".join(["silence 1; says worker/1 loss 0.3"] * 6)
SERVED = "silence 1; says worker/1 Started server; silence 1; says worker/1 context; silence 9"


CHIEF = "chief 1, worker 2, ps 1"


@pytest.mark.parametrize(
    ("setup", "history", "told"),
    [
        (CHIEF, TRAINED, True),
        ("master 1, worker 2", TRAINED, True),
        # ParameterServerStrategy: the workers are servers; one that has been silent; one that has ended
        (CHIEF, SERVED, False),
        (CHIEF, f"{TRAINED}; silence 3", False),
        (CHIEF, f"{TRAINED}; worker/1 finishes 0", False),
        # the user knows about it
        (f"{CHIEF}, done-when chief", TRAINED, False),
        ("chief 1, worker 2 drain 9, ps 1", TRAINED, False),
    ],
)
def test_workers_that_printed_until_the_chief_was_done_are_named(setup: str, history: str, told: bool):
    replay = play(setup, f"up; {history}; {setup.split()[0]}/0 finishes 0")
    lines = [line for line in replay.notices if "--done-when workers" in line]
    assert len(lines) == told
    assert not told or ("worker/1" in lines[0] and "worker/0" not in lines[0] and "--drain" in lines[0])

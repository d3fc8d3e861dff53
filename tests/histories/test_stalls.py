"""Silent tasks: which they are, what `--stall` does to them, and the line without it."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from launcher.common.record import replace
from launcher.job import Program, ProgramKind
from tests.histories.script import Case, Script, cases, check, hosts, play, script

WAITING = "I0000 00:00:1.5 16747 master.cc:278] CreateSession still waiting for response from worker: "


@pytest.mark.promise("silent tasks: which they are; they show their stacks and come back")
@pytest.mark.parametrize("case", cases("stalls.txt"))
def test_ends(case: Case, snapshot: SnapshotAssertion):
    check(case, snapshot)


PS_AGAIN = "ps/0 dies 9; ps/0 gone; silence 3; time up restart 1; ps/0 starts"
LATE_AGAIN = "worker/1 dies 9; worker/1 gone; time up restart 1; silence 3; worker/1 starts"


@pytest.mark.parametrize(
    "roles, history, expected",
    [
        ("worker 2, ps 1", "up; silence 10", []),
        ("worker 2, ps 1", "up; silence 11", ["worker/0 worker/1: 6"]),
        ("worker 2, ps 1", "up; silence 8; output delayed; silence 10", []),
        ("worker 2, ps 1", "up; silence 8; output delayed; silence 11", ["worker/0 worker/1: 6"]),
        # a restart of another resets the time; no longer than until it has started
        ("worker 2, ps 1", "up; silence 8; ps/0 dies 9; silence 20; ps/0 gone; silence 20", []),
        ("worker 2, ps 1", f"up; {PS_AGAIN}; silence 11", ["worker/0 worker/1: 6"]),
        # one that has just started has not printed: it is no peer that prints
        ("worker 2, ps 1", f"up; {LATE_AGAIN}; silence 10", []),
        # one that has ended is not silent
        ("worker 2, ps 1", "up; worker/1 finishes 0; silence 6; says worker/0 x; silence 6", []),
        # other roles are no peers
        ("chief 1, worker 1", "up; silence 8; says chief/0 x; silence 10", []),
        ("worker 1, evaluator 1, board 1 sidecar", "up; silence 11", ["worker/0: 6"]),
        ("ps 1", "up; silence 99", []),
        # with the others of its group, which get SIGTERM
        ("worker 2", "up; silence 10; says worker/0 x; silence 1", ["worker/1: 6", "worker/0: 15"]),
        ("worker 2", "up; says worker/0 x; worker/0 exits 1; silence 99", ["worker/1: 15"]),
        # those that may never start again fail the job
        ("worker 1 restart never, ps 1", "up; silence 11", ["worker/0: 6", "ps/0: 15"]),
    ],
)
def test_who_is_silent(roles: str, history: str, expected: list[str]):
    """The tasks that are stopped, with the first signal that they get."""
    stops = play(f"{roles}, restarts 2, stall 20", history).all(events.StopTasks)
    assert [f"{' '.join(stop.tasks)}: {stop.steps[0][0]}" for stop in stops] == expected


def lines(history: str) -> list[str]:
    """The lines about silent ones of two workers, without `--stall`."""
    replay = play("worker 2", f"up; {history}")
    assert not replay.all(events.StopTasks)
    return [line for line in replay.notices if "printed nothing" in line]


def test_without_stall_a_line_after_one_two_four_minutes():
    assert lines("silence 10") == []
    shown = lines("silence 99")
    assert [line.partition("; ")[0] for line in shown] == [
        f"worker/0, worker/1 printed nothing for {time}" for time in ("1m00s", "2m00s", "4m00s", "8m00s")
    ]
    assert shown[0].endswith("; `--stall 10m` would stop such tasks and show where they hang")
    often = "; ".join(["silence 15; says worker/0 x; says worker/1 x"] * 20)
    assert len(lines(often)) == 1, "a task that prints every 90 s is named once"
    others = "; ".join(["silence 5; says worker/0 x"] * 12)
    (line,) = lines(f"says worker/1 x; {others}")
    assert line.startswith("worker/1 on node1 printed nothing for 5m00s"), "perhaps only worker/0 prints"


WORKER_1_AGAIN = "worker/1 dies 9; worker/1 gone; time up restart 1; worker/1 starts"
BOTH_AGAIN = "worker/1 dies 9; worker/1 gone; worker/0 ends; time up restart 1; worker/0,worker/1 starts"
TRAINED = "silence 9; says worker/0 step 1; silence 9; says worker/0 step 2; silence 12"
CLASSIC, COLLECTIVE, WITH_CHIEF = "worker 2, ps 1", "worker 2", "chief 1, worker 2, ps 1"
#: Roles, a history, and words that are in what is said of the silence, or are not (!).
CAUSES = [
    (CLASSIC, "worker/1 finishes 0; silence 11", "worker/1 ended device_filters !--done-when"),
    (CLASSIC, "worker/1 finishes 0; silence 30; time up job", "worker/1 ended device_filters"),
    (COLLECTIVE, "worker/1 finishes 0; silence 11", "worker/1 ended collectively"),
    (COLLECTIVE, "silence 30; time up job", "faulthandler"),
    # One that started again alone, unless the others went on without it, or all started again together.
    (CLASSIC, f"says worker/0 x; {WORKER_1_AGAIN}; says worker/1 x; silence 12", "alone `--restart !--stall"),
    (CLASSIC, f"{WORKER_1_AGAIN}; silence 30; time up job", "worker/1 alone"),
    (CLASSIC, f"{WORKER_1_AGAIN}; silence 5; says worker/0 x; silence 12", "--stall !alone"),
    (COLLECTIVE, f"{BOTH_AGAIN}; silence 12", "--stall !alone"),
    # Of two hints the surer one.
    (CLASSIC, f"worker/0 finishes 0; {WORKER_1_AGAIN}; silence 12", "worker/0 ended !alone"),
    # Servers without a chief: a question tells ParameterServerStrategy apart from a classic job.
    (CLASSIC, "says worker/0 server started; silence 12", "ParameterServerStrategy? `--chief` --stall"),
    (CLASSIC, "silence 30; time up job", "ParameterServerStrategy? faulthandler"),
    (WITH_CHIEF, "silence 12", "!ParameterServerStrategy"),
    (COLLECTIVE, "silence 12", "!ParameterServerStrategy"),
    (CLASSIC, TRAINED, "!ParameterServerStrategy"),
    (CLASSIC, "worker/0 finishes 0; silence 12", "--done-when chief worker/0 !ParameterServerStrategy"),
]  # fmt: skip


@pytest.mark.parametrize(("roles", "history", "words"), CAUSES)
def test_the_likely_cause_of_a_silence(roles: str, history: str, words: str):
    replay = play(f"{roles}, timeout 99, restarts 2", f"up; {history}")
    failure = replay.report.failure
    said = [failure.hint] if failure else [line for line in replay.notices if "printed nothing" in line]
    assert said
    for word in words.split():
        assert (word.lstrip("!") in said[-1]) == (word[0] != "!"), said[-1]


def test_a_stalled_task_that_started_again_alone():
    history = f"up; {WORKER_1_AGAIN}; silence 11; worker/0,worker/1 ends; ps/0 ends; closed"
    failure = play(f"{CLASSIC}, restarts 1, stall 20", history).report.failure
    assert failure and "`--restart job`" in failure.hint


@pytest.mark.parametrize(
    ("program", "is_python"),
    [
        (Program(ProgramKind.SCRIPT, "train.py"), True),
        (Program(ProgramKind.EXECUTABLE, "python", ("train.py",)), True),
        (Program(ProgramKind.EXECUTABLE, "/opt/conda/bin/python3.11", ("-u", "-m", "trainer")), True),
        (Program(ProgramKind.EXECUTABLE, "sh", ("-c", "cd /data && exec python train.py --x 1")), True),
        (Program(ProgramKind.EXECUTABLE, "sh", ("-c", "./train.py")), True),
        (Program(ProgramKind.EXECUTABLE, "uv", ("run", "train.py")), True),
        (Program(ProgramKind.EXECUTABLE, "pythonic", ("x",)), False),
        (Program(ProgramKind.EXECUTABLE, "sleep", ("99",)), False),
        (Program(ProgramKind.EXECUTABLE, "sh", ("-c", "sleep 99; echo x.pyc")), False),
    ],
)
def test_programs_that_run_python(program: Program, is_python: bool):
    """Only those get advice about Python; a failed import ends only those for good."""
    spec = script("worker 2, timeout 99, restarts 1").job
    it = Script(replace(spec, roles=(replace(spec.roles[0], program=program),)), hosts(1))
    failure = it.play("up; silence 30; time up job").report.failure
    assert failure is not None and bool(failure.hint) == is_python
    history = "up; says worker/0 ModuleNotFoundError: No module named 'x'; worker/0 finishes 1"
    failure = it.play(history).report.failure
    assert (failure is not None and "an import failed" in failure.text) == is_python


def test_a_session_that_waits_for_every_task_is_told_once():
    waits = f"says worker/1 {WAITING}/job:worker/replica:0/task:0\n"

    def told(*events: str) -> list[str]:
        replay = play("worker 2, ps 1", "; ".join(["up", *events]))
        return [line for line in replay.notices if "waits for worker/0" in line]

    assert told(waits, waits) == told(waits, "says worker/1 x\n", waits, waits) == []
    assert len(told(*[waits] * 9)) == 1
    (ended,) = told("worker/0 finishes 0", waits, waits)
    assert "worker/1" in ended and "which has ended" in ended and "device_filters" in ended
    late = f"up; worker/0 finishes 0; {waits}; silence 5; {waits}; time up job"
    failure = play("worker 2, ps 1, timeout 50", late).report.failure
    assert failure and "waits for worker/0" in failure.hint


@pytest.mark.parametrize(
    "line",
    [
        "I0000 00:00:1795 1 coordination_service.cc:525] Waiting for 1/2 tasks to connect.\n",
        "Example stragglers:\n/job:worker/replica:0/task:1\n",
        "INFO:tensorflow:Waiting for model to be ready.  Ready_for_local_init_op:  None, ready: no\n",
    ],
)
def test_lines_in_which_tensorflow_waits_are_silence(line: str):
    assert lines(f"silence 9; says worker/0 {line}; silence 2")
    assert not lines(f"silence 9; says worker/0 {line}step 1\n; silence 2")

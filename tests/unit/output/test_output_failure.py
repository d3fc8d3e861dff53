"""The failure report: what it shows of the tasks that failed, and its hints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import Failure, Reason, Report, TaskState
from launcher.job import RunPaths, TaskPlan
from launcher.output.failure import failure_report, with_advice
from launcher.output.renderers import TaskPlace
from tests.unit.output.output_samples import failed, report, task_report

W1 = TaskId("worker/1")
FAILURE = Failure(
    Reason.EXIT,
    task=W1,
    host="node2",
    at=111.0,
    text="worker/1 failed on node2: exit code 7",
    hint="look at its log",
)
ONE_FAILED = report(failed("worker/1", host="node2"), failure=FAILURE, exit_code=7)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """The files of a run: there is only the folder of its logs."""
    paths = RunPaths(str(tmp_path))
    os.mkdir(paths.logs)
    return paths


def shown(
    paths: RunPaths, ended: Report, printed: str, place: TaskPlace | None = None, plan: TaskPlan | None = None
) -> str:
    """Return the failure report of a job whose worker/1 has printed this."""
    Path(paths.log(W1)).write_text(printed)
    return failure_report(with_advice(ended, paths, place or TaskPlace(), plan), paths)


def raised(exception: str, frames: int = 1) -> str:
    """Return a traceback with so many frames."""
    frame = '  File "a.py", line 1, in f\n    f()\n'
    return f"Traceback (most recent call last):\n{frame * frames}{exception}\n"


CHAINED = (
    raised("KeyError: 'x'")
    + "\nDuring handling of the above exception, another exception occurred:\n\n"
    + raised("ValueError: bad")
)


@pytest.mark.promise("the first failure: cause, last lines, traceback")
def test_the_whole_report(paths: RunPaths, snapshot: SnapshotAssertion):
    """Others failed, too: one with the same exception, one that only printed the same line."""
    Path(paths.log(TaskId("worker/2"))).write_text("ValueError: bad\n")
    Path(paths.log(TaskId("worker/3"))).write_text("step 7\n" + CHAINED)
    others = [failed("worker/2", 3), failed("worker/3"), failed("board/0", 1, sidecar=True)]
    others += [task_report("ps/0", state=TaskState.STOPPED, reason=Reason.STOPPED)]
    ended = report(failed("worker/1", host="node2"), *others, failure=FAILURE, exit_code=7)
    assert shown(paths, ended, "step 1\rstep 2\n\x1b[31mred\x1b[0m\n\n" + CHAINED) == snapshot


#: The notices that each TensorFlow prints.
NOTICES = "".join(Path(__file__).with_name("start_up_notices.txt").read_text().splitlines(keepends=True)[:4])
#: As Keras 3 prints it.
TENSOR = (
    "ValueError: Attempt to convert a value (PerReplica:{\n  0: <tf.Tensor: shape=(2, 9), numpy=\n"
    "array([[0.19, nan, ..., -1.5e-05, 3.0 ,\n"
    + "        0.7 ],\n       ...,\n" * 20
    + "        inf, True]], shape=(2, 9), dtype=float32)>\n}) with an unsupported type"
)
#: More lines than the last ones that are shown.
NOISE = "".join(f"shutting down {number}\n" for number in range(21))
PRINTED = {
    "nothing": "",
    "notices of TensorFlow": NOTICES,
    "notices of TensorFlow, and more": "begun\n" + NOTICES + "no such file\n",
    "a known mistake": "EOFError: EOF when reading a line\nbye\n",
    "a traceback among the last lines": "step 1\n" + CHAINED,
    "a traceback above the last lines": "step 1\n" + CHAINED + NOISE,
    "a traceback that begins above them": raised("ValueError: x", frames=12),
    "a line after it": raised("ValueError: x", frames=12) + "bye\n",
    "two tracebacks": raised("ValueError: a: b") + "between\n" + raised("ValueError: z: b") + NOISE,
    "half a traceback": 'Traceback (most recent call last):\n  File "a.py"\n' + NOISE,
    "another log within it": raised("2024-05-01 12:00:00 E external/xla: bad\nValueError: x") + NOISE,
    "a Ctrl-C": raised("KeyboardInterrupt") + NOISE,
    "a mistake of the program": raised("FileNotFoundError: x.csv"),
    "the end of a peer": raised("tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"),
    "the values of a tensor": raised(TENSOR),
    "lists that are no tensor": "".join(f"[{step}, 0.5]\n" for step in range(9)),
}


@pytest.mark.parametrize("printed", PRINTED.values(), ids=PRINTED)
def test_what_a_task_has_printed(paths: RunPaths, printed: str, snapshot: SnapshotAssertion):
    assert shown(paths, ONE_FAILED, printed) == snapshot


def test_lines_are_cut_but_not_the_last_one_of_a_traceback(paths: RunPaths):
    lines = shown(paths, ONE_FAILED, "x" * 500 + "\n" + "y" * 5000).splitlines()
    assert lines[2:4] == ["    " + "x" * 500, "    " + "y" * 1999 + "…"]
    exception = "ValueError: " + "x" * 5000
    assert f"    {exception}\n" in shown(paths, ONE_FAILED, raised(exception))


def test_stacks_show_where_a_task_hung(paths: RunPaths):
    """Instead of how to get them."""
    failure = Failure(
        Reason.TIMEOUT, task=None, host=None, at=1.0, text="the job took longer than 5 s", hint="do this"
    )
    ended = report(task_report("worker/0"), task_report("worker/1"), failure=failure, exit_code=124)
    stacks = 'Current thread 0x7f (most recent call first):\n  File "a.py", line 3 in f\n'
    assert shown(paths, ended, "step 1\n").endswith("\n  hint: do this\n")
    assert "hint: stacks are at the end of the output of worker/1\n" in shown(paths, ended, stacks)
    lost = report(*ended.tasks, failure=replace(failure, reason=Reason.HOST_LOST), exit_code=125)
    assert shown(paths, lost, stacks).endswith("\n  hint: do this\n")


HERE = TaskPlace()
HOSTS = TaskPlace(other_machines=True, over_ssh=True, prepare="launch prepare --hosts node1,localhost")
PASSED = {"env": {"PYTHONPATH": "/there"}}
PROGRAM = {**PASSED, "argv": ("/opt/python3", "program/train.py")}
NO_PYTHON = "ran with the Python that its command names,"


@pytest.mark.parametrize(
    ("host", "plan", "place", "hint"),
    [
        ("node1", {}, HOSTS, "-x PYTHONPATH"),
        ("node1", PASSED, HOSTS, "prepare --hosts"),
        ("node1", PROGRAM, HOSTS, "mine is a file or folder here: --sync DIR"),
        ("node1", PROGRAM, replace(HOSTS, synced=True), "prepare --hosts"),
        ("localhost", {}, HOSTS, "ran with /opt/python3,"),
        ("node1", {"argv": ("python",), "venv": "/venvs/tf"}, HERE, "ran with /venvs/tf/bin/python,"),
        ("node1", {"argv": ("sh",), "args": ("-c", "python train.py")}, HERE, NO_PYTHON),
        ("node1", None, HERE, NO_PYTHON),
    ],
)
def test_a_hint_for_a_missing_module_knows_where_the_task_ran(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch,
    host: str, plan: dict[str, Any] | None, place: TaskPlace, hint: str,
):  # fmt: skip
    monkeypatch.chdir(paths.root)
    monkeypatch.setenv("PYTHONPATH", "/lib/of/mine")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    os.mkdir("program")
    Path("program/mine.py").touch()
    usual = TaskPlan(W1, host, f"{host}:1", 1, argv=("/opt/python3", "train.py"), env={})
    planned = None if plan is None else replace(usual, **plan)
    ended = report(failed("worker/1", host=host), failure=replace(FAILURE, host=host), exit_code=1)
    text = shown(paths, ended, "ModuleNotFoundError: No module named 'mine'\n", place, planned)
    assert hint in text.partition("  hint: ")[2]

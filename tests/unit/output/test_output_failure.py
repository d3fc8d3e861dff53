from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import Failure, Reason, Report, TaskState
from launcher.job import RunPaths
from launcher.output.failure import failure_report, last_traceback
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
CHAINED = b"""\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    {}["x"]
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    raise ValueError("bad")
ValueError: bad
"""


class Logged(NamedTuple):
    """The logs of a run in a folder of the test."""

    paths: RunPaths

    def text(self, ended: Report, data: bytes = b"", task: str = W1, last_lines: bool = True) -> str:
        """The failure report of a job, one of whose tasks has printed this."""
        os.makedirs(self.paths.logs, exist_ok=True)
        Path(self.paths.log(TaskId(task))).write_bytes(data)
        text = failure_report(ended, self.paths, with_last_lines=last_lines)
        return text.replace(self.paths.root, "/runs/1")


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    return Logged(RunPaths(str(tmp_path)))


@pytest.mark.promise("the first failure: cause, last lines, traceback")
def test_the_whole_report(logged: Logged, snapshot: SnapshotAssertion):
    others = [failed("worker/2", 3), failed("board/0", 1, sidecar=True)]
    others += [task_report("ps/0", state=TaskState.STOPPED, reason=Reason.STOPPED)]
    ended = report(failed("worker/1", host="node2"), *others, failure=FAILURE, exit_code=7)
    assert logged.text(ended, b"step 1\rstep 2\n\x1b[31mbad\x1b[0m\n\n") == snapshot


def test_stacks_show_where_a_task_hung(logged: Logged):
    """Instead of how to get them."""
    failure = Failure(
        Reason.TIMEOUT, task=None, host=None, at=1.0, text="the job took longer than 5 s", hint="do this"
    )
    ended = report(task_report("worker/0"), task_report("worker/1"), failure=failure, exit_code=124)
    assert logged.text(ended, b"step 1\n").endswith("\n  hint: do this\n")
    stacks = b'Current thread 0x7f (most recent call first):\n  File "a.py", line 3 in f\n'
    line = "\n  hint: stacks are at the end of the output of worker/1\n"
    assert logged.text(ended, stacks).endswith(line)
    lost = report(task_report("worker/1"), failure=replace(failure, reason=Reason.HOST_LOST), exit_code=125)
    assert logged.text(lost, stacks).endswith("\n  hint: do this\n")


NOTICES = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1.2    2069 port.cc:153] oneDNN custom operations are on. You may see slightly different "
    b"numerical results due to floating-point round-off errors.\n"
    b"I0000 00:00:1.3    2069 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available "
    b"CPU instructions in performance-critical operations.\n"
    b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the "
    b"appropriate compiler flags.\n"
)


def test_notices_of_tensorflow_are_not_shown(logged: Logged):
    ended = report(failed("worker/1"), failure=replace(FAILURE, hint=""), exit_code=7)
    text = logged.text(ended, b"begun\n" + NOTICES + b"no such file\n")
    assert "  its last lines:\n    begun\n    no such file\n  log: " in text
    assert "  it printed nothing but TensorFlow's notices at its start\n" in logged.text(ended, NOTICES)


def test_nothing_printed_and_long_lines(logged: Logged):
    ended = report(failed("worker/1"), failure=FAILURE, exit_code=7)
    assert "  it printed nothing\n" in logged.text(ended)
    lines = logged.text(ended, b"x" * 500 + b"\n" + b"y" * 5000).splitlines()
    assert lines[-4:-2] == ["    " + "x" * 500, "    " + "y" * 1999 + "…"]
    last = "ValueError: " + "x" * 5000  # the last line of a traceback is never cut
    text = logged.text(ended, f"Traceback (most recent call last):\n  f()\n{last}".encode())
    assert f"    {last}\n" in text


def test_a_traceback_that_began_above_the_last_lines_stands_once(logged: Logged):
    ended = report(failed("worker/1"), failure=replace(FAILURE, hint=""), exit_code=7)
    frames = b'  File "a.py", line 1, in f\n    f()\n' * 12
    output = b"Traceback (most recent call last):\n" + frames + b"ValueError: x\n"
    text = logged.text(ended, output)
    assert (text.count("ValueError"), text.count("line 1")) == (1, 12)
    assert "its last lines" not in text
    text = logged.text(ended, output + b"bye\n")
    assert text.count("ValueError") == 1
    assert "ValueError: x\n  its last lines:\n    bye\n  log: " in text


def test_a_hint_for_a_known_mistake_is_the_last_line(logged: Logged):
    ended = report(failed("worker/1"), failure=replace(FAILURE, hint=""), exit_code=1)
    text = logged.text(ended, b"EOFError: EOF when reading a line\nbye\n")
    assert text.count("  hint: ") == 1
    assert "/dev/null" in text.splitlines()[-1]


def test_the_values_of_a_tensor_in_an_exception_are_cut(logged: Logged):
    """As Keras 3 prints them; the traceback is then whole, and the hint is last."""
    ended = report(failed("worker/1"), failed("worker/2"), failure=replace(FAILURE, hint=""), exit_code=1)
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    exception = "ValueError: Attempt to convert a value (PerReplica:{\n  0: <tf.Tensor: shape=(2, 9), numpy="
    rows = ["array([[0.19, nan, ..., -1.5e-05, 3.0 ,", *["        0.7 ],", "       ...,"] * 20]
    end = "        inf, True]], shape=(2, 9), dtype=float32)>\n}) with an unsupported type"
    lines = logged.text(ended, "\n".join([head + exception, *rows, end]).encode()).splitlines()
    assert lines[1:7] == [
        "  its last lines:",
        *(f"    {line}" for line in (head + exception).splitlines()),
        "    " + rows[0],
    ]
    assert lines[7:10] == ["    ... 40 lines of values ...", *(f"    {line}" for line in end.splitlines())]
    assert lines[-1].startswith("  hint: `model.fit` of Keras 3 cannot do that: write the loop yourself")
    printed = "".join(f"[{step}, 0.5]\n" for step in range(9))
    assert "lines of values" not in logged.text(ended, printed.encode())


def test_a_mistake_in_the_program_is_not_blamed_on_tasks_that_ended_before(logged: Logged):
    peers = "worker/0 had exited with code 0, 0.1s earlier"
    ended = report(failed("worker/1"), failure=replace(FAILURE, hint=peers), exit_code=1)
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    assert peers not in logged.text(ended, f"{traceback}FileNotFoundError: x.csv\n".encode())
    unavailable = "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"
    assert peers in logged.text(ended, f"{traceback}{unavailable}\n".encode())


MISSING = b"ModuleNotFoundError: No module named 'mine'\n"


def planned(logged: Logged, host: str = "node1", **fields: object) -> Report:
    """A report of worker/1, and its plan."""
    task = {"task": W1, "host": host, "argv": ["/opt/python3", "train.py"], "env": {}, "venv": None, **fields}
    Path(logged.paths.plan).write_text(json.dumps({"tasks": [task]}))
    return report(failed("worker/1", host=host), failure=replace(FAILURE, hint="", host=host), exit_code=1)


def hint(logged: Logged, ended: Report, place: TaskPlace | None = None, data: bytes = MISSING) -> str:
    """The hints for a task that has printed this."""
    logged.text(ended, data)
    return "\n".join(
        line for line in failure_report(ended, logged.paths, place=place).splitlines() if "hint:" in line
    )


def test_hints_know_where_a_task_ran(logged: Logged, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/lib/of/mine")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    hosts = TaskPlace(other_machines=True, over_ssh=True, prepare="launch prepare --hosts node1,localhost")
    assert "-x PYTHONPATH" in hint(logged, planned(logged), hosts)
    assert "prepare --hosts" in hint(logged, planned(logged, env={"PYTHONPATH": "/there"}), hosts)
    assert "ran with /opt/python3," in hint(logged, planned(logged, "localhost"), hosts)
    assert "ran with /venvs/tf/bin/python," in hint(
        logged, planned(logged, argv=["python"], venv="/venvs/tf")
    )
    assert "ran with the Python that its command names," in hint(
        logged, planned(logged, argv=["sh", "-c", "python train.py"])
    )
    os.unlink(logged.paths.plan)
    assert "ran with the Python that its command names," in hint(
        logged, report(failed("worker/1"), failure=replace(FAILURE, hint=""))
    )
    monkeypatch.delenv("PYTHONPATH")
    assert "prepare --hosts" in hint(logged, planned(logged), hosts)


def test_a_module_beside_the_program_is_sent_by_sync(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "mine.py").touch()
    hosts = TaskPlace(other_machines=True, over_ssh=True)
    ended = planned(logged, argv=["/opt/python3", str(tmp_path / "program" / "train.py")])
    assert "mine is a file or folder here: --sync DIR" in hint(logged, ended, hosts)
    assert "mine is a file" not in hint(logged, ended, replace(hosts, synced=True))


def test_a_program_that_is_missing_gets_a_hint_by_the_reason(logged: Logged):
    text = "worker/1 could not be started on node1: program not found: 'conda' is nowhere along PATH"
    ended = replace(planned(logged), failure=replace(FAILURE, hint="", host="node1", text=text))
    place = TaskPlace(other_machines=True, over_ssh=True)
    assert "only login shells have conda" in hint(logged, ended, place, b"")
    assert "the image has no conda" in hint(logged, ended, TaskPlace(in_container=True), b"")
    assert not hint(logged, ended, data=b"")


def test_a_traceback_further_up_is_cut_out_with_its_chain(logged: Logged):
    ended = report(failed("worker/1"), failure=FAILURE, exit_code=7)
    noise = b"".join(b"shutting down %d\n" % n for n in range(30))
    text = logged.text(ended, b"step 1\n" + CHAINED + noise)
    shown = "".join(f"    {line}\n" for line in CHAINED.decode().splitlines())
    assert f"  its Python traceback:\n{shown}  its last lines:\n    shutting down 10\n" in text
    assert "step 1" not in text
    text = logged.text(ended, b"step 1\n" + CHAINED)  # not repeated where it is among the last lines
    assert text.count("Traceback") == 2
    assert "its Python traceback" not in text


def block(text: str) -> list[str]:
    lines = text.splitlines()
    found = last_traceback(lines)
    return lines[found.start : found.stop] if found else []


def test_tracebacks():
    one = 'Traceback (most recent call last):\n  File "a.py", line 1\n    x\nValueError: a: b'
    assert block(f"before\n{one}\nafter") == one.splitlines()
    assert block(f"{one}\nbetween\n{one.replace('a:', 'z:')}\n")[-1] == "ValueError: z: b"
    assert block("no\n") == []
    assert block("Traceback (most recent call last):\n  File") == []
    log = one.replace("    x", "    x\n2024-05-01 12:00:00 E external/xla: bad")
    assert block(log) == log.splitlines()
    assert block("Traceback (most recent call last):\n  x\nKeyboardInterrupt\n")[-1] == "KeyboardInterrupt"
    syntax = (
        'Traceback (most recent call last):\n  File "a.py", line 1\n    x x\n      ^\nSyntaxError: invalid'
    )
    assert block(syntax) == syntax.splitlines()


def test_the_same_exception_in_other_tasks(logged: Logged):
    tasks = [failed(f"worker/{index}", host="node2") for index in range(4)]
    for index in (0, 2, 3):
        logged.text(report(), CHAINED if index else b"ValueError: bad\n", f"worker/{index}")
    text = logged.text(report(*tasks, failure=FAILURE, exit_code=7), b"step 1\n" + CHAINED)
    same = "on node2 (exit code 7, the same exception)"
    assert f"  also failed: worker/0 on node2 (exit code 7), worker/2 {same}, worker/3 {same}\n" in text

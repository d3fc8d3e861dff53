from __future__ import annotations

import os
import subprocess
import sys

import pytest

from launcher.job import RunPaths, TaskId
from launcher.output.failure import failure_report
from launcher.output.task_lines import Tails, clean_lines, hints, last_traceback
from launcher.report import ExitStatus, Failure, Reason, TaskState
from tests.unit.output.output_samples import failed, report, task_report

W1 = TaskId("worker/1")
FAILURE = Failure(Reason.EXIT, W1, "node2", 111.0, "worker/1 failed on node2: exit code 7", "look at its log")
PATHS = RunPaths("/runs/1")
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


def tails(data: bytes) -> Tails:
    kept = Tails()
    kept.add(W1, data)
    return kept


def test_the_whole_report():
    others = [failed("worker/2", 3), failed("board/0", 1, sidecar=True)]
    others += [task_report("ps/0", state=TaskState.STOPPED, reason=Reason.STOPPED)]
    stuck = task_report("worker/0", state=TaskState.STOPPED, reason=Reason.STOPPED, unkillable=(77, 78))
    told = report(stuck, failed("worker/1", host="node2"), *others, failure=FAILURE, exit_code=7)
    assert failure_report(told, tails(b"step 1\rstep 2\n\x1b[31mbad\x1b[0m\n\n"), PATHS) == (
        "launch: first to fail: worker/1 failed on node2: exit code 7\n"
        "  its last lines:\n"
        "    step 2\n"
        "    bad\n"
        "  hint: look at its log\n"
        "  log: /runs/1/logs/worker-1.log\n"
        "  also failed: worker/2 on node1 (exit code 3)\n"
        "launch: worker/0 on node1: pid 77, 78 survived SIGKILL\n"
    )


def test_the_last_lines_can_be_left_to_somebody_else():
    told = report(failed("worker/1", host="node2"), failure=FAILURE, exit_code=7)
    whole = failure_report(told, tails(b"bad\n"), PATHS)
    assert failure_report(told, tails(b"bad\n"), PATHS, False) == whole.replace(
        "  its last lines:\n    bad\n", ""
    )


def test_nothing_to_say():
    assert failure_report(report(task_report("worker/0")), Tails(), PATHS) == ""


def test_no_task_failed():
    failure = Failure(Reason.TIMEOUT, None, None, 1.0, "the job took longer than 5 s (--timeout)")
    told = report(failure=failure, exit_code=124)
    assert failure_report(told, Tails(), PATHS) == "launch: the job took longer than 5 s (--timeout)\n"


def test_whose_stacks_show_where_it_hung():
    """Instead of how to get them."""
    failure = Failure(Reason.TIMEOUT, None, None, 1.0, "the job took longer than 5 s", "do this")
    told = report(task_report("worker/0"), task_report("worker/1"), failure=failure, exit_code=124)
    assert failure_report(told, tails(b"step 1\n"), PATHS).endswith("\n  hint: do this\n")
    stacks = b'Current thread 0x7f (most recent call first):\n  File "a.py", line 3 in f\n'
    said = "\n  hint: stacks are at the end of the output of worker/1\n"
    assert failure_report(told, tails(stacks), PATHS).endswith(said)
    lost = report(task_report("worker/1"), failure=failure._replace(reason=Reason.HOST_LOST), exit_code=125)
    assert failure_report(lost, tails(stacks), PATHS).endswith("\n  hint: do this\n")


NOTICES = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1.2    2069 port.cc:153] oneDNN custom operations are on. You may see slightly different "
    b"numerical results due to floating-point round-off errors.\n"
    b"I0000 00:00:1.3    2069 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available "
    b"CPU instructions in performance-critical operations.\n"
    b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the "
    b"appropriate compiler flags.\n"
)


def test_what_tensorflow_prints_at_every_start_is_not_shown():
    told = report(failed("worker/1"), failure=FAILURE._replace(hint=""), exit_code=7)
    text = failure_report(told, tails(b"begun\n" + NOTICES + b"no such file\n"), None)
    assert text.endswith("  its last lines:\n    begun\n    no such file\n")
    assert failure_report(told, tails(NOTICES), None).endswith(
        "  it printed nothing but TensorFlow's notices\n"
    )


def test_nothing_printed_and_long_lines():
    told = report(failed("worker/1"), failure=FAILURE, exit_code=7)
    assert "  it printed nothing\n" in failure_report(told, Tails(), None)
    lines = failure_report(told, tails(b"x" * 500 + b"\n" + b"y" * 5000), None).splitlines()
    assert lines[-3:-1] == ["    " + "x" * 500, "    " + "y" * 1999 + "…"]


def test_the_line_a_traceback_ends_with_is_never_cut():
    told = report(failed("worker/1"), failure=FAILURE, exit_code=7)
    last = b"ValueError: " + b"x" * 5000
    text = failure_report(told, tails(b"Traceback (most recent call last):\n  f()\n" + last), None)
    assert f"    {last.decode()}\n" in text


def test_a_traceback_that_began_above_the_last_lines_stands_once():
    told = report(failed("worker/1"), failure=FAILURE._replace(hint=""), exit_code=7)
    frames = b'  File "a.py", line 1, in f\n    f()\n' * 12
    output = b"Traceback (most recent call last):\n" + frames + b"ValueError: x\n"
    text = failure_report(told, tails(output), None)
    assert (text.count("ValueError"), text.count("line 1")) == (1, 12)
    assert "its last lines" not in text
    text = failure_report(told, tails(output + b"bye\n"), None)
    assert text.count("ValueError") == 1
    assert text.endswith("ValueError: x\n  its last lines:\n    bye\n")


@pytest.mark.parametrize(
    "said, hint",
    [
        (b"ModuleNotFoundError: No module named 'tensorflow'", "--python chooses another Python"),
        (b"EOFError: EOF when reading a line", "standard input of a task is /dev/null"),
        (b"OSError: [Errno 98] Address already in use", "SO_REUSEADDR"),
        (b"train.py: error: the following arguments are required: --ps_hosts, --job_name", "--flags appends"),
        (b"ValueError: Attempt to convert a value (PerReplica:{", "-x TF_USE_LEGACY_KERAS=1"),
        (b"flag --job_name=None: Flag --job_name must have a value other than None.", "--flags appends"),
        (b"train.py: error: unrecognized arguments: --ps_hosts=a:1 --task_index=0", "--flags added these"),
        (b"train.py: error: unrecognized arguments: --worker_hosts=a:1", "--flags added these"),
    ],
)
def test_hints_from_what_the_task_said(said: bytes, hint: str):
    told = report(failed("worker/1"), failure=FAILURE._replace(hint=""), exit_code=1)
    text = failure_report(told, tails(said), None)
    assert text.count("  hint: ") == 1 and hint in text


def test_no_hints_where_there_are_none():
    assert hints(["all is well", "unrecognized arguments: --foo"]) == []


def test_a_traceback_among_the_last_lines_is_not_repeated():
    told = report(failed("worker/1"), failure=FAILURE, exit_code=7)
    text = failure_report(told, tails(b"step 1\n" + CHAINED), None)
    assert text.count("Traceback") == 2
    assert "its Python traceback" not in text


def test_a_traceback_further_up_is_cut_out_with_its_chain():
    told = report(failed("worker/1"), failure=FAILURE, exit_code=7)
    noise = b"".join(b"shutting down %d\n" % n for n in range(30))
    text = failure_report(told, tails(b"step 1\n" + CHAINED + noise), None)
    shown = "".join(f"    {line}\n" for line in CHAINED.decode().splitlines())
    assert f"  its Python traceback:\n{shown}  its last lines:\n    shutting down 10\n" in text
    assert "step 1" not in text


def block(text: str) -> list[str]:
    lines = text.splitlines()
    found = last_traceback(lines)
    return lines[found.start : found.end] if found else []


def test_tracebacks():
    one = 'Traceback (most recent call last):\n  File "a.py", line 1\n    x\nValueError: a: b'
    assert block(f"before\n{one}\nafter") == one.splitlines()
    assert block(f"{one}\nbetween\n{one.replace('a:', 'z:')}\n")[-1] == "ValueError: z: b"
    assert block("no\n") == []
    assert block("Traceback (most recent call last):\n  File") == []
    log = one.replace("    x", "    x\n2024-05-01 12:00:00 E external/xla: bad")
    assert block(log) == log.splitlines()
    torch = "\n".join(f"[rank0]: {line}" for line in one.splitlines())
    assert block(f"{torch}\n[rank0]: more") == torch.splitlines()
    assert block("Traceback (most recent call last):\n  x\nKeyboardInterrupt\n")[-1] == "KeyboardInterrupt"
    syntax = (
        'Traceback (most recent call last):\n  File "a.py", line 1\n    x x\n      ^\nSyntaxError: invalid'
    )
    assert block(syntax) == syntax.splitlines()


def test_what_python_really_prints():
    code = "def f(n): return f(n + 1)\ntry:\n  f(0)\nexcept RecursionError as e:\n  raise OSError('x') from e"
    env = {**os.environ, "PYTHON_COLORS": "0"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=False).stderr
    lines = clean_lines(out, False)
    found = last_traceback(lines)
    assert found and found.start == 0 and lines[found.end - 1] == "OSError: x"


def test_recursion_is_abridged():
    told = report(failed("worker/1"), failure=FAILURE, exit_code=7)
    frames = b'  File "a.py", line 1, in f\n    f()\n' * 200
    output = b"Traceback (most recent call last):\n" + frames + b"RecursionError: deep\n" + b"noise\n" * 20
    text = failure_report(told, tails(output), None)
    assert "... 357 lines ..." in text
    assert text.count("\n") < 75


def test_tails_keep_the_end_only():
    kept = Tails(1000)
    for n in range(1000):
        kept.add(W1, b"%03d\n" % n)
    data, was_cut = kept.tail(W1)
    assert was_cut and len(data) == 1000 and data.endswith(b"998\n999\n")
    kept.forget(W1)
    assert kept.tail(W1) == (b"", False)
    assert clean_lines(b"rt of a line\nwhole\n", True) == ["whole"]


def test_a_program_that_is_not_there():
    failure = Failure(
        Reason.NOT_FOUND, W1, "node1", 1.0, "worker/1 could not be started: no program 'trian.py'"
    )
    lost = task_report("worker/1", state=TaskState.FAILED, reason=Reason.NOT_FOUND, status=ExitStatus(127))
    told = report(lost, failure=failure, exit_code=127)
    assert (
        failure_report(told, Tails(), PATHS)
        == "launch: worker/1 could not be started: no program 'trian.py'\n"
    )

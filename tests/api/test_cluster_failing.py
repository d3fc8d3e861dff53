"""Nodes that fail, programs that fail, and what can't be asked for: on this machine."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import InputError, InputMode, JobFailed, TaskFailed, TFCluster
from launcher.runs.run import json_of
from tests.seeing import quick, soon

pytestmark = pytest.mark.timeout(180)


def fail(args: str, ctx: Any) -> None:
    """Fail in the way that is asked for; all other nodes would go on for long."""
    if (ctx.job_name, ctx.task_index) != ("worker", 1):
        time.sleep(300)
    while not Path(args.partition(" ")[2]).exists():
        time.sleep(0.01)
    print("the last line of it", flush=True)
    if args.startswith("raise"):
        raise ZeroDivisionError("by nothing")
    if args.startswith("exit"):
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
def test_a_failure_is_known_within_a_second(how: str, tmp_path: Path):
    """The others would go on for minutes."""
    quick(lambda: known_after(how, tmp_path / "go"), 5)


def known_after(how: str, go: Path) -> float:
    """Seconds until the program knows that a node failed, and how."""
    go.unlink(missing_ok=True)
    cluster = TFCluster.run(fail, f"{how} {go}", 3, 1, quiet=True, grace=300)
    since = time.monotonic()
    go.touch()
    with pytest.raises(TaskFailed) as caught:
        cluster.shutdown()
    elapsed = time.monotonic() - since
    error = caught.value
    assert error.task == "worker/1"
    assert error.run_dir == cluster.run_dir
    if how == "raise":
        assert "worker/1 raised ZeroDivisionError: by nothing" in str(error)
        where = rf'File "{__file__}", line \d+, in fail\n    raise ZeroDivisionError\("by nothing"\)'
        assert re.search(where, error.traceback)
        assert "launcher/api" not in error.traceback
        assert isinstance(error.__cause__, ZeroDivisionError)
    else:
        assert error.last_lines[0] == "the last line of it"
        assert (error.code, error.signal) == ((3, None) if how == "exit" else (None, 9))
        ending = "exit code 3" if how == "exit" else "killed by SIGKILL"
        assert re.match(rf"worker/1 failed after \S+: {ending}\n", str(error))
    report = json_of(f"{error.run_dir}/report.json")
    assert report is not None and report["failure"]["task"] == "worker/1"
    return elapsed


class OwnError(Exception):
    """Of this module, which no node can import."""


def test_an_exception_of_the_program_is_itself():
    def fun(args: Any, ctx: Any) -> None:
        raise OwnError("with", 2, "arguments")

    with pytest.raises(TaskFailed) as caught:
        TFCluster.run(fun, None, 1, quiet=True).shutdown()
    assert isinstance(caught.value.__cause__, OwnError)
    assert caught.value.__cause__.args == ("with", 2, "arguments")


def test_a_failure_before_all_are_there_is_raised_by_run():
    def fun(args: Any, ctx: Any) -> None:
        os._exit(4)

    with pytest.raises(TaskFailed, match="exit code 4"):
        TFCluster.run(fun, None, 2, quiet=True).shutdown()


def test_exit_with_0_is_no_failure():
    TFCluster.run(lambda args, ctx: sys.exit(), None, 1, quiet=True).shutdown()


def test_nodes_that_do_not_end_are_ended_after_the_timeout():
    cluster = TFCluster.run(lambda args, ctx: time.sleep(300), None, 1, quiet=True)
    with pytest.raises(JobFailed, match=r"not exit within 0\.2s"):
        cluster.shutdown(timeout=0.2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_executors": 1, "num_ps": 1}, "leaves no worker beside 1 ps; expected 2 or more"),
        ({"num_executors": 2, "master_node": "boss"}, "'chief'"),
        ({"num_executors": 2, "reservation_timeout": "6", "queues": "x"}, "(?s)reservation_t.*queues='x'"),
        ({"num_executors": 2, "num_executor": 3}, 'num_executor\'; did you mean "num_executors"'),
        ({"num_executors": 2, "driver_ps_nodes": True}, "driver_ps_nodes"),
        ({"num_executors": 2, "hosts": "no/such/file"}, "no such hostfile"),
        ({"num_executors": 2, "job": "no/such.yaml"}, "cannot read the job file"),
        ({"num_executors": 2, "options": ["--no-such-option"]}, "--no-such-option"),
        ({"num_executors": 2, "time_out": 5}, "there is no argument 'time_out'; did you mean \"timeout\"?"),
    ],
    ids=str,
)
def test_bad_input(given: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        TFCluster.run(lambda args, ctx: None, None, **given)


def test_a_spark_context_is_one_argument_too_many():
    with pytest.raises(InputError, match="without a SparkContext"):
        TFCluster.run(object(), lambda args, ctx: None, {}, 2)  # type: ignore[arg-type]
    named: dict[str, Any] = {"tf_args": {}, "num_executors": 2}
    with pytest.raises(InputError, match="without a SparkContext"):
        TFCluster.run(object(), lambda args, ctx: None, **named)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="without a SparkContext"):
        TFCluster.run(object(), map_fun=lambda args, ctx: None, **named)  # type: ignore[misc, arg-type]
    with pytest.raises(InputError, match="missing a required argument: 'num_executors'"):
        TFCluster.run(lambda args, ctx: None, {})  # type: ignore[call-arg]


def test_nodes_have_their_grace_when_the_program_fails(tmp_path: Path):
    """So that they can write what they have, and it can be fetched."""

    def fun(args: Any, ctx: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            (tmp_path / "here").touch()
            threading.Event().wait(300)
        finally:
            time.sleep(0.7)  # longer than it takes to ask a second time
            (tmp_path / "saved").touch()

    with pytest.raises(KeyError), TFCluster.run(fun, None, 1, quiet=True):
        soon(lambda: (tmp_path / "here").exists(), 20)
        raise KeyError("of the program")
    assert (tmp_path / "saved").exists()


def fail_fed(how: str, ctx: Any) -> None:
    print("the last line", flush=True)
    if how == "raise":
        raise ValueError("no such layer: 7")
    ctx.get_data_feed().next_batch(1)
    sys.exit(9)


@pytest.mark.parametrize("how", ["raise", "exit"])
@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_quiet_job_that_fails_is_an_exception_and_nothing_else(
    how: str, policy: str, capfd: pytest.CaptureFixture[str]
):
    with (
        pytest.raises(TaskFailed) as caught,
        TFCluster.run(fail_fed, how, 1, on_failure=policy, input_mode=InputMode.FEED, quiet=True) as cluster,
    ):
        cluster.train([1])
    assert capfd.readouterr() == ("", "")
    assert ("no such layer" in str(caught.value)) is (how == "raise")
    assert "the last line" in caught.value.last_lines

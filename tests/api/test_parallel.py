"""Many instances of one function, some at a time."""

from __future__ import annotations

import json
import linecache
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import InputError, JobFailed, TaskFailed, TFParallel

pytestmark = pytest.mark.timeout(180)


@pytest.mark.promise("`TFParallel`")
def test_results_come_in_the_order_of_the_arguments():
    def fun(args: dict[str, float], ctx: Any) -> Any:
        time.sleep(args["sleep"])
        return args["sleep"], ctx.worker_num, ctx.num_workers, os.getpid(), "TF_CONFIG" in os.environ

    sleeps = [0.3, 0.0, 0.1, 0.0, 0.0]
    found = TFParallel.run(fun, [{"sleep": sleep} for sleep in sleeps], at_once=2, quiet=True)
    assert [row[0] for row in found] == sleeps
    assert [row[1:3] for row in found] == [(number, 5) for number in range(5)]
    assert len({row[3] for row in found}) == 5, "each has a process of its own"
    assert not any(row[4] for row in found)


def test_no_more_than_so_many_at_once(tmp_path: Path):
    folder, met = tmp_path / "running", tmp_path / "met"

    def fun(args: int, ctx: Any) -> int:
        mine = folder / str(args)
        mine.touch()
        while not met.exists():  # the first of each slot wait for one another
            if len(list(folder.iterdir())) >= 3:
                met.touch()
            time.sleep(0.01)
        time.sleep(0.05)
        running = len(list(folder.iterdir()))
        mine.unlink()
        return running

    folder.mkdir()
    found = TFParallel.run(fun, range(9), at_once=3, quiet=True)
    assert max(found) <= 3


def test_the_same_arguments_for_so_many():
    found = TFParallel.run(lambda args, ctx: (args["word"], ctx.worker_num), {"word": "same"}, 3, quiet=True)
    assert found == [("same", 0), ("same", 1), ("same", 2)]


def fail(how: str, ctx: Any) -> str:
    if how == "raise":
        raise KeyError("missing")
    if how == "exit":
        sys.exit(5)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return how


def test_failures_among_the_results(capfd: pytest.CaptureFixture[str]):
    """A line names the instances that failed, and the first exception."""
    ways = ["raise", "fine", "exit", "kill", "well"]
    found = TFParallel.run(fail, ways, at_once=2, return_exceptions=True)
    assert (found[1], found[4]) == ("fine", "well")
    raised, exited, killed = found[0], found[2], found[3]
    assert all(isinstance(each, TaskFailed) for each in (raised, exited, killed))
    assert "instance 0" in str(raised) and 'raise KeyError("missing")' in raised.traceback
    assert isinstance(raised.__cause__, KeyError)
    assert (exited.code, killed.signal) == (5, 9)
    (told,) = [line for line in capfd.readouterr().err.splitlines() if "3 of 5 instances failed" in line]
    assert "0, 2, 3" in told and "'raise'" in told and "KeyError: 'missing'" in told


def test_a_traceback_shows_the_source_of_a_cell():
    """It is in no file; notebooks keep it in `linecache`."""
    name, source = "<cell 7>", 'def fun(args, ctx):\n    raise KeyError("of the cell")\n'
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), names)
    with pytest.raises(TaskFailed) as caught:
        TFParallel.run(names["fun"], [0], quiet=True)
    assert f'File "{name}", line 2, in fun\n    raise KeyError("of the cell")' in caught.value.traceback


def test_the_first_failure_ends_all(tmp_path: Path):
    def fun(args: int, ctx: Any) -> None:
        if args == 1:
            raise ValueError("of instance 1")
        (tmp_path / str(args)).touch()
        time.sleep(300)

    since = time.monotonic()
    with pytest.raises(TaskFailed, match=r"instance 1 \(worker/\d, with 1\) raised ValueError: of inst"):
        TFParallel.run(fun, range(4), at_once=2, quiet=True)
    assert time.monotonic() - since < 100
    assert not (tmp_path / "3").exists()


def test_a_result_that_can_not_be_read_here(tmp_path: Path):
    def fun(args: Any, ctx: Any) -> Any:
        sys.path.append(args)
        import only_there  # type: ignore[import-not-found]

        return only_there.Thing()

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "only_there.py").write_text("class Thing: pass\n")
    with pytest.raises(JobFailed, match="the result of instance 0 cannot be read here.*only_there"):
        TFParallel.run(fun, [str(tmp_path / "there")], quiet=True)


def test_a_large_result():
    found = TFParallel.run(lambda args, ctx: bytes(30_000_000), [0], quiet=True)
    assert len(found[0]) == 30_000_000


def test_a_folder_for_each_instance(tmp_path: Path):
    def fun(args: int, ctx: Any) -> None:
        Path(ctx.output_dir, "model").write_text(str(args))

    TFParallel.run(fun, [7, 8], at_once=1, run_dir=tmp_path / "run", quiet=True)
    out = tmp_path / "run" / "output" / "worker-0"
    assert [(out / str(number) / "model").read_text() for number in (0, 1)] == ["7", "8"]


def test_the_report_of_a_search_names_what_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def fun(args: int, ctx: Any) -> None:
        if args == 2:
            raise ValueError("no such rate: 2")
        time.sleep(60)

    with pytest.raises(TaskFailed, match="instance 1 .*raised ValueError: no such rate: 2"):
        TFParallel.run(fun, [1, 2, 3], at_once=2, run_dir=tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["failure"]["reason"] == "exit" and report["exit_code"] == 1
    assert "SIGTERM" not in report["failure"]["text"]
    assert "no such rate: 2" in capfd.readouterr().out


def test_no_arguments_and_wrong_arguments():
    assert TFParallel.run(lambda args, ctx: None, []) == []
    with pytest.raises(InputError, match="without a SparkContext"):
        TFParallel.run("sc", lambda args, ctx: None, [])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="without a SparkContext"):
        TFParallel.run("sc", lambda args, ctx: None, tf_args=[1], num_executors=2)  # type: ignore[misc]
    with pytest.raises(InputError, match="'instances'; expected one of|no argument 'instances'"):
        TFParallel.run(lambda args, ctx: None, [1], instances=2)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="num_executors=-1") as wrong:
        TFParallel.run(lambda args, ctx: None, None, num_executors=-1)
    assert "tf_args" not in str(wrong.value)
    with pytest.raises(InputError, match="the arguments of instance 1 cannot be sent to another process"):
        TFParallel.run(lambda args, ctx: None, [1, threading.Lock()])
    with pytest.raises(InputError, match="no such hostfile"):
        TFParallel.run(lambda args, ctx: None, [1], hosts="no/such/file.yaml")

"""What is printed: nothing in a quiet job, and nothing twice in any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import InputMode, TaskFailed, TFCluster

pytestmark = pytest.mark.timeout(180)


def test_a_fault_is_printed_once(tmp_path: Path):
    (tmp_path / "script.py").write_text(
        "from launcher import TFCluster\nTFCluster.run(print, None, 1, hosts='no/such')\n"
    )
    ended = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ended.returncode == 1 and ended.stdout.count("no such hostfile") == 1, ended.stdout


def count_rows(args: Any, ctx: Any) -> None:
    print("not shown")
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(10)


def fail(how: str, ctx: Any) -> None:
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
        TFCluster.run(fail, how, 1, on_failure=policy, input_mode=InputMode.FEED, quiet=True) as cluster,
    ):
        cluster.train([1])
    assert capfd.readouterr() == ("", "")
    assert ("no such layer" in str(caught.value)) is (how == "raise")
    assert "the last line" in caught.value.last_lines


def test_rows_that_are_left_are_a_line_also_in_a_quiet_job(capfd: pytest.CaptureFixture[str]):
    def first_only(args: Any, ctx: Any) -> None:
        ctx.get_data_feed().next_batch(1)

    with TFCluster.run(first_only, None, 1, input_mode=InputMode.FEED, quiet=True) as cluster:
        cluster.train([1] * 1_000_000)
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("launch: feed 'input': worker/0 returned before reading all rows")

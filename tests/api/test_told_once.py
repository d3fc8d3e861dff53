"""What a program's user reads: nothing in a quiet job, and nothing twice in any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import InputError, InputMode, TaskFailed, TFCluster

pytestmark = pytest.mark.timeout(180)


def ran(program: str, folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """How a script went, that has not caught what was raised."""
    (folder / "script.py").write_text(program)
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, stdout=subprocess.PIPE, text=True, timeout=150, **settings
    )
    assert ended.returncode == 1
    return ended


def test_what_can_not_be_is_said_once(tmp_path: Path):
    program = "from launcher import TFCluster\nTFCluster.run(print, None, 1, hosts='no/such')\n"
    said = ran(program, tmp_path, stderr=subprocess.STDOUT)
    assert said.stdout.count("no such hostfile") == 1, said.stdout


def count_rows(args: Any, ctx: Any) -> None:
    print("seen by nobody")
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(10)


def test_a_quiet_job_that_goes_well_says_nothing(capfd: pytest.CaptureFixture[str]):
    with TFCluster.run(count_rows, None, 2, input_mode=InputMode.FEED, quiet=True) as cluster:
        cluster.train(range(100))
    assert capfd.readouterr() == ("", "")


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


def test_a_quiet_job_is_quiet_when_the_program_fails(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(KeyError), TFCluster.run(count_rows, None, 1, input_mode=InputMode.FEED, quiet=True):
        raise KeyError("of the program")
    with pytest.raises(InputError, match="no such hostfile"):
        TFCluster.run(count_rows, None, 1, hosts="no/such", input_mode=InputMode.FEED, quiet=True)
    assert capfd.readouterr() == ("", "")


def test_what_goes_wrong_without_an_exception_is_a_line_in_a_quiet_job(capfd: pytest.CaptureFixture[str]):
    def first_only(args: Any, ctx: Any) -> None:
        ctx.get_data_feed().next_batch(1)

    with TFCluster.run(first_only, None, 1, input_mode=InputMode.FEED, quiet=True) as cluster:
        cluster.train([1] * 1_000_000)
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("launch: feed 'input': worker/0 returned before reading all rows")

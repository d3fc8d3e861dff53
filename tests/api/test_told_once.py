"""What a program's user reads: nothing in a quiet job, and nothing twice in any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import InputError, TaskFailed, TFCluster
from tests.local.seeing import soon

pytestmark = pytest.mark.timeout(180)

RAISING = """
from launcher import TFCluster, TFParallel
def fun(args, ctx):
    raise ValueError("no such layer: 7")
"""
CLUSTER = "with TFCluster.run(fun, None, 1) as cluster: pass\n"
INSTANCES = "TFParallel.run(fun, [0])\n"
LINE = 'raise ValueError("no such layer: 7")'


def ran(program: str, folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """How a script went, that has not caught what was raised."""
    (folder / "script.py").write_text(program)
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, stdout=subprocess.PIPE, text=True, timeout=150, **settings
    )
    assert ended.returncode == 1
    return ended


@pytest.mark.parametrize("run", [CLUSTER, INSTANCES], ids=["cluster", "instances"])
def test_who_reads_a_script_reads_a_traceback_once(run: str, tmp_path: Path):
    said = ran(RAISING + run, tmp_path, stderr=subprocess.STDOUT).stdout
    assert said.count(LINE) == 1, said
    last = said.splitlines()[-2:]
    assert "TaskFailed: " in last[0] and last[0].endswith("raised ValueError: no such layer: 7")
    assert last[1].startswith("  its traceback is above")
    log = Path(last[1].rpartition(" ")[2])
    assert LINE in log.read_text()


def test_all_of_it_is_in_the_exception_where_the_output_goes_elsewhere(tmp_path: Path):
    ended = ran(RAISING + CLUSTER, tmp_path, stderr=subprocess.PIPE)
    assert ended.stdout.count(LINE) == 1
    assert ended.stderr.count(LINE) == 1
    assert ended.stderr.rstrip().endswith("\nValueError: no such layer: 7")


def test_an_exception_has_all_of_it_wherever_it_is_looked_at(tmp_path: Path):
    look = "except Exception as error:\n    print(repr(str(error)))\n    raise\n"
    program = f"{RAISING}try:\n    {CLUSTER}{look}"
    said = ran(program, tmp_path, stderr=subprocess.STDOUT).stdout
    assert said.count(LINE) == 2, "in the output, and by print()"


def test_what_can_not_be_is_said_once(tmp_path: Path):
    said = ran(RAISING + CLUSTER.replace("1)", "1, hosts='no/such')"), tmp_path, stderr=subprocess.STDOUT)
    assert said.stdout.count("no such hostfile") == 1, said.stdout


def count_rows(args: Any, ctx: Any) -> None:
    print("seen by nobody")
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(10)


def test_a_quiet_job_that_goes_well_says_nothing(capfd: pytest.CaptureFixture[str]):
    with TFCluster.run(count_rows, None, 2, quiet=True) as cluster:
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
        TFCluster.run(fail, how, 1, on_failure=policy, quiet=True) as cluster,
    ):
        cluster.train([1])
    assert capfd.readouterr() == ("", "")
    assert ("no such layer" in str(caught.value)) is (how == "raise")
    assert "the last line" in caught.value.last_lines


def test_a_quiet_job_is_quiet_when_the_program_fails(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(KeyError), TFCluster.run(count_rows, None, 1, quiet=True):
        raise KeyError("of the program")
    with pytest.raises(InputError, match="no such hostfile"):
        TFCluster.run(count_rows, None, 1, hosts="no/such", quiet=True)
    assert capfd.readouterr() == ("", "")


def test_what_goes_wrong_without_an_exception_is_a_line_in_a_quiet_job(capfd: pytest.CaptureFixture[str]):
    def first_only(args: Any, ctx: Any) -> None:
        ctx.get_data_feed().next_batch(1)

    with TFCluster.run(first_only, None, 1, quiet=True) as cluster:
        cluster.train([1] * 1_000_000)
        assert soon(lambda: cluster._session.members["worker/0"].replied.is_set(), 20)
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("launch: feed 'input': rows ") and err.count("\n") == 1

"""What ``launch ps`` says of runs."""

from __future__ import annotations

import json
import os

import pytest

from launcher.cli import ps
from tests.unit.cli.conftest import Call, Runs

OLD, NEW = "20261120-070912-aaaaa", "20261121-070912-bbbbb"


@pytest.fixture
def pid(runs: Runs) -> int:
    """The launcher of the newer of two runs."""
    runs.ended(runs.made(OLD, {"worker/0": b""}), 3)
    paths = runs.made(NEW, {"ps/0": b"", "worker/0": b"", "worker/1": b""})
    return runs.running(paths).pid


def test_what_runs(pid: int, call: Call, capsys: pytest.CaptureFixture[str]):
    assert call(ps) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["run", "state"]
    assert row.split()[:2] == [NEW, "running"]
    assert f" {pid} " in row
    assert "1 ps, 2 worker" in row
    assert row.endswith(" launch 'two words'")


def test_what_has_run(pid: int, call: Call, capsys: pytest.CaptureFixture[str]):
    assert call(ps, "--all") == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [OLD, NEW]
    assert "ended (3)" in rows[0]
    assert "1m06s" in rows[0]


def test_json(pid: int, call: Call, capsys: pytest.CaptureFixture[str]):
    assert call(ps, "--all", "--json") == 0
    old, new = json.loads(capsys.readouterr().out)
    assert (old["state"], old["exit_code"], old["seconds"], old["pid"]) == ("ended", 3, 65.5, None)
    assert (new["state"], new["exit_code"], new["pid"], new["processes"]) == ("running", None, pid, 1)
    assert new["tasks"] == {"ps": 1, "worker": 2}
    assert new["machine"] == os.uname().nodename


def test_nothing(runs: Runs, call: Call, capsys: pytest.CaptureFixture[str]):
    assert call(ps) == 0
    assert capsys.readouterr() == ("", "nothing is running\n")
    runs.made(OLD, {})
    assert call(ps) == 0
    assert capsys.readouterr() == ("", "nothing is running; `launch ps --all` lists 1 earlier\n")


def test_a_plan_that_somebody_else_wrote(runs: Runs, call: Call, capsys: pytest.CaptureFixture[str]):
    plan = runs.made(OLD, {}).plan
    with open(plan, "w") as file:
        json.dump({"command": 7, "tasks": [{"task": "worker/0"}, {"host": "a"}, 1]}, file)
    runs.made(NEW, {"ps/0": b""})
    assert call(ps, "--all", "--json") == 0
    old, new = json.loads(capsys.readouterr().out)
    assert (old["tasks"], old["hosts"], old["command"]) == ({"worker": 1}, [], [])
    assert (new["tasks"], new["hosts"]) == ({"ps": 1}, ["here"])
    with open(plan, "w") as file:
        file.write("[]")
    assert call(ps, "--all") == 0

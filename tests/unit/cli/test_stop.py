"""``launch stop`` asks the launcher, waits for it, and tells how it ended."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from launcher.cli import stop
from launcher.errors import InputError, LaunchError
from launcher.runs.owner import this_process
from launcher.runs.run import Run
from tests.unit.cli.conftest import Call, Runs

JOB = "20261121-070912-bbbbb"

#: Ends at the n-th SIGTERM, with a report.
STUBBORN = """
import json, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
for _ in range(int(sys.argv[2])):
    signal.sigwait([signal.SIGTERM])
open(sys.argv[1], "w").write(json.dumps({"exit_code": 143}))
os._exit(0)
"""


def owned(runs: Runs, terms: int) -> str:
    """A running run whose launcher ends at the n-th SIGTERM."""
    paths = runs.made(JOB, {"worker/0": b"", "worker/1": b""})
    Path(paths.events).write_text(json.dumps({"event": "TaskGone", "task": "worker/1"}) + "\n{")
    process = runs.running(paths, sys.executable, "-c", STUBBORN, paths.report, str(terms))
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    reaper = threading.Thread(target=process.wait, daemon=True)
    reaper.start()
    return JOB


@pytest.mark.parametrize("words", [[], ["bbbbb"]])
def test_it_is_stopped(
    runs: Runs, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str],
):  # fmt: skip
    monkeypatch.setattr(stop, "_PATIENCE", 50.0)
    owned(runs, 1)
    assert call(stop, *words) == 0
    assert capsys.readouterr() == (f"{JOB} ended with exit code 143\n", "")


def test_at_once(runs: Runs, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Its two signals never become one, however late the launcher takes the first."""
    monkeypatch.setattr(stop, "_BETWEEN", 0.0)
    owned(runs, 2)
    assert call(stop, "--now") == 0
    assert "ended with exit code 143" in capsys.readouterr().out


def test_it_does_not_end_in_time(
    runs: Runs, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stop, "_PATIENCE", 0.05)
    owned(runs, 9)
    assert call(stop, "--timeout", "0.2") == 124
    waiting, late = capsys.readouterr().err.splitlines()
    assert waiting == "waiting for worker/0"
    assert late.startswith(f"launch: {JOB} has not ended within 0.2 s; `launch stop --now`")


@pytest.mark.parametrize("time", ["0", "5m"])
def test_a_timeout_is_written_as_everywhere(runs: Runs, call: Call, time: str):
    runs.made(JOB, {})
    assert call(stop, "--timeout", time, JOB) == 0


def test_it_has_ended(runs: Runs, call: Call, capsys: pytest.CaptureFixture[str]):
    paths = runs.made(JOB, {})
    assert call(stop, JOB) == 0
    assert capsys.readouterr().out == f"{JOB} had already ended without a report: its launcher died\n"
    runs.ended(paths, 7)
    assert call(stop, JOB) == 0
    assert capsys.readouterr().out == f"{JOB} had already ended with exit code 7\n"


def test_which_one_must_be_clear(runs: Runs, call: Call):
    with pytest.raises(InputError, match="nothing is running"):
        call(stop)
    for number in range(2):
        runs.running(runs.made(f"{JOB[:-1]}{number}", {}))
    with pytest.raises(InputError, match="2 runs are running; say which"):
        call(stop)


def test_another_machines_run(runs: Runs, call: Call):
    paths = runs.made(JOB, {})
    owner = this_process()._replace(machine="node7")
    Path(paths.owner).write_text(json.dumps({"job": JOB, **owner._asdict()}))
    with pytest.raises(LaunchError, match="runs on node7"):
        call(stop, JOB)


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "x"])
def test_a_timeout_is_a_number(runs: Runs, call: Call, capsys: pytest.CaptureFixture[str], seconds: str):
    with pytest.raises(SystemExit, match="2"):
        call(stop, f"--timeout={seconds}")
    assert "is no duration: expected seconds, or a number and s, m, h or d" in capsys.readouterr().err


# ---------------------------------------------------------------------- records that others wrote


def test_a_process_that_only_a_stranger_calls_a_launcher(
    runs: Runs, call: Call, monkeypatch: pytest.MonkeyPatch
):
    paths = runs.made(JOB, {})
    process = runs.running(paths)
    monkeypatch.setattr(Run, "is_ours", False)
    monkeypatch.setattr("launcher.runs.run.user_of", lambda pid: 12345)
    with pytest.raises(
        LaunchError, match=f"can't stop {JOB}: .* names process {process.pid}, which is another"
    ):
        call(stop, paths.root)
    assert process.poll() is None


def test_agents_that_only_a_stranger_calls_lost(runs: Runs, call: Call, monkeypatch: pytest.MonkeyPatch):
    paths = runs.made(JOB, {})
    process = runs.running(paths, "setsid", "sleep", "60")
    record = json.loads(Path(paths.owner).read_text())
    agent = [1, process.pid, record["start_ticks"]]
    Path(paths.owner).write_text(json.dumps({**record, "start_ticks": 1, "agents": [agent]}))
    monkeypatch.setattr(Run, "is_ours", False)
    with pytest.raises(LaunchError, match="its record is user"):
        call(stop, paths.root)
    assert process.poll() is None


def test_an_exit_code_is_a_number(runs: Runs, call: Call, capsys: pytest.CaptureFixture[str]):
    Path(runs.made(JOB, {}).report).write_text('{"exit_code": "\\u001b[2J"}')
    assert call(stop, JOB) == 0
    assert capsys.readouterr().out == f"{JOB} had already ended without a report: its launcher died\n"

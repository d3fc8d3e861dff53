"""A launcher as a process: it ends by the same ladder as without the program that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runs import leash
from launcher.runs.process import LauncherProcess

#: Ends at the second SIGTERM.
TWICE = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
for _ in range(2):
    signal.sigwait([signal.SIGTERM])
raise SystemExit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_ended_as_by_its_leash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals):
    monkeypatch.setattr(leash, "LADDER", ((number, 20.0),))
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        process = LauncherProcess(["-c", "import time; time.sleep(60)"], environ, nothing, nothing)
        process.send(signal.SIGSTOP)
        process.end()
    finally:
        os.close(nothing)
    assert process.exit_code == 128 + number
    process.end()


def test_two_signals_never_become_one(monkeypatch: pytest.MonkeyPatch):
    """However late the launcher takes the first."""
    monkeypatch.setattr(leash, "LADDER", ((signal.SIGTERM, 0.0), (signal.SIGTERM, 20.0)))
    with subprocess.Popen([sys.executable, "-c", TWICE], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        handle = os.pidfd_open(process.pid)
        try:
            leash.end(handle)
            assert process.wait(20) == 7
        finally:
            os.close(handle)
            process.kill()

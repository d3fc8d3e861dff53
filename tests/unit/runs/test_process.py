"""A launcher as a process: it ends by the same ladder as without the program that started it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from launcher.runs import leash
from launcher.runs.process import LauncherProcess


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

"""The main process of a launcher's pod."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

#: Keeps a launcher whose start is interrupted by SIGTERM: the process exists, and nobody knows it yet.
_PROGRAM = """\
import json, os, signal, subprocess, sys
from launcher.backends.kubernetes.keeper import keep
class Interrupted(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        if arguments[0][1:2] == ["run"]:
            self.stdout.readline()  # It handles SIGTERM by now.
            os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Interrupted
keep(json.loads(sys.argv[1]))
"""
#: A launcher that SIGTERM ends with the exit code 7.
_LAUNCHER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("runs", flush=True)
time.sleep(60)
"""


def test_sigterm_while_the_launcher_starts_is_passed_on(tmp_path: Path):
    arguments = {
        "launcher": [str(tmp_path / "bin/launch"), "run"],
        "environ": {},
        "path": str(tmp_path),
        "run": str(tmp_path / "run"),
        "script": _LAUNCHER,
        "file": str(tmp_path / "options"),
        "content": "",
        "ended": str(tmp_path / "ended"),
        "hours": 24,
    }
    argv = [sys.executable, "-c", _PROGRAM, json.dumps(arguments)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ended").read_text() == "7"

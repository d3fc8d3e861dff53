"""Measures ``--preload``: tasks that start servers of TensorFlow, with and without it.

`bench.run` calls `measure`. It takes the time from the command until the last server is up. Then it kills one
of the servers, and takes the time until that one is up again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench import processes, tables
from bench.contenders import LAUNCH
from bench.setting import Setting

_TASKS = 8
_LIMIT, _SETTLE = 200.0, 3.0
_MEGA = 1024 * 1024
_ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = str(_ROOT / "bench" / "programs" / "server.py")
_MODES = {"cold": [], "--preload": ["--preload", "tensorflow"]}


class Job(NamedTuple):
    """The results of one launch, whose times are in seconds."""

    #: From the command until all servers were up.
    up: float
    #: The proportional memory of all tasks then, in bytes.
    pss: int
    #: From the death of the killed task until its server was up again.
    after_death: float
    #: From the start of its new process until then.
    after_start: float
    #: CPU seconds of all processes.
    cpu: float


def measure(setting: Setting) -> None:
    """Start servers of TensorFlow with and without ``--preload``, and print the table."""
    python = _python()
    if not python:
        print("\npreload: MISSING: no Python with tensorflow (LAUNCH_TEST_PYTHON names one)", flush=True)
        return
    imports: list[processes.Run] = []
    jobs: dict[str, list[Job]] = {mode: [] for mode in _MODES}
    for _ in range(min(setting.rounds, 3)):
        imports.append(processes.run([python, "-c", "import tensorflow"], _LIMIT))
        for mode, found in jobs.items():
            found += _once(setting, python, _MODES[mode])
    head = ["seconds: median (min)", "all up", "x import", "PSS MB"]
    head += ["killed: death to up", "its start to up", "CPU s"]
    seconds, cpu = ([getattr(run, name) for run in imports] for name in ("seconds", "cpu"))
    rows = [["import tensorflow, once", tables.times(seconds), "1.00x", "-", "-", "-", tables.times(cpu)]]
    rows += [[f"{_TASKS} tasks, {mode}", *_cells(found, seconds)] for mode, found in jobs.items()]
    tables.show("servers of TensorFlow on this machine", head, rows)


def _python() -> str:
    """Return the path of a Python that has TensorFlow, or an empty text if there is none."""
    look = "import importlib.util as u, sys; sys.exit(not u.find_spec('tensorflow'))"
    for python in (os.environ.get("LAUNCH_TEST_PYTHON", ""), str(_ROOT / ".venv/bin/python"), sys.executable):
        if python and os.path.exists(python) and processes.run([python, "-c", look], _LIMIT).code == 0:
            return python
    return ""


def _cells(jobs: list[Job], imports: list[float]) -> list[str]:
    """Return the cells about some launches, with the ratio of their times to those of a bare import."""
    if not jobs:
        return ["no answer", *["-"] * 5]
    ups = [job.up for job in jobs]
    pss = f"{statistics.median(job.pss for job in jobs) / _MEGA:.0f}"
    names = ("after_death", "after_start", "cpu")
    others = (tables.times([getattr(job, name) for job in jobs]) for name in names)
    return [tables.times(ups), tables.ratio(ups, imports), pss, *others]


def _once(setting: Setting, python: str, options: list[str]) -> list[Job]:
    """Start servers once, and kill one of them.

    Returns:
        The results. The list is empty if the servers did not come up, which is a fault.
    """
    folder = setting.folder("preload")
    report = folder / "report.json"
    words = [*options, "--python", python, "--workers", str(_TASKS), "--restarts", "1", "--restart", "task"]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    words += [f"-x{name}={value}" for name, value in environment.items()]
    before, began = processes.spent(), time.monotonic()
    launcher = processes.start([setting.launch, *words, "--report", str(report), _PROGRAM, str(folder)])
    try:
        first = [_await(folder, number, 1, launcher) for number in range(_TASKS)]
        time.sleep(_SETTLE)
        family = [pid for pid in processes.family(launcher.pid) if pid != launcher.pid]
        pss = sum(processes.memory(pid)[0] for pid in family)
        killed = time.monotonic()
        os.kill(first[-1][0], signal.SIGKILL)
        _, again = _await(folder, _TASKS - 1, 2, launcher)
        clock = time.time() - time.monotonic()
        (folder / "go").touch()
        if not processes.ended(launcher, _LIMIT) or launcher.returncode not in (None, 0):
            raise TimeoutError
        task = json.loads(report.read_text())["tasks"][_TASKS - 1]
        up = max(moment for _, moment in first) - began
        processes.finish(launcher)
        processes.sweep()
        cpu = processes.spent() - before
        return [Job(up, pss, again - killed, again + clock - task["started_at"], cpu)]
    except (TimeoutError, OSError, KeyError):
        setting.faults.append(f"{LAUNCH}: {_TASKS} servers with {options or 'a cold start'} did not come up")
        return []
    finally:
        processes.finish(launcher)
        processes.sweep()
        shutil.rmtree(folder, ignore_errors=True)


def _await(folder: Path, number: int, attempt: int, launcher: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait until the server of a task is up.

    Args:
        folder: The folder in which servers note that they are up.
        number: The number of the task.
        attempt: The number of its start.
        launcher: The launcher.

    Returns:
        The pid of the server, and when it was up, on the monotonic clock.

    Raises:
        TimeoutError: The launcher has exited, or the time limit is over.
    """
    path = folder / f"up.{number}.{attempt}"
    end = time.monotonic() + _LIMIT
    while not path.exists():
        if time.monotonic() > end or launcher.poll() is not None:
            raise TimeoutError
        time.sleep(0.02)
    pid, moment = path.read_text().split()
    return int(pid), float(moment)

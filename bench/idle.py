"""Measures what a launcher costs while 64 tasks sleep: its processes, CPU and memory.

`bench.run` calls `measure`.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import time
from typing import NamedTuple

from bench import processes, tables
from bench.contenders import Call, Contender
from bench.setting import Setting

_TASKS = 64
_SECONDS, _FEW_SECONDS = 10.0, 3.0
#: The seconds that tasks sleep. No other process has this argument.
_SLEEP = "98765"
_UP, _SETTLE, _END = 90.0, 2.0, 20.0
_MEGA = 1024 * 1024


class Cost(NamedTuple):
    """What the launcher and its helpers need while the tasks sleep.

    ``processes`` is their number, and ``cpu`` their use of a core, where 1 is a whole core. ``pss`` and
    ``rss`` are their proportional and their resident memory in bytes.
    """

    processes: int
    cpu: float
    pss: int
    rss: int


def measure(setting: Setting) -> None:
    """Run sleeping tasks with each contender, and print what its launcher needs meanwhile."""
    costs: dict[str, list[Cost]] = {one.name: [] for one in setting.present}
    for number, contender in setting.turns(min(setting.rounds, 5)):
        found = costs[contender.name]
        if len(found) < number:  # its tasks did not come up before
            continue
        if (cost := _once(setting, contender)) is not None:
            found.append(cost)

    def row(contender: Contender) -> list[str]:
        """Return the cells of a contender after its name."""
        found = costs[contender.name]
        if not found:
            return [f"its tasks were not up in {_UP:.0f} s", "-", "-", "-", "0"]
        cpu = [cost.cpu * 100 for cost in found]
        sizes = [cost.pss for cost in found], [cost.rss for cost in found]
        memory = (f"{statistics.median(of) / _MEGA:.1f}" for of in sizes)
        helpers = statistics.median_high(cost.processes for cost in found)
        return [f"{statistics.median(cpu):.3f} ({max(cpu):.3f})", *memory, str(helpers), str(len(found))]

    head = ["launcher and helpers: median (max)", "CPU % of a core", "PSS MB", "RSS MB", "processes", "runs"]
    seconds = _FEW_SECONDS if setting.quick else _SECONDS
    title = f"idle: {_TASKS} sleeping tasks, {seconds:.0f} s"
    tables.show(title, head, setting.rows(row, len(head) - 1))


def _once(setting: Setting, contender: Contender) -> Cost | None:
    """Run sleeping tasks once, and return what the launcher needs, or None if they do not run in time."""
    folder = setting.folder(contender.name)
    launcher = processes.start(contender.command(Call(_TASKS, [_sleep(), _SLEEP], folder)))
    try:
        if not _all_up(launcher):
            setting.fault(contender, f"{_TASKS} sleeping tasks were not up in {_UP:.0f} s")
            return None
        time.sleep(_SETTLE)
        return _cost(launcher.pid, _FEW_SECONDS if setting.quick else _SECONDS)
    finally:
        _end(launcher)
        shutil.rmtree(folder, ignore_errors=True)


def _sleep() -> str:
    """Return the path of the program ``sleep``."""
    return shutil.which("sleep") or "/bin/sleep"


def _all_up(launcher: subprocess.Popen[bytes]) -> bool:
    """Wait until all tasks run, and return whether they do before the launcher exits or the time is up."""
    end = time.monotonic() + _UP
    while time.monotonic() < end and launcher.poll() is None:
        if sum(map(_is_task, processes.family(launcher.pid))) >= _TASKS:
            return True
        time.sleep(0.1)
    return False


def _is_task(pid: int) -> bool:
    """Return whether a process is a task, by its last arguments. A shell around the sleep is a helper."""
    return processes.command(pid)[-2:] == [_sleep(), _SLEEP]


def _cost(launcher: int, seconds: float) -> Cost:
    """Return what a launcher and its descendants that are no tasks need during some seconds."""
    pids = [launcher, *(pid for pid in processes.family(launcher) if not _is_task(pid))]
    before, began = sum(map(processes.cpu_seconds, pids)), time.monotonic()
    time.sleep(seconds)
    spent = sum(map(processes.cpu_seconds, pids)) - before
    cpu = spent / (time.monotonic() - began)
    sizes = [processes.memory(pid) for pid in pids]
    return Cost(len(pids), cpu, sum(pss for pss, _ in sizes), sum(rss for _, rss in sizes))


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Stop a launcher by SIGTERM, and kill what is left of it."""
    os.kill(launcher.pid, signal.SIGTERM)
    processes.ended(launcher, _END)
    processes.finish(launcher)
    processes.sweep()

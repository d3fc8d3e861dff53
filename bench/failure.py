"""Measures a failure: one of eight tasks exits with code 7; how long until all others are gone?

`bench.run` calls `measure`. A process that a launcher leaves behind is a fault, and not only slow.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from bench import processes, tables
from bench.contenders import FLOOR, LAUNCH, Call, Contender, task_program
from bench.setting import Setting

_TASKS = 8
_CODE = 7
_MILLI = 1e-3
#: The number of sleeping children of each task in the second case.
_CHILDREN = 2
#: The time limits in seconds for all tasks to run, and for all processes to end.
_UP, _GONE = 60.0, 10.0


class NotUp(Exception):
    """The tasks of a contender did not run in time."""


class Ended(NamedTuple):
    """How a contender ended its job after one task had failed."""

    #: Seconds from the exit of the failing task to the end of the last process of a task, or None if some
    #: did not end in time.
    all_gone: float | None
    #: Seconds from that exit to the end of the launcher, or None if it did not end in time.
    launcher_gone: float | None
    #: The number of processes of tasks that did not end in time.
    left: int
    #: The exit code of the launcher, or None if it did not end in time.
    code: int | None
    #: CPU seconds of all processes, from the start of the launcher to the end of the last one.
    cpu: float = 0.0


def measure(setting: Setting) -> None:
    """Let a task of each contender fail, and print a table: once without and once with children of tasks."""
    for children in (False, True):
        results: dict[str, list[Ended]] = {one.name: [] for one in setting.present}
        reasons: dict[str, str] = {}
        for _, contender in setting.turns():
            if _enough(results[contender.name]):
                continue
            try:
                results[contender.name].append(_once(setting, contender, children))
            except NotUp as fault:
                reasons[contender.name] = str(fault)
                setting.fault(contender, str(fault))
        _show(setting, results, reasons, children)


def _enough(runs: list[Ended]) -> bool:
    """Return whether more runs would only show again that this contender leaves processes."""
    return sum(run.all_gone is None for run in runs) >= 2


def _once(setting: Setting, contender: Contender, children: bool) -> Ended:
    """Run a contender once, and let one of its tasks fail.

    Args:
        setting: Receives a fault if launch leaves processes, or exits with another code.
        contender: The contender.
        children: Whether each task has sleeping children.

    Raises:
        NotUp: The tasks did not run in time.
    """
    folder, before = setting.folder(contender.name), processes.spent()
    os.mkfifo(folder / "go")
    program = task_program("wait", folder, *(["children"] if children else []))
    launcher = processes.start(contender.command(Call(_TASKS, program, folder)))
    try:
        pids = _all_up(folder, launcher, children)
        ended = _fail(folder, launcher, pids)
        code = launcher.returncode
        processes.finish(launcher)
        processes.sweep()
        ended = ended._replace(cpu=processes.spent() - before)
        if ended.all_gone is None or code != _CODE:
            setting.fault(contender, f"a failing task: exit code {code}, {ended.left} processes left")
        return ended
    finally:
        processes.finish(launcher)
        processes.sweep()
        shutil.rmtree(folder)


def _all_up(folder: Path, launcher: subprocess.Popen[bytes], children: bool) -> list[int]:
    """Wait until all tasks run, and return the pids of the tasks and their children.

    Raises:
        NotUp: They did not run in time, or the launcher has exited.
    """
    end = time.monotonic() + _UP
    while time.monotonic() < end and launcher.poll() is None:
        tasks = [int(file.read_text()) for file in folder.glob("up.?")]
        if len(tasks) == _TASKS:
            pids = [pid for task in tasks for pid in [task, *processes.family(task)]]
            sleeping = sum(processes.command(pid)[:1] == ["sleep"] for pid in pids)
            if sleeping == (_TASKS * _CHILDREN if children else 0):
                return pids
        time.sleep(0.01)
    raise NotUp(f"{_TASKS} tasks were not up in {_UP:.0f} s")


def _fail(folder: Path, launcher: subprocess.Popen[bytes], pids: list[int]) -> Ended:
    """Let the task fail, and wait for the end of all processes."""
    time.sleep(1.0)  # let it all come to rest
    ends = processes.Ends([launcher.pid, *pids])  # before the failure, so that no end is missed
    (folder / "go").write_bytes(b"go")
    ends.wait(_GONE)
    ends.close()
    failed = int((folder / "failed").read_text())
    left = sum(pid not in ends.at for pid in pids)
    gone = None if left else _since(failed, max(ends.at[pid] for pid in pids))
    mine = _since(failed, ends.at[launcher.pid]) if launcher.pid in ends.at else None
    code = launcher.wait() if mine is not None else None
    return Ended(gone, mine, left, code)


def _since(began: int, ended: int) -> float:
    """Return the seconds between two times in nanoseconds, or 0 if the second one is earlier."""
    return max(0, ended - began) / 1e9


def _show(setting: Setting, results: dict[str, list[Ended]], reasons: dict[str, str], children: bool) -> None:
    """Print the table of one case.

    Args:
        setting: The setting.
        results: The runs of each contender, by its name.
        reasons: Why contenders could not be run.
        children: Whether the tasks had children.
    """

    def row(contender: Contender) -> list[str]:
        """Return the cells of a contender after its name."""
        runs = results[contender.name]
        if not runs:
            return [reasons.get(contender.name, "-"), *["-"] * 7]
        codes = sorted({str(run.code) for run in runs})
        left = statistics.median(run.left for run in runs)
        return [
            *_cells([run.all_gone for run in runs], [run.all_gone for run in results[LAUNCH]]),
            *_cells([run.launcher_gone for run in runs], [run.launcher_gone for run in results[LAUNCH]]),
            f"{statistics.median(run.cpu for run in runs):.3f}",
            f"{left:.0f}",
            "/".join(codes),
            str(len(runs)),
        ]

    head = ["ms: median (min)", "all tasks gone", "x launch", "launcher gone", "x launch"]
    head += ["CPU s", "processes left", "exit code", "runs"]
    what = ", each with children (sh -c 'sleep 600 & sleep 600')" if children else ""
    title = f"failure: {_TASKS} tasks{what}; one exits {_CODE}, from its exit until"
    tables.show(title, head, setting.rows(row, len(head) - 1))
    own = {
        name: [run.all_gone for run in runs if run.all_gone is not None and run.code == _CODE]
        for name, runs in results.items()
    }
    setting.check_floor(title, own.pop(FLOOR, []), own)


def _cells(values: list[float | None], launch: list[float | None]) -> list[str]:
    """Return the cells about one time of a contender: its median, and the ratio to that of launch."""
    seen = [value for value in values if value is not None]
    if not seen:
        return [f"not in {_GONE:.0f} s", "-"]
    never = f" [{len(values) - len(seen)} never]" if len(seen) < len(values) else ""
    base = [value for value in launch if value is not None]
    return [tables.times(seen, _MILLI) + never, tables.ratio(seen, base)]

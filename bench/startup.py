"""Measures start-up: tasks that exit at once, from the start of the launcher to its end.

`bench.run` calls `measure`.
"""

from __future__ import annotations

import shutil
import statistics
from collections import defaultdict

from bench import processes, tables
from bench.contenders import FLOOR, LAUNCH, Call, Contender, true
from bench.processes import Run
from bench.setting import Setting

_COUNTS = (1, 4, 16, 64, 256)
#: A contender is not run again after two runs that took longer than these seconds.
_LONG = 5.0

#: The runs of each contender, by its name.
Runs = dict[str, list[Run]]


def measure(setting: Setting) -> None:
    """Run tasks that exit at once under each contender, and print the table."""
    results: dict[int, Runs] = {}
    hopeless: set[str] = set()
    for count in _COUNTS[:-1] if setting.quick else _COUNTS:
        results[count] = _count(setting, count, hopeless)
        hopeless |= {name for name, runs in results[count].items() if all(run.code is None for run in runs)}
    _show(setting, results)
    for count, runs in results.items():
        for what, values in (("seconds", _seconds), ("CPU seconds", _cpu)):
            own = {name: values(found) for name, found in runs.items()}
            setting.check_floor(f"start-up of {count} tasks, {what}", own.pop(FLOOR, []), own)


def _count(setting: Setting, count: int, hopeless: set[str]) -> Runs:
    """Run a number of tasks under each contender, and return the runs.

    Args:
        setting: The setting.
        count: The number of tasks.
        hopeless: The names of contenders that have never exited in time with fewer tasks.
    """
    runs: Runs = defaultdict(list)
    for _, contender in setting.turns():
        if not _enough(runs[contender.name], contender.name in hopeless):
            runs[contender.name].append(_once(setting, contender, count))
    return runs


def _enough(runs: list[Run], hopeless: bool) -> bool:
    """Return whether more runs of a contender would only take time.

    Args:
        runs: Its runs so far.
        hopeless: Whether it has never exited in time with fewer tasks.
    """
    silent = sum(run.code is None for run in runs)
    long = sum(run.seconds > _LONG for run in runs)
    return long >= 2 or (hopeless and silent >= 1)


def _once(setting: Setting, contender: Contender, count: int) -> Run:
    """Run a number of tasks once. If launch fails, that is a fault."""
    folder = setting.folder(contender.name)
    done = processes.run(contender.command(Call(count, true(), folder)), contender.time_limit)
    if done.code != 0:
        setting.fault(contender, f"{count} x true ended with {done.code}")
    shutil.rmtree(folder)
    return done


def _show(setting: Setting, results: dict[int, Runs]) -> None:
    """Print the table, from the runs by the number of tasks."""

    def row(contender: Contender) -> list[str]:
        """Return the cells of a contender after its name."""
        return [
            cell
            for runs in results.values()
            for cell in _cells(contender, runs[contender.name], runs[LAUNCH])
        ]

    head = ["seconds: median (min)"]
    for count in results:
        head += [f"{count} tasks" if count > 1 else "1 task", "x launch", "CPU s"]
    tables.show("start-up: tasks that exit at once", head, setting.rows(row, len(head) - 1))


def _cells(contender: Contender, runs: list[Run], launch: list[Run]) -> list[str]:
    """Return the cells about one number of tasks: the time, its ratio to that of launch, and the CPU."""
    answers = _seconds(runs)
    silent = len(runs) - len(answers)
    if not answers:
        return [f"no answer in {contender.time_limit:.0f} s ({silent} of {len(runs)} runs)", "-", "-"]
    some = f" [{silent} of {len(runs)} runs: no answer]" if silent else ""
    cpu = f"{statistics.median(_cpu(runs)):.3f}"
    return [tables.times(answers) + some, tables.ratio(answers, _seconds(launch)), cpu]


def _seconds(runs: list[Run]) -> list[float]:
    """Return the seconds of the runs that exited in time."""
    return [run.seconds for run in runs if run.code is not None]


def _cpu(runs: list[Run]) -> list[float]:
    """Return the CPU seconds of the runs that exited in time."""
    return [run.cpu for run in runs if run.code is not None]

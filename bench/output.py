"""Measures output: four tasks print as fast as they can.

`bench.run` calls `measure`. Every line that comes out is checked: a lost, torn, doubled or misplaced one is a
fault of launch.
"""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import processes, tables
from bench.contenders import FLOOR, LAUNCH, Call, Contender, task_program
from bench.setting import Setting

_TASKS = 4
_LINES, _FEW_LINES = 200_000, 20_000
#: The bytes of a line with its newline.
WIDTH = 100
_MEGA = 1e6
_TIME_LIMIT = 300.0
#: A contender whose run takes longer than these seconds is not run again.
_LONG = 10.0
_LINE = rb"(?P<task>\d\d):(?P<number>\d{9}):(?P<letter>[a-z])(?P=letter){75}:(?P=number)\n"
#: A part of a line of a task. A line that contains it but is not whole was torn.
_PART = re.compile(rb"([a-e])\1{8}|\d{9}")


class Checked(NamedTuple):
    """The result of one run: how fast the output was, and how many lines arrived in which way."""

    #: Megabytes a second.
    speed: float
    #: How long the run took, and the CPU seconds of all its processes.
    seconds: float
    cpu: float
    whole: int
    lost: int
    torn: int
    doubled: int
    misplaced: int

    @property
    def faults(self) -> int:
        """The number of lines that are not as they should be."""
        return self.lost + self.torn + self.doubled + self.misplaced


def measure(setting: Setting) -> None:
    """Let four tasks print under each contender, check every line, and print the table."""
    lines = _FEW_LINES if setting.quick else _LINES
    source = setting.folder("lines")
    for task in range(_TASKS):
        (source / f"lines.{task}").write_bytes(text(task, lines))
    results: dict[str, list[Checked]] = {one.name: [] for one in setting.present}
    slow: set[str] = set()
    for _, contender in setting.turns(min(setting.rounds, 5)):
        if contender.name not in slow:
            checked = _once(setting, contender, source, lines)
            results[contender.name].append(checked)
            if _TASKS * lines * WIDTH / _MEGA / checked.speed > _LONG:
                slow.add(contender.name)
    shutil.rmtree(source)
    _show(setting, results, lines)


def text(task: int, lines: int) -> bytes:
    """Return numbered lines of a task, each of `WIDTH` bytes.

    The number is at both ends of a line, so that a line made of two halves is noticed.
    """
    middle = bytes([97 + task]) * 76
    return b"".join(b"%02d:%09d:%s:%09d\n" % (task, number, middle, number) for number in range(lines))


def _once(setting: Setting, contender: Contender, source: Path, lines: int) -> Checked:
    """Run a contender once, and check its output.

    Args:
        setting: Receives a fault if launch loses lines.
        contender: The contender.
        source: The folder with the lines that the tasks print.
        lines: The number of lines of each task.
    """
    folder = setting.folder(contender.name)
    for file in source.glob("printed.*"):
        file.unlink()
    call = Call(_TASKS, task_program("print", source, _TASKS), folder, prefixed=True)
    with (folder / "output").open("wb") as output:
        done = processes.run(contender.command(call), _TIME_LIMIT, output)
    checked = check(folder / "output", contender.prefix, lines, done)
    if checked.faults or done.code != 0:
        setting.fault(contender, f"output ended with {done.code}: {checked}")
    shutil.rmtree(folder)
    return checked


def check(
    path: Path, prefix: bytes, lines: int, run: processes.Run, tasks: Sequence[int] = range(_TASKS)
) -> Checked:
    """Check every line of a file.

    Args:
        path: The path of the file.
        prefix: A pattern for the beginning of a line. Its group ``named`` is the number of the task.
        lines: The number of lines that each task has printed.
        run: The run that has made the file.
        tasks: The numbers of the tasks, as they were passed to `text`.
    """
    whole_line = re.compile(prefix + _LINE)
    seen = {task: bytearray(lines) for task in tasks}
    last = dict.fromkeys(tasks, -1)
    torn = doubled = misplaced = 0
    with path.open("rb") as file:
        for line in file:
            found = whole_line.fullmatch(line)
            if found is None:
                torn += _PART.search(line) is not None
                continue
            named, task, number = (int(found[group]) for group in ("named", "task", "number"))
            doubled += seen[task][number]
            misplaced += named != task or number <= last[task]
            seen[task][number] = 1
            last[task] = number
    whole = sum(map(sum, seen.values()))
    speed = len(tasks) * lines * WIDTH / _MEGA / run.seconds
    return Checked(speed, run.seconds, run.cpu, whole, len(tasks) * lines - whole, torn, doubled, misplaced)


def _show(setting: Setting, results: dict[str, list[Checked]], lines: int) -> None:
    """Print the table, and check that no contender is faster than the floor."""

    def row(contender: Contender) -> list[str]:
        """Return the cells of a contender after its name."""
        runs = results[contender.name]
        worst = max(runs, key=lambda run: run.faults)
        return [
            f"{_speed(runs):.1f} ({max(run.speed for run in runs):.1f})",
            f"{_speed(runs) / _speed(results[LAUNCH]):.2f}x",
            f"{_speed(runs) / _speed(results.get(FLOOR, [])):.2f}x",
            f"{statistics.median(run.cpu for run in runs):.2f}" if runs else "-",
            *map(str, (worst.lost, worst.torn, worst.doubled, worst.misplaced)),
            str(len(runs)),
        ]

    head = ["worst run's faults", "MB/s: median (max)", "x launch", "x floor", "CPU s"]
    head += ["lost", "torn", "doubled", "misplaced", "runs"]
    title = f"output: {_TASKS} tasks x {lines:,} lines of {WIDTH} bytes, every line checked"
    tables.show(title, head, setting.rows(row, len(head) - 1))
    right = {name: [run for run in runs if not run.faults] for name, runs in results.items()}
    for what in ("seconds", "cpu"):
        own = {name: [getattr(run, what) for run in runs] for name, runs in right.items()}
        setting.check_floor(f"output, {what}", own.pop(FLOOR, []), own)


def _speed(runs: list[Checked]) -> float:
    """Return the median speed of some runs, or NaN without any."""
    return statistics.median(run.speed for run in runs) if runs else float("nan")

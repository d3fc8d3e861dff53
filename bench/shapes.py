"""Measures output in other shapes, such as small writes and many writers, against a bare program.

`bench.run` calls `measure`. The bare program, ``programs/shape.py``, moves the same bytes and does nothing
else.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from bench import processes, tables
from bench.contenders import BEFORE, LAUNCH, PYTHON, Call, Contender, task_program
from bench.processes import Run
from bench.setting import Setting

_SHAPE = str(Path(__file__).resolve().parent / "programs" / "shape.py")
_BARE = "bare shape"
_MEGA = 1e6
_TIME_LIMIT = 300.0


class Shape(NamedTuple):
    """Tasks that print ``megabytes`` in all, in writes of ``block`` bytes and lines of ``line`` bytes."""

    name: str
    tasks: int
    megabytes: int
    block: int
    line: int


_SHAPES = (
    Shape("blocks", 4, 400, 65536, 100),
    Shape("small writes", 4, 100, 4096, 100),
    Shape("64 writers", 64, 200, 65536, 100),
    Shape("no newlines", 4, 400, 65536, 0),
)


def measure(setting: Setting) -> None:
    """Print output of each shape under launch and through the bare program, and print the table."""
    present = [one for one in setting.present if one.name in (LAUNCH, BEFORE)]
    rows: list[list[str]] = [[one.name] for one in present] + [[_BARE]]
    head = ["MB/s: median (max)"]
    for shape in _SHAPES:
        runs = _runs(setting, shape, present)
        head += [shape.name, "x shape", "CPU s", "x shape"]
        for row in rows:
            row += _cells(setting, shape, runs[row[0]], runs[_BARE])
        for what in ("seconds", "cpu"):
            own = {name: [getattr(run, what) for run in found] for name, found in runs.items()}
            setting.check_floor(f"{shape.name}, {what}", own.pop(_BARE), own)
    tables.show("output in other shapes, to a file; the first ratio is one of speeds", head, rows)


def _cells(setting: Setting, shape: Shape, runs: list[Run], base: list[Run]) -> list[str]:
    """Return the cells about one shape: speed and CPU seconds, with ratios to those of the bare program."""
    megabytes = _each(setting, shape) * shape.tasks / _MEGA
    speeds = [megabytes / run.seconds for run in runs]
    cpu = [run.cpu for run in runs]
    return [
        f"{statistics.median(speeds):.0f} ({max(speeds):.0f})",
        tables.ratio(speeds, [megabytes / run.seconds for run in base]),
        tables.times(cpu),
        tables.ratio(cpu, [run.cpu for run in base]),
    ]


def _each(setting: Setting, shape: Shape) -> int:
    """Return the number of bytes that each task prints."""
    megabytes = shape.megabytes // 10 if setting.quick else shape.megabytes
    return int(megabytes * _MEGA / shape.tasks)


def _runs(setting: Setting, shape: Shape, present: list[Contender]) -> dict[str, list[Run]]:
    """Run one shape under each contender and by the bare program, and return the runs by name."""
    runs: dict[str, list[Run]] = defaultdict(list)
    each = _each(setting, shape)
    for _ in range(setting.rounds):
        for contender in [*present, None]:
            folder = setting.folder("shapes")
            program = task_program("flood", each, shape.block, shape.line)
            call = Call(shape.tasks, program, folder, prefixed=True)
            if contender is None:
                command = [*PYTHON, _SHAPE, str(shape.tasks), str(folder), *program]
            else:
                command = contender.command(call)
            with open(folder / "output", "wb") as output:
                done = processes.run(command, _TIME_LIMIT, output)
            if contender is not None:
                _check(setting, contender, shape, each, folder, done.code)
            runs[_BARE if contender is None else contender.name].append(done)
            shutil.rmtree(folder)
    return runs


def _check(
    setting: Setting, contender: Contender, shape: Shape, each: int, folder: Path, code: int | None
) -> None:
    """Add a fault if launch has failed, or its output is shorter than what the tasks have printed.

    Prefixes, newlines and the table of launch make it longer.
    """
    size = os.stat(folder / "output").st_size
    if code != 0 or size < each * shape.tasks:
        setting.fault(contender, f"{shape.name}: ended with {code}, {size} bytes of {each * shape.tasks}")

"""Output in other shapes: launch against its own bare shape (``programs/shape.py``)."""

from __future__ import annotations

import os
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from bench import processes, tables
from bench.contenders import LAUNCH, Call, Contender, task_program
from bench.setting import Setting

_SHAPE = str(Path(__file__).resolve().parent / "programs" / "shape.py")
_MEGA = 1e6
_TIME_LIMIT = 300.0


class Shape(NamedTuple):
    """Tasks that print so many megabytes in all, in writes of ``block`` bytes; ``line``: bytes of a line."""

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
    """Measure and print."""
    present = [one for one in setting.present if one.name in (LAUNCH, "before")]
    rows: list[list[str]] = [[one.name] for one in present] + [["bare shape"]]
    head = ["MB/s: median (max)"]
    for shape in _SHAPES:
        speeds = _speeds(setting, shape, present)
        head += [shape.name, "x shape"]
        for row in rows:
            row += _cells(speeds[row[0]], speeds["bare shape"])
    tables.show("output in other shapes, to a file; ratios are speeds", head, rows)


def _cells(speeds: list[float], base: list[float]) -> list[str]:
    middle = sorted(speeds)[len(speeds) // 2]
    return [f"{middle:.0f} ({max(speeds):.0f})", f"{middle / sorted(base)[len(base) // 2]:.2f}"]


def _speeds(setting: Setting, shape: Shape, present: list[Contender]) -> dict[str, list[float]]:
    speeds: dict[str, list[float]] = defaultdict(list)
    megabytes = shape.megabytes // 10 if setting.quick else shape.megabytes
    each = int(megabytes * _MEGA / shape.tasks)
    for _ in range(setting.rounds):
        for contender in [*present, None]:
            folder = setting.folder("shapes")
            program = task_program("flood", each, shape.block, shape.line)
            call = Call(shape.tasks, program, folder, prefixed=True)
            if contender is None:
                command = [sys.executable, _SHAPE, str(shape.tasks), str(folder), *program]
            else:
                command = contender.command(call)
            with open(folder / "output", "wb") as output:
                done = processes.run(command, _TIME_LIMIT, output)
            if contender is not None:
                _check(setting, contender, shape, each, folder, done.code)
            name = contender.name if contender is not None else "bare shape"
            speeds[name].append(each * shape.tasks / _MEGA / done.seconds)
            shutil.rmtree(folder)
    return speeds


def _check(
    setting: Setting, contender: Contender, shape: Shape, each: int, folder: Path, code: int | None
) -> None:
    """Every byte that was printed is there: without prefixes, table and newlines of ours."""
    size = os.stat(folder / "output").st_size
    if code != 0 or size < each * shape.tasks:
        setting.fault(contender, f"{shape.name}: ended with {code}, {size} bytes of {each * shape.tasks}")

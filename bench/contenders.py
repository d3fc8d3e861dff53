"""What the bench compares: launch, its peers and the floor, with their command lines.

`bench.run` asks for all contenders, and the measurements start them. A contender that is missing stays in the
list with the reason, so that no table leaves it out silently.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import peers

_PROGRAMS = Path(__file__).resolve().parent / "programs"
#: A Python that imports nothing by itself, for the floors.
PYTHON = (sys.executable, "-E", "-S")
LAUNCH, BEFORE, HONCHO, MPIRUN, TORCHRUN, FLOOR = "launch", "before", "honcho", "mpirun", "torchrun", "floor"


class Call(NamedTuple):
    """What to run: so many tasks of this program. ``folder`` is for what a contender needs to be told."""

    tasks: int
    program: Sequence[str]
    folder: Path
    #: Are lines to carry their task's name?
    prefixed: bool = False


class Contender(NamedTuple):
    """One launcher."""

    name: str
    version: str
    command: Callable[[Call], list[str]]
    #: How a prefixed line begins; the group ``named`` is the task's number.
    prefix: bytes
    #: Why it cannot be measured. Empty if it can.
    missing: str = ""
    #: Seconds after which a start counts as no answer.
    time_limit: float = 30.0


def task_program(*args: object) -> list[str]:
    """The command of a measured task (see ``programs/task.py``)."""
    return [sys.executable, "-I", "-S", str(_PROGRAMS / "task.py"), *map(str, args)]


def all_contenders(launch: str, before: str | None, chosen: Collection[str]) -> list[Contender]:
    """Every contender, the missing ones too; peers are installed on the way.

    Args:
        launch: path of the launch to measure.
        before: path of another launch, measured under the name `BEFORE`.
        chosen: names of the other programs.
    """
    also = [] if before is None else [_launch(before)._replace(name=BEFORE)]
    others = {HONCHO: _honcho, MPIRUN: _mpirun, TORCHRUN: _torchrun, FLOOR: _floor}
    return [_launch(launch), *also, *(make() for name, make in others.items() if name in chosen)]


def _launch(path: str) -> Contender:
    def command(call: Call) -> list[str]:
        return [path, "--workers", str(call.tasks), "--", *call.program]

    version, missing = peers.version_of([path, "--version"])
    return Contender(LAUNCH, version, command, rb"worker/(?P<named>\d+) *\| ", missing)


def _honcho() -> Contender:
    found = peers.honcho()

    def command(call: Call) -> list[str]:
        procfile = call.folder / "Procfile"
        program = shlex.join(call.program)
        lines = (f"t{index}: TASK_INDEX={index} {program}\n" for index in range(call.tasks))
        procfile.write_text("".join(lines))
        return [found.path, "-f", str(procfile), "start"]

    return Contender(HONCHO, found.version, command, rb"[\d:]+ t(?P<named>\d+)\.1 *\| ", found.missing)


def _mpirun() -> Contender:
    found = peers.mpirun()
    major = re.search(r"\d+", found.version)
    tag = ["--tag-output"] if major is None or int(major[0]) < 5 else ["--output", "tag"]
    common = [found.path, "--allow-run-as-root", "--oversubscribe"]

    def command(call: Call) -> list[str]:
        return [*common, *(tag if call.prefixed else ()), "-n", str(call.tasks), *call.program]

    return Contender(
        MPIRUN, found.version, command, rb"\[1,(?P<named>\d+)\]<stdout>: ?", found.missing, time_limit=15.0
    )


def _torchrun() -> Contender:
    found = peers.torchrun()

    def command(call: Call) -> list[str]:
        tee = ["--tee", "3", "--log-dir", str(call.folder)] if call.prefixed else []
        how = ["--no-python", "--standalone", "--nproc-per-node", str(call.tasks)]
        return [found.path, *how, *tee, *call.program]

    return Contender(
        TORCHRUN, found.version, command, rb"\[\D*(?P<named>\d+)\]:", found.missing, time_limit=120.0
    )


def _floor() -> Contender:
    def command(call: Call) -> list[str]:
        kind = "copy" if call.prefixed else "spawn"
        return [*PYTHON, str(_PROGRAMS / "floor.py"), kind, str(call.tasks), *call.program]

    version = "a bare Python loop"
    return Contender(FLOOR, version, command, rb"task (?P<named>\d+) \| ")


def true() -> list[str]:
    """The command of a task that exits at once."""
    return [shutil.which("true") or "/bin/true"]

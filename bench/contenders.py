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
    """What a contender is to run: a program, in each of a number of tasks."""

    tasks: int
    program: Sequence[str]
    #: A folder for the files that a contender needs, such as a Procfile.
    folder: Path
    #: Whether each line of output begins with the name of its task.
    prefixed: bool = False


class Contender(NamedTuple):
    """A launcher, or another program that starts several tasks, with its command line."""

    name: str
    version: str
    command: Callable[[Call], list[str]]
    #: A pattern for the beginning of a prefixed line. Its group ``named`` is the number of the task.
    prefix: bytes
    #: Why it cannot be measured. It is empty if it can.
    missing: str = ""
    #: The time limit for a run.
    time_limit: float = 30.0


def task_program(*args: object) -> list[str]:
    """Return the command of a measured task, which runs ``programs/task.py`` with these arguments."""
    return [sys.executable, "-I", "-S", str(_PROGRAMS / "task.py"), *map(str, args)]


def all_contenders(launch: str, before: str | None, chosen: Collection[str]) -> list[Contender]:
    """Return all contenders, including those that are missing. Peers are installed on the way.

    Args:
        launch: The path of the launch to measure.
        before: The path of another launch, which is measured under the name `BEFORE`. None means no other.
        chosen: The names of the other programs.
    """
    also = [] if before is None else [_launch(before)._replace(name=BEFORE)]
    others = {HONCHO: _honcho, MPIRUN: _mpirun, TORCHRUN: _torchrun, FLOOR: _floor}
    return [_launch(launch), *also, *(make() for name, make in others.items() if name in chosen)]


def _launch(path: str) -> Contender:
    """Return the launch at a path."""

    def command(call: Call) -> list[str]:
        return [path, "--workers", str(call.tasks), "--", *call.program]

    version, missing = peers.version_of([path, "--version"])
    return Contender(LAUNCH, version, command, rb"worker/(?P<named>\d+) *\| ", missing)


def _honcho() -> Contender:
    """Return honcho, whose tasks are lines of a Procfile."""
    found = peers.honcho()

    def command(call: Call) -> list[str]:
        procfile = call.folder / "Procfile"
        program = shlex.join(call.program)
        lines = (f"t{index}: TASK_INDEX={index} {program}\n" for index in range(call.tasks))
        procfile.write_text("".join(lines))
        return [found.path, "-f", str(procfile), "start"]

    return Contender(HONCHO, found.version, command, rb"[\d:]+ t(?P<named>\d+)\.1 *\| ", found.missing)


def _mpirun() -> Contender:
    """Return mpirun, whose option for prefixes depends on its version."""
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
    """Return torchrun, which prefixes lines only if it also writes them to files."""
    found = peers.torchrun()

    def command(call: Call) -> list[str]:
        tee = ["--tee", "3", "--log-dir", str(call.folder)] if call.prefixed else []
        how = ["--no-python", "--standalone", "--nproc-per-node", str(call.tasks)]
        return [found.path, *how, *tee, *call.program]

    return Contender(
        TORCHRUN, found.version, command, rb"\[\D*(?P<named>\d+)\]:", found.missing, time_limit=120.0
    )


def _floor() -> Contender:
    """Return the floor, a bare Python loop that does the least there is to do."""

    def command(call: Call) -> list[str]:
        kind = "copy" if call.prefixed else "spawn"
        return [*PYTHON, str(_PROGRAMS / "floor.py"), kind, str(call.tasks), *call.program]

    version = "a bare Python loop"
    return Contender(FLOOR, version, command, rb"task (?P<named>\d+) \| ")


def true() -> list[str]:
    """Return the command of a task that exits at once."""
    return [shutil.which("true") or "/bin/true"]

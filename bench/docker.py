"""Measures containers: until all tasks run, and from their end to that of the command.

`bench.run` calls `measure`. It needs a Docker engine, and removes every container that it has started.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import processes, tables
from bench.contenders import LAUNCH
from bench.setting import Setting
from tests.docker import engine as lab
from tests.docker.engine import BASE, Engine

_COUNT = 4
#: The time limit for all tasks to run, and for a command to exit.
_TIME_LIMIT = 60.0
_POLL_SECONDS = 0.002
_SCRIPT = str(Path(__file__).resolve().parent / "programs" / "containers.sh")
#: The program of a task in a shell, which the tasks of `_SCRIPT` run, too.
_TASK = 'mktemp "$0/up-XXXXXX" >/dev/null; until test -e "$0/end"; do sleep 0.05; done'


class Run(NamedTuple):
    """The times of one run, in seconds from the start of the command.

    ``first`` and ``last`` are when the first and the last task ran. ``end`` counts from the end of the tasks
    to that of the command.
    """

    first: float
    last: float
    end: float
    #: CPU seconds of the command and its children, without those of the engine.
    cpu: float


#: Returns the command line of a contender. Its tasks make a file in the given folder when they run.
Command = Callable[[Path], Sequence[str]]


def measure(setting: Setting) -> None:
    """Run four containers with each contender, round by round, and print the table."""
    with _engine() as engine:
        if isinstance(engine, str):
            print(f"\ndocker: MISSING: {engine}")
            return
        version = engine.docker("version", "--format", "{{.Server.Version}}")
        print(f"  docker: {version} at {engine.host}, image {BASE}")
        try:
            runs = _measure(setting, engine)
        finally:
            _clean(engine)
    _show(runs)


@contextmanager
def _engine() -> Iterator[Engine | str]:
    """Return a context with a Docker engine, whose address is in the environment meanwhile.

    It is the engine of this machine, or one that is started for the context. If there is none, the value is
    the reason.
    """
    made = lab.engine()
    try:
        found = made.__enter__()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        yield str(error).partition("\n")[0]
        return
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = found.host
    try:
        yield found
    finally:
        os.environ.pop("DOCKER_HOST")
        if before is not None:
            os.environ["DOCKER_HOST"] = before
        made.__exit__(None, None, None)


def _measure(setting: Setting, engine: Engine) -> dict[str, list[Run]]:
    """Run each contender in each round, and return its runs by its name."""
    contenders: dict[str, Command] = {
        LAUNCH: lambda folder: _launch(setting.launch, folder),
        "docker run -d, one by one": lambda folder: [_SCRIPT, BASE, str(folder), str(_COUNT), "one"],
        "docker run -d, all at once, own network": lambda folder: [
            _SCRIPT, BASE, str(folder), str(_COUNT), "all"
        ],
    }  # fmt: skip
    runs: dict[str, list[Run]] = defaultdict(list)
    for _ in range(setting.rounds):
        for name, command in contenders.items():
            runs[name] += _once(setting, name, command)
            left = engine.lines("ps", "-aq", "--filter", "label=tf-launcher.owner")
            if name == LAUNCH and left:
                setting.faults.append(f"launch: left {len(left)} containers")
    return runs


def _clean(engine: Engine) -> None:
    """Remove containers and networks that the script has left because it was killed."""
    ours = ("--filter", "label=tf-launcher-bench")
    for container in engine.lines("ps", "-aq", *ours):
        engine.tried("rm", "-f", container)
    for network in engine.lines("network", "ls", "-q", *ours):
        engine.tried("network", "rm", network)


def _launch(path: str, folder: Path) -> Sequence[str]:
    """Return the command line of a launch whose tasks run in containers and share a folder."""
    words = ["--docker", BASE, "--workers", str(_COUNT), "--no-mount", "--mount", str(folder)]
    return [path, *words, "--", "sh", "-c", _TASK, str(folder)]


def _once(setting: Setting, name: str, command: Command) -> list[Run]:
    """Run a contender once.

    Returns:
        The run. The list is empty if not all tasks ran, which is a fault of launch.
    """
    folder = setting.folder("docker")
    before, began = processes.spent(), time.time()
    process = processes.start(command(folder))
    try:
        marks = _all_up(folder, process)
        ending = time.perf_counter()
        (folder / "end").touch()
        in_time = processes.ended(process, _TIME_LIMIT)
        end = time.perf_counter() - ending
    finally:
        code = processes.finish(process)
    if len(marks) == _COUNT and in_time and code == 0:
        return [Run(min(marks) - began, max(marks) - began, end, processes.spent() - before)]
    if name == LAUNCH:
        setting.faults.append(f"launch: {_COUNT} containers ended with {code}, {len(marks)} of them ran")
    return []


def _all_up(folder: Path, process: subprocess.Popen[bytes]) -> list[float]:
    """Wait until all tasks run, and return when each has started, in seconds since the epoch.

    The list is empty if they do not run in time, or the command exits.
    """
    until = time.monotonic() + _TIME_LIMIT
    while time.monotonic() < until and process.poll() is None:
        marks = [mark.stat().st_mtime for mark in folder.glob("up-*")]
        if len(marks) >= _COUNT:
            return marks
        time.sleep(_POLL_SECONDS)
    return []


def _show(runs: dict[str, list[Run]]) -> None:
    """Print the table of all contenders."""
    rows = []
    for name, own in runs.items():
        cells = [_cells(own, runs[LAUNCH], which) for which in ("first", "last", "end")]
        cpu = tables.times([run.cpu for run in own]) if own else "-"
        rows.append([name, *(cell for pair in cells for cell in pair), cpu, str(len(own))])
    head = ["seconds: median (min)", "first runs", "x launch", f"all {_COUNT} run", "x launch"]
    head += ["done, all removed", "x launch", "CPU s", "runs"]
    tables.show(f"docker: {_COUNT} containers, from the command on", head, rows)


def _cells(own: Sequence[Run], launch: Sequence[Run], which: str) -> tuple[str, str]:
    """Return the cells about one time of a contender: its median, and the ratio to that of launch."""
    values = [getattr(run, which) for run in own]
    if not values:
        return "no answer", "-"
    return tables.times(values), tables.ratio(values, [getattr(run, which) for run in launch])

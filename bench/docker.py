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
#: Seconds for tasks to run, and for a command to end.
_TIME_LIMIT = 60.0
_LOOK = 0.002
_SCRIPT = str(Path(__file__).resolve().parent / "programs" / "containers.sh")
#: What the tasks of `_SCRIPT` do, too.
_TASK = 'mktemp "$0/up-XXXXXX" >/dev/null; until test -e "$0/end"; do sleep 0.05; done'


class Run(NamedTuple):
    """Seconds until the first and the last task ran, and from their end to that of the command."""

    first: float
    last: float
    end: float
    #: CPU seconds of the command and what it started here: not of the engine.
    cpu: float


#: A contender's command line, from the folder in which its tasks mark that they run.
Command = Callable[[Path], Sequence[str]]


def measure(setting: Setting) -> None:
    """Measure and print."""
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
    """The engine that is here, or one of our own for as long as this takes; or why there is none."""
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
    """What the script has left, should it have been ended in the middle."""
    ours = ("--filter", "label=tf-launcher-bench")
    for container in engine.lines("ps", "-aq", *ours):
        engine.tried("rm", "-f", container)
    for network in engine.lines("network", "ls", "-q", *ours):
        engine.tried("network", "rm", network)


def _launch(path: str, folder: Path) -> Sequence[str]:
    words = ["--docker", BASE, "--workers", str(_COUNT), "--no-mount", "--mount", str(folder)]
    return [path, *words, "--", "sh", "-c", _TASK, str(folder)]


def _once(setting: Setting, name: str, command: Command) -> list[Run]:
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
    """When each task began to run, as the shared folder has it."""
    until = time.monotonic() + _TIME_LIMIT
    while time.monotonic() < until and process.poll() is None:
        marks = [mark.stat().st_mtime for mark in folder.glob("up-*")]
        if len(marks) >= _COUNT:
            return marks
        time.sleep(_LOOK)
    return []


def _show(runs: dict[str, list[Run]]) -> None:
    rows = []
    for name, own in runs.items():
        cells = [_cells(own, runs[LAUNCH], which) for which in ("first", "last", "end")]
        cpu = tables.times([run.cpu for run in own]) if own else "-"
        rows.append([name, *(cell for pair in cells for cell in pair), cpu, str(len(own))])
    head = ["seconds: median (min)", "first runs", "x launch", f"all {_COUNT} run", "x launch"]
    head += ["done, all removed", "x launch", "CPU s", "runs"]
    tables.show(f"docker: {_COUNT} containers, from the command on", head, rows)


def _cells(own: Sequence[Run], launch: Sequence[Run], which: str) -> tuple[str, str]:
    values = [getattr(run, which) for run in own]
    if not values:
        return "no answer", "-"
    return tables.times(values), tables.ratio(values, [getattr(run, which) for run in launch])

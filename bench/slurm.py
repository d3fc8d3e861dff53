"""Measures jobs of Slurm: start-up, bytes on the wire, and what the client needs.

`bench.run` calls `measure`. The nodes are namespaces of this machine, which only root can make.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import processes, rates, tables
from bench.setting import Setting
from tests.slurm.cluster import Cluster, a_cluster

_COUNTS = (3, 16)
#: The time limit for one run.
_TIME_LIMIT = 120.0
#: Seconds between two checks whether all tasks of a client run.
_POLL_SECONDS = 0.2
_LAUNCH, _SRUN = "launch", "srun"
#: A Python on each node, which every agent needs.
_PYTHON = "srun python"
#: The same tasks under launch on this machine, without Slurm.
_LOCAL = "launch here"


def measure(setting: Setting) -> None:
    """Make a cluster of each size, measure launch and bare ``srun``s there, and print the tables."""
    if os.geteuid() != 0:
        print("\nslurm: MISSING: its nodes are namespaces, which only root can make")
        return
    launch = [setting.launch]
    for count in _COUNTS:
        with (
            tempfile.TemporaryDirectory() as folder,
            a_cluster(Path(folder), f"b{os.getpid()}", count) as cluster,
            cluster.allocation(f"-N{count}", "--overcommit") as job,
        ):
            environ = {**os.environ, **job}
            nodes = [f"n{number}" for number in range(1, count + 1)]
            _start_up(setting, cluster, launch, environ, nodes)
            _needs(cluster, launch, environ, count)
            if count == _COUNTS[0]:
                _bytes(setting, cluster, launch, environ)


def _step(job: str, node: str, *program: str) -> list[str]:
    """Return the command line of a bare srun that runs a program on one node of an allocation."""
    return [
        "srun",
        f"--jobid={job}",
        "--overlap",
        "--mem=0",
        "-N1",
        "-n1",
        f"-w{node}",
        "--unbuffered",
        *program,
    ]


def _run(cluster: Cluster, commands: Sequence[Sequence[str]], environ: Mapping[str, str]) -> processes.Run:
    """Run clients at the same time until all have exited.

    Returns:
        Their time, their CPU seconds, and the exit code that is furthest from 0.
    """
    before, began = processes.spent(), time.perf_counter()
    started = [
        subprocess.Popen(
            [*cluster.enter, *argv], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for argv in commands
    ]  # fmt: skip
    codes = [process.wait(_TIME_LIMIT) for process in started]
    seconds = time.perf_counter() - began
    return processes.Run(seconds, processes.spent() - before, max(codes, key=abs))


def _start_up(
    setting: Setting,
    cluster: Cluster,
    launch: Sequence[str],
    environ: Mapping[str, str],
    nodes: Sequence[str],
) -> None:
    """Print how long ``true`` takes on all nodes, with launch, with bare sruns, and on this machine."""
    runs: dict[str, list[processes.Run]] = {_LAUNCH: [], _SRUN: [], _PYTHON: [], _LOCAL: []}
    python = [sys.executable, "-E", "-s", "-S", "-c", "pass"]
    for _ in range(setting.rounds):
        task = ["--workers", str(len(nodes)), "--no-check", "true"]
        one, local = [*launch, *task], [*launch, "--hosts", "localhost", *task]
        each = [_step(environ["SLURM_JOB_ID"], node, "true") for node in nodes]
        floor = [_step(environ["SLURM_JOB_ID"], node, *python) for node in nodes]
        every = ((_LAUNCH, [one]), (_SRUN, each), (_PYTHON, floor), (_LOCAL, [local]))
        for name, commands in every:
            run = _run(cluster, commands, environ)
            runs[name].append(run)
            if run.code != 0:
                setting.faults.append(f"slurm: {name} on {len(nodes)} nodes ended with {run.code}")
    base = [run.seconds for run in runs[_SRUN]]
    rows = [
        [name, tables.times([run.seconds for run in own]), tables.ratio([run.seconds for run in own], base),
         tables.times([run.cpu for run in own])]
        for name, own in runs.items()
    ]  # fmt: skip
    head = ["seconds: median (min)", f"true on {len(nodes)} nodes", f"x {_SRUN}", "client CPU s"]
    tables.show(f"slurm start-up: {len(nodes)} nodes", head, rows)


def _bytes(setting: Setting, cluster: Cluster, launch: Sequence[str], environ: Mapping[str, str]) -> None:
    """Print how fast the output of a task passes through launch and through a bare srun."""
    found = rates.Rates(setting, "slurm")
    for _ in range(setting.rounds):
        found.add(_LAUNCH, [*cluster.enter, *launch, "--", *rates.PROGRAM], environ)
        found.add(_SRUN, [*cluster.enter, *_step(environ["SLURM_JOB_ID"], "n1", *rates.PROGRAM)], environ)
    found.show(_SRUN)


def _needs(cluster: Cluster, launch: Sequence[str], environ: Mapping[str, str], count: int) -> None:
    """Print the memory and the CPU that launch needs while its tasks do nothing."""
    seconds = 5.0
    argv = [*cluster.enter, *launch, "--workers", str(count), "--", "sh", "-c", "echo up; exec sleep 60"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + _TIME_LIMIT
        while time.monotonic() < until and process.poll() is None:
            time.sleep(_POLL_SECONDS)
            output.seek(0)
            if output.read().count(b"| up") == count:
                break
        own = [process.pid, *processes.family(process.pid)]
        before = sum(map(processes.cpu_seconds, own))
        time.sleep(seconds)
        spent = sum(map(processes.cpu_seconds, own)) - before
        sruns = [pid for pid in own if processes.command(pid)[:1] == ["srun"]]
        sizes = [sum(processes.memory(pid)[0] for pid in pids) for pids in ([process.pid], sruns)]
        process.terminate()
        process.wait(_TIME_LIMIT)
    row = [
        f"{count} nodes",
        *(f"{size / count / 1e6:.1f}" for size in sizes),
        f"{spent / seconds / count * 1e3:.2f}",
    ]
    head = ["idle, for each node", "launch: MB (PSS)", "its srun: MB (PSS)", "CPU ms/s"]
    tables.show(f"slurm client: {count} nodes", head, [row])

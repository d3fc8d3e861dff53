"""Measures ``--relay``, the way back over SSH: bytes a second and the time of answers.

`bench.run` calls `measure`. It compares launch with ``ssh -R``, and with a Unix socket without SSH.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import processes, tables
from bench.programs.relay import ASK, DOWN, UP, serve
from bench.setting import Setting
from tests.seeing import soon
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab

_PROGRAM = Path(__file__).resolve().parent / "programs" / "relay.py"
_ROOT = Path(__file__).resolve().parent.parent
#: The bytes of one run over all its streams.
_BYTES, _FEW_BYTES = 100_000_000, 20_000_000
#: Without SSH, a run sends this many times as many bytes.
_TIMES_BARE = 10
#: The number of questions in a run.
_QUESTIONS = 200
#: The time limits in seconds for one run, and for a way to open.
_TIME_LIMIT, _OPEN = 100.0, 20.0
#: The port that ssh opens on the host.
_PORT = 17777
LAUNCH, SSH, BARE = "launch --relay", "ssh -R", "unix socket, no ssh"


class Case(NamedTuple):
    """A kind of traffic: its direction, and the number of streams at the same time."""

    title: str
    direction: str
    streams: int


_CASES = (
    Case("to the task, 1 stream", DOWN, 1),
    Case("to the task, 4 streams", DOWN, 4),
    Case("from the task, 1 stream", UP, 1),
    Case("from the task, 4 streams", UP, 4),
)
_ASKED = Case("answers, 1 stream", ASK, 1)


class Way(NamedTuple):
    """A way from a host to the socket on this machine."""

    #: The port on the host that leads to the socket, or the path of the socket itself.
    where: str
    #: The pid of the process on this machine that carries the bytes, or 0 if there is none.
    carrier: int
    #: Starts a program on the host, with pipes.
    start: Callable[[Sequence[str]], subprocess.Popen[bytes]]


class Run(NamedTuple):
    """How many seconds a run took, and the CPU seconds of the process that carried the bytes."""

    seconds: float
    cpu: float


def measure(setting: Setting) -> None:
    """Send each kind of traffic on each way, and print the tables."""
    if os.geteuid() != 0:
        print("\nrelay: MISSING: its host is a network namespace, which only root can make")
        return
    with (
        Lab(1) as lab,
        tempfile.TemporaryDirectory() as folder,
        _listening(f"{folder}/socket") as path,
        ExitStack() as stack,
    ):
        ways = {
            LAUNCH: stack.enter_context(_launch(lab, lab.hosts[0], path)),
            SSH: stack.enter_context(_ssh(lab, lab.hosts[0], path)),
            BARE: Way(path, 0, _start_here),
        }
        runs: dict[tuple[str, Case], list[Run]] = defaultdict(list)
        for _ in range(setting.rounds):
            for case in (*_CASES, _ASKED):
                for name, way in ways.items():
                    runs[name, case].append(_run(setting, name, way, case))
        _show(setting, runs)


@contextmanager
def _listening(path: str) -> Iterator[str]:
    """Listen at a socket, and answer what the program on the host sends, until the end of the context."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        try:
            yield path
        finally:
            listening.shutdown(socket.SHUT_RDWR)


@contextmanager
def _launch(lab: Lab, host: LabHost, path: str) -> Iterator[Way]:
    """Return a context with the way through launch's relay."""
    argv = [sys.executable, str(_PROGRAM), "carry", host.name, path]
    with _carrier(lab, argv) as carrier:
        assert carrier.stdout
        yield Way(carrier.stdout.readline().decode().strip(), carrier.pid, host.start)


@contextmanager
def _ssh(lab: Lab, host: LabHost, path: str) -> Iterator[Way]:
    """Return a context with the way through ``ssh -R``."""
    argv = ["ssh", "-F", str(lab.ssh_config), "-N", "-o", "ExitOnForwardFailure=yes"]
    with _carrier(lab, [*argv, "-R", f"127.0.0.1:{_PORT}:{path}", host.name]) as carrier:
        table = Path(f"/proc/{host.pid}/net/tcp")
        listens = f":{_PORT:04X} 00000000:0000 0A"
        soon(lambda: listens in table.read_text(), _OPEN, "ssh has opened its port")
        yield Way(str(_PORT), carrier.pid, host.start)


@contextmanager
def _carrier(lab: Lab, argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process that carries the bytes. It is stopped at the end of the context."""
    environment = {**os.environ, **lab.environment(), "PYTHONPATH": str(_ROOT)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, env=environment, cwd="/", start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        if not processes.ended(process, 5):
            process.kill()
        process.communicate()


def _start_here(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program on this machine, for the way without SSH."""
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")


def _run(setting: Setting, name: str, way: Way, case: Case) -> Run:
    """Let a program on the host send traffic of one kind on a way.

    A failure is a fault, and counts as the time limit.
    """
    before = _spent(way.carrier)
    size = _QUESTIONS if case is _ASKED else _size(setting, name) // case.streams
    argv = ["python3", str(_PROGRAM), "talk", case.direction, way.where, str(case.streams), str(size)]
    talking = way.start(argv)
    try:
        stdout, stderr = talking.communicate(timeout=_TIME_LIMIT)
    except subprocess.TimeoutExpired:
        talking.kill()
        stdout, stderr = talking.communicate()
    if talking.returncode:
        last = stderr.decode(errors="replace").strip().splitlines()[-1:]
        setting.faults.append(f"{name}: {case.title}: ended with {talking.returncode}: {last}")
        return Run(_TIME_LIMIT, 0.0)
    return Run(float(stdout), _spent(way.carrier) - before)


def _spent(carrier: int) -> float:
    """Return the CPU seconds of a process, including those of ended threads, because each stream has one."""
    if not carrier:
        return 0.0
    words = Path(f"/proc/{carrier}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _size(setting: Setting, name: str) -> int:
    """Return the bytes of one run on a way."""
    return (_FEW_BYTES if setting.quick else _BYTES) * (_TIMES_BARE if name == BARE else 1)


def _show(setting: Setting, runs: dict[tuple[str, Case], list[Run]]) -> None:
    """Print the tables of rates and of answers, from the runs by the names of the ways and the traffic."""
    rows = [
        [f"{case.title}: {name}", *_cells(setting, runs, name, case)]
        for case in _CASES
        for name in (LAUNCH, SSH, BARE)
    ]
    head = ["every byte looked at", "MB/s: median (max)", "x launch", "carrier's CPU s a GB"]
    tables.show("relay: from one host to a socket here, over SSH", head, rows)
    asked = {name: [run.seconds / _QUESTIONS for run in runs[name, _ASKED]] for name in (LAUNCH, SSH, BARE)}
    rows = [[name, tables.times(own, 1e-3), tables.ratio(own, asked[LAUNCH])] for name, own in asked.items()]
    head = [f"{_QUESTIONS} questions, one after the other", "ms: median (min)", "x launch"]
    tables.show("relay: a question of 100 bytes and its answer", head, rows)


def _cells(setting: Setting, runs: dict[tuple[str, Case], list[Run]], name: str, case: Case) -> list[str]:
    """Return the cells about the rates of a way: median, ratio to launch, and CPU of the carrier."""
    size = _size(setting, name) / 1e6
    speeds = [size / run.seconds for run in runs[name, case]]
    own = [_size(setting, LAUNCH) / 1e6 / run.seconds for run in runs[LAUNCH, case]]
    pairs = [speed / base for speed, base in zip(speeds, own, strict=True)]
    cpu = statistics.median(run.cpu for run in runs[name, case]) / size * 1e3
    return [
        f"{statistics.median(speeds):,.0f} ({max(speeds):,.0f})",
        f"{statistics.median(pairs):.2f}x",
        "-" if name == BARE else f"{cpu:.1f}",
    ]

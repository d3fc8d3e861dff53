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
#: Bytes of one run over all its streams, and how often as many where there is no SSH; questions.
_BYTES, _FEW_BYTES, _TIMES_BARE, _QUESTIONS = 100_000_000, 20_000_000, 10, 200
#: Seconds that one run may take, and that a way may take to open.
_TIME_LIMIT, _OPEN = 100.0, 20.0
#: The port that ssh opens on the host.
_PORT = 17777
LAUNCH, SSH, BARE = "launch --relay", "ssh -R", "unix socket, no ssh"


class Case(NamedTuple):
    """Traffic to send."""

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
    """Something that leads from a host to the socket here."""

    #: A port there, or a path; and the pid of the process that forwards it here, 0: none.
    where: str
    carrier: int
    #: Starts a program of the host's side, with pipes.
    start: Callable[[Sequence[str]], subprocess.Popen[bytes]]


class Run(NamedTuple):
    """Seconds, and CPU seconds of the process that forwarded it here."""

    seconds: float
    cpu: float


def measure(setting: Setting) -> None:
    """Measure and print."""
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
    """A listener at a socket here."""
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
    argv = [sys.executable, str(_PROGRAM), "carry", host.name, path]
    with _carrier(lab, argv) as carrier:
        assert carrier.stdout
        yield Way(carrier.stdout.readline().decode().strip(), carrier.pid, host.start)


@contextmanager
def _ssh(lab: Lab, host: LabHost, path: str) -> Iterator[Way]:
    argv = ["ssh", "-F", str(lab.ssh_config), "-N", "-o", "ExitOnForwardFailure=yes"]
    with _carrier(lab, [*argv, "-R", f"127.0.0.1:{_PORT}:{path}", host.name]) as carrier:
        table = Path(f"/proc/{host.pid}/net/tcp")
        listens = f":{_PORT:04X} 00000000:0000 0A"
        soon(lambda: listens in table.read_text(), _OPEN, "ssh has opened its port")
        yield Way(str(_PORT), carrier.pid, host.start)


@contextmanager
def _carrier(lab: Lab, argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
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
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")


def _run(setting: Setting, name: str, way: Way, case: Case) -> Run:
    """Have a program on the host send it."""
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
    """Its CPU seconds, with those of threads that have ended: each way has its own."""
    if not carrier:
        return 0.0
    words = Path(f"/proc/{carrier}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _size(setting: Setting, name: str) -> int:
    """Bytes of one run."""
    return (_FEW_BYTES if setting.quick else _BYTES) * (_TIMES_BARE if name == BARE else 1)


def _show(setting: Setting, runs: dict[tuple[str, Case], list[Run]]) -> None:
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

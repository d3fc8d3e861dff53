"""Measures the feed: rows go from one process to two others, beside a bare socket and a manager's queue.

`bench.run` calls `measure`. The consumers are processes that run ``programs/feed.py``.
"""

from __future__ import annotations

import pickle
import queue
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, NamedTuple

from bench import processes, tables
from bench.setting import Setting

_CONSUMERS, _BATCH = 2, 1000
_PROGRAM = Path(__file__).parent / "programs" / "feed.py"
_ROOT = Path(__file__).parents[1]
#: Seconds for a consumer to come up, or to be done.
_TIME_LIMIT = 120.0
FEED, BARE, QUEUE = "feed", "bare socket", "manager queue"


class Kind(NamedTuple):
    """Rows of one kind."""

    name: str
    #: Makes a partition of so many rows.
    make: Callable[[int], Any]
    #: Rows of a partition; partitions for the ways that are fast; rows for the one that is slow.
    rows: int
    partitions: int
    few: int
    #: Rows of about a mebibyte, for the bare socket.
    chunk: int


class Run(NamedTuple):
    """What one run has shown."""

    #: Rows a second, at the consumers.
    speed: float
    #: MiB of memory that a consumer had at most.
    memory: float
    #: CPU seconds of all its processes for a million rows.
    cpu: float


def measure(setting: Setting) -> None:
    """Measure and print."""
    rows = [_row(setting, kind) for kind in kinds()]
    ways = (FEED, BARE, QUEUE)
    head = ["rows a second at the consumers: median (max)", *ways, "x bare", "x queue"]
    head += [*(f"{way}: CPU s a million rows" for way in ways), "runs"]
    title = f"feed: one process to {_CONSUMERS} others, batches of {_BATCH:,} rows"
    tables.show(title, head, rows)
    _slow(setting)


def kinds() -> list[Kind]:
    """The rows that are fed."""
    import numpy

    def vectors(many: int) -> Any:
        return numpy.random.default_rng(1).random((many, 784), dtype=numpy.float32)

    return [
        Kind(
            "text of 200 bytes",
            lambda many: [f"{n:07d}" + "x" * 193 for n in range(many)],
            100_000,
            40,
            6000,
            5000,
        ),
        Kind(
            "small tuples",
            lambda many: [(n, n * 0.5, f"id{n}") for n in range(many)],
            100_000,
            40,
            6000,
            16384,
        ),
        Kind("784 floats, lists", lambda many: vectors(many).astype(float).tolist(), 3000, 10, 2000, 150),
        Kind("784 floats, arrays", lambda many: list(vectors(many)), 20_000, 20, 4000, 330),
        Kind("784 floats, one array", vectors, 20_000, 40, 4000, 330),
    ]


def _row(setting: Setting, kind: Kind) -> list[str]:
    ways = {FEED: _through_feed, BARE: _through_socket, QUEUE: _through_queue}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    data = kind.make(kind.rows)
    for number in range(setting.rounds):
        for name, way in ways.items():
            if name != QUEUE or number < 2:
                runs[name].append(_once(setting, kind, data, way))
    speeds = {name: [run.speed for run in found] for name, found in runs.items()}
    pairs = [feed / bare for feed, bare in zip(speeds[FEED], speeds[BARE], strict=True)]
    shown = [f"{statistics.median(found):,.0f} ({max(found):,.0f})" for found in speeds.values()]
    times = [
        f"{statistics.median(pairs):.2f}",
        f"{statistics.median(speeds[FEED]) / statistics.median(speeds[QUEUE]):.0f}",
    ]
    cpu = [f"{statistics.median(run.cpu for run in found):.1f}" for found in runs.values()]
    return [kind.name, *shown, *times, *cpu, str(setting.rounds)]


def _once(setting: Setting, kind: Kind, data: Any, way: Callable[..., tuple[int, float]]) -> Run:
    folder, before = setting.folder("feed"), processes.spent() + time.process_time()
    with _Consumers(folder, way.__name__.rpartition("_")[2]) as consumers:
        rows, seconds = way(consumers, kind, data, 4 if setting.quick else 1)
        reports = consumers.reports()
    if sum(one[0] for one in reports) != rows:
        setting.faults.append(f"feed: {kind.name}: {rows:,} rows fed, {reports} came through {way.__name__}")
    cpu = processes.spent() + time.process_time() - before
    return Run(rows / seconds, max(one[1] for one in reports) / 1024, 1e6 * cpu / rows)


class _Consumers:
    """Two consumer processes, and the socket that they connect to."""

    def __init__(self, folder: Path, way: str, pause: float = 0.0) -> None:
        self.address = str(folder / "socket")
        self._way = {"feed": "feed", "socket": "bare", "queue": "queue"}[way]
        self._pause = pause
        self._door = socket.socket(socket.AF_UNIX)
        self._came: dict[str, queue.Queue[socket.socket]] = {}
        #: What was started.
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Consumers:
        self._door.bind(self.address)
        self._door.listen(8)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def start(self) -> None:
        """Start the processes."""
        argv = [sys.executable, str(_PROGRAM), self._way, self.address, str(_BATCH), str(self._pause)]
        environment = {"PYTHONPATH": str(_ROOT), "OPENBLAS_NUM_THREADS": "1"}
        self.processes = [subprocess.Popen(argv, env=environment) for _ in range(_CONSUMERS)]

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(2)
        self._door.close()
        self._thread.join()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def came(self, purpose: str) -> socket.socket:
        """The next connection for this purpose."""
        return self._waiting(purpose).get(timeout=_TIME_LIMIT)

    def reports(self) -> list[tuple[int, int]]:
        """Rows and KiB of memory of each."""
        found = []
        for _ in range(_CONSUMERS):
            with self.came("report") as sock:
                rows, memory = sock.recv(64).split()
                found.append((int(rows), int(memory)))
        return found

    def _waiting(self, purpose: str) -> queue.Queue[socket.socket]:
        return self._came.setdefault(purpose, queue.Queue())

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._door.accept()
            except OSError:
                return
            self._waiting(sock.recv(16, socket.MSG_WAITALL).decode().strip()).put(sock)


@contextmanager
def _fed(consumers: _Consumers) -> Iterator[Any]:
    """A feeder that both consumers have come to."""
    from launcher.feed.feeder import Feeder
    from launcher.feed.listener import FeedPeer

    feeder = Feeder([f"worker/{place}" for place in range(_CONSUMERS)])
    consumers.start()
    try:
        for place in range(_CONSUMERS):
            feeder.add(
                FeedPeer(
                    f"worker/{place}",
                    attempt=1,
                    purpose="feed",
                    feed="input",
                    hello={},
                    sock=consumers.came("input"),
                )
            )
        yield feeder
    finally:
        feeder.finish()
        feeder.close()


def _through_feed(consumers: _Consumers, kind: Kind, data: Any, part: int) -> tuple[int, float]:
    from launcher.feed.sources import partitions

    with _fed(consumers) as feeder:
        many = max(2, kind.partitions // part)
        since = time.perf_counter()
        feeder.train(partitions([data] * many))
        seconds = time.perf_counter() - since
    return many * kind.rows, seconds


def _through_socket(consumers: _Consumers, kind: Kind, data: Any, part: int) -> tuple[int, float]:
    many = max(2, kind.partitions // part) // _CONSUMERS
    consumers.start()
    socks = [consumers.came("bare") for _ in range(_CONSUMERS)]
    threads = [threading.Thread(target=_send, args=[sock, kind, data, many]) for sock in socks]
    since = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread, sock in zip(threads, socks, strict=True):
        thread.join()
        sock.recv(1)
    seconds = time.perf_counter() - since
    for sock in socks:
        sock.close()
    return many * _CONSUMERS * kind.rows, seconds


def _send(sock: socket.socket, kind: Kind, data: Any, many: int) -> None:
    for _ in range(many):
        for at in range(0, kind.rows, kind.chunk):
            pickled = pickle.dumps(data[at : at + kind.chunk], pickle.HIGHEST_PROTOCOL)
            sock.sendall(struct.pack("<Q", len(pickled)))
            sock.sendall(pickled)
    sock.sendall(struct.pack("<Q", 0))


def _through_queue(consumers: _Consumers, kind: Kind, data: Any, part: int) -> tuple[int, float]:
    """Row by row, each a call of a manager in a process of its own, one feeding thread for each consumer."""
    few = kind.few // part
    queues: list[Any] = []

    class Manager(BaseManager):
        """Has the queues."""

    Manager.register("queue", _queue_of)
    with Manager(consumers.address + ".manager", authkey=b"bench") as manager:
        consumers.start()
        queues = [manager.queue(place) for place in range(_CONSUMERS)]  # type: ignore[attr-defined]
        socks = [consumers.came("queue") for _ in range(_CONSUMERS)]
        for place, sock in enumerate(socks):
            sock.sendall(b"%d" % place)
        since = time.perf_counter()
        threads = [threading.Thread(target=_put, args=[one, data[:few]]) for one in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - since
        for one, sock in zip(queues, socks, strict=True):
            one.put(None)
            sock.recv(1)
            sock.close()
    return few * _CONSUMERS, seconds


_QUEUES: dict[int, queue.Queue[Any]] = {}


def _queue_of(place: int) -> queue.Queue[Any]:
    return _QUEUES.setdefault(place, queue.Queue(1024))


def _put(one: Any, rows: Sequence[Any]) -> None:
    for row in rows:
        one.put(row)
    one.join()


def _slow(setting: Setting) -> None:
    """Consumers that take a while for each batch: how much memory driver and consumers have then."""
    made = [0]
    with _Consumers(setting.folder("feed"), "feed", pause=0.05) as consumers:
        seconds = 2.0 if setting.quick else 6.0
        before = _memory("self", "VmRSS")
        with _fed(consumers) as feeder:
            timer = threading.Timer(seconds, feeder.fail, [_EnoughError()])
            timer.start()
            try:
                feeder.train(_endless(made))
            except _EnoughError:
                pass
            timer.join()
            driver = _memory("self", "VmRSS") - before
        most = max(memory for _, memory in consumers.reports()) / 1024
    size = made[0] * 200 / (1 << 20)
    row = ["text of 200 bytes", f"{made[0]:,}", f"{size:.0f} MiB", f"{driver:.0f} MiB", f"{most:.0f} MiB"]
    head = ["rows of an endless generator", "read", "that is", "driver grew by", "a consumer had at most"]
    tables.show(f"feed: memory when a batch takes 50 ms, after {seconds:g} s", head, [row])


class _EnoughError(Exception):
    """It was slow for long enough."""


def _endless(made: list[int]) -> Iterator[Iterator[str]]:
    def rows() -> Iterator[str]:
        for _ in range(50_000):
            made[0] += 1
            yield f"{made[0]:07d}" + "x" * 193

    while True:
        yield rows()


def _memory(pid: str, what: str) -> float:
    """MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(what + ":")[2].split()[0]) / 1024

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
#: The time limit for a consumer to connect, or to report.
_TIME_LIMIT = 120.0
FEED, BARE, QUEUE = "feed", "bare socket", "manager queue"


class Kind(NamedTuple):
    """A kind of rows, with the amounts in which they are fed."""

    name: str
    #: Returns a partition with the given number of rows.
    make: Callable[[int], Any]
    #: The number of rows in a partition.
    rows: int
    #: The number of partitions that are fed by the feed and the bare socket.
    partitions: int
    #: The number of rows for each consumer that are fed by the manager's queue, which is slow.
    few: int
    #: The number of rows that take about a mebibyte, for the bare socket.
    chunk: int


class Run(NamedTuple):
    """The results of one run."""

    #: Rows a second that arrived at the consumers.
    speed: float
    #: The largest memory of a consumer, in MiB.
    memory: float
    #: CPU seconds of all its processes for a million rows.
    cpu: float


def measure(setting: Setting) -> None:
    """Feed each kind of rows in each way, and print the tables of speed and of memory."""
    rows = [_row(setting, kind) for kind in kinds()]
    ways = (FEED, BARE, QUEUE)
    head = ["rows a second at the consumers: median (max)", *ways, "x bare", "x queue"]
    head += [*(f"{way}: CPU s a million rows" for way in ways), "runs"]
    title = f"feed: one process to {_CONSUMERS} others, batches of {_BATCH:,} rows"
    tables.show(title, head, rows)
    _slow(setting)


def kinds() -> list[Kind]:
    """Return the kinds of rows that are fed."""
    import numpy

    def vectors(many: int) -> Any:
        """Return random rows of 784 floats as one array."""
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
    """Feed one kind of rows in each way, round by round, and return its row of the table."""
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
    """Feed rows in one way, and check that all of them arrived.

    Args:
        setting: Receives a fault if rows are missing.
        kind: The kind of rows.
        data: A partition of them.
        way: The function that feeds them. It returns their number, and the seconds that it took.
    """
    folder, before = setting.folder("feed"), processes.spent() + time.process_time()
    with _Consumers(folder, way.__name__.rpartition("_")[2]) as consumers:
        rows, seconds = way(consumers, kind, data, 4 if setting.quick else 1)
        reports = consumers.reports()
    if sum(one[0] for one in reports) != rows:
        setting.faults.append(f"feed: {kind.name}: {rows:,} rows fed, {reports} came through {way.__name__}")
    cpu = processes.spent() + time.process_time() - before
    return Run(rows / seconds, max(one[1] for one in reports) / 1024, 1e6 * cpu / rows)


class _Consumers:
    """Two consumer processes, and the socket to which they connect.

    Args:
        folder: The folder for the socket.
        way: How they receive rows: ``feed``, ``socket`` or ``queue``.
        pause: How many seconds they sleep for each batch.
    """

    def __init__(self, folder: Path, way: str, pause: float = 0.0) -> None:
        self.address = str(folder / "socket")
        self._way = {"feed": "feed", "socket": "bare", "queue": "queue"}[way]
        self._pause = pause
        self._door = socket.socket(socket.AF_UNIX)
        self._came: dict[str, queue.Queue[socket.socket]] = {}
        #: The consumers, after `start`.
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Consumers:
        self._door.bind(self.address)
        self._door.listen(8)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def start(self) -> None:
        """Start the consumers."""
        argv = [sys.executable, str(_PROGRAM), self._way, self.address, str(_BATCH), str(self._pause)]
        environment = {"PYTHONPATH": str(_ROOT), "OPENBLAS_NUM_THREADS": "1"}
        self.processes = [subprocess.Popen(argv, env=environment) for _ in range(_CONSUMERS)]

    def __exit__(self, *_: object) -> None:
        """Close the socket, and wait for the consumers, which are killed if they do not exit."""
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
        """Wait for the next connection for a purpose, and return it.

        Args:
            purpose: ``report``, or what carries rows: the name of a feed, ``bare`` or ``queue``.
        """
        return self._waiting(purpose).get(timeout=_TIME_LIMIT)

    def reports(self) -> list[tuple[int, int]]:
        """Return how many rows each consumer has received, and its largest memory in KiB."""
        found = []
        for _ in range(_CONSUMERS):
            with self.came("report") as sock:
                rows, memory = sock.recv(64).split()
                found.append((int(rows), int(memory)))
        return found

    def _waiting(self, purpose: str) -> queue.Queue[socket.socket]:
        """Return the queue of connections for a purpose that nobody has used yet."""
        return self._came.setdefault(purpose, queue.Queue())

    def _accept(self) -> None:
        """Queue each connection by the purpose in its first bytes, until the socket is closed."""
        while True:
            try:
                sock, _ = self._door.accept()
            except OSError:
                return
            self._waiting(sock.recv(16, socket.MSG_WAITALL).decode().strip()).put(sock)


@contextmanager
def _fed(consumers: _Consumers) -> Iterator[Any]:
    """Start the consumers, and return a context with a feeder to which both are connected."""
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
    """Feed rows by the feed of the Python API.

    Args:
        consumers: The consumers.
        kind: The kind of rows.
        data: A partition of them.
        part: The amount is divided by this number.

    Returns:
        The number of rows, and the seconds that it took.
    """
    from launcher.feed.sources import partitions

    with _fed(consumers) as feeder:
        many = max(2, kind.partitions // part)
        since = time.perf_counter()
        feeder.train(partitions([data] * many))
        seconds = time.perf_counter() - since
    return many * kind.rows, seconds


def _through_socket(consumers: _Consumers, kind: Kind, data: Any, part: int) -> tuple[int, float]:
    """Feed rows as pickled chunks over a bare socket to each consumer, see `_through_feed`."""
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
    """Send a partition this number of times, in pickled chunks, each after its size. Size 0 ends the rows."""
    for _ in range(many):
        for at in range(0, kind.rows, kind.chunk):
            pickled = pickle.dumps(data[at : at + kind.chunk], pickle.HIGHEST_PROTOCOL)
            sock.sendall(struct.pack("<Q", len(pickled)))
            sock.sendall(pickled)
    sock.sendall(struct.pack("<Q", 0))


def _through_queue(consumers: _Consumers, kind: Kind, data: Any, part: int) -> tuple[int, float]:
    """Feed rows by the queues of a ``multiprocessing`` manager, as TensorFlowOnSpark does.

    Each row is a call to the manager, which is a process of its own. A thread feeds each consumer. For
    the arguments and the result see `_through_feed`.
    """
    few = kind.few // part
    queues: list[Any] = []

    class Manager(BaseManager):
        """The manager that has a queue for each consumer."""

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


#: The queues in the process of the manager, by the number of the consumer.
_QUEUES: dict[int, queue.Queue[Any]] = {}


def _queue_of(place: int) -> queue.Queue[Any]:
    """Return the queue of a consumer, in the process of the manager."""
    return _QUEUES.setdefault(place, queue.Queue(1024))


def _put(one: Any, rows: Sequence[Any]) -> None:
    """Put rows into a queue one by one, and wait until all of them were taken."""
    for row in rows:
        one.put(row)
    one.join()


def _slow(setting: Setting) -> None:
    """Feed an endless generator to slow consumers, and print the memory of the driver and the consumers."""
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
    """The error by which the feed of an endless generator is stopped."""


def _endless(made: list[int]) -> Iterator[Iterator[str]]:
    """Yield partitions of rows without end, and count the rows in the only item of a list."""

    def rows() -> Iterator[str]:
        for _ in range(50_000):
            made[0] += 1
            yield f"{made[0]:07d}" + "x" * 193

    while True:
        yield rows()


def _memory(pid: str, what: str) -> float:
    """Return a size in the status of a process, such as ``VmRSS``, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(what + ":")[2].split()[0]) / 1024

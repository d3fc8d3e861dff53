"""A feeder with tasks around it: threads of this process, or processes of their own that can be killed."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launcher.feed import patience
from launcher.feed.feeder import Feeder
from launcher.feed.remote.data_feed import DataFeed

PROGRAM = Path(__file__).with_name("consumer.py")
ROOT = Path(__file__).parents[3]


class Guest(NamedTuple):
    """See `launcher.feed.listener`."""

    task: str
    attempt: int
    feed: str
    sock: socket.socket


class Clock:
    """By which tasks are found to be late, and can be put on: how busy the machine is makes no difference."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        monkeypatch.setattr(patience, "time", self)

    def monotonic(self) -> float:
        """As `time` has it."""
        return time.monotonic() + self.ahead

    def later(self, when: Callable[[], Any], seconds: float = 1000.0) -> None:
        """As soon as something is so, it is later than anybody is waited for."""
        until(when)
        self.ahead += seconds


class Tasks:
    """Tasks that are fed, ``worker/0`` ...; with ``with``: all is ended."""

    def __init__(self, workers: int = 2, feeds: tuple[str, ...] = ("input",), **settings: Any) -> None:
        self.names = [f"worker/{number}" for number in range(workers)]
        self.said: list[str] = []
        say = self.said.append
        self.feeder = Feeder(self.names, feeds, say=say, warn=say, **settings)
        self.links: list[socket.socket] = []
        self.faults: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._feeds: list[DataFeed] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._door: socket.socket | None = None
        self._accepting: threading.Thread | None = None

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        if self._door is not None and self._accepting is not None:
            self._door.shutdown(socket.SHUT_RDWR)
            self._accepting.join(20)
            self._door.close()
        self.feeder.close()
        for feed in self._feeds:
            feed.close()
        for thread in self._threads:
            thread.join(20)
        for sock in self.links:
            sock.close()

    def connect(
        self, worker: int, attempt: int = 0, pair: Callable[[], Any] = socket.socketpair
    ) -> Callable[[str], socket.socket]:
        """What a `DataFeed` connects with."""

        def connected(feed: str) -> socket.socket:
            ours, its = pair()
            self.links.append(its)
            self.feeder.add(Guest(f"worker/{worker}", attempt, feed, ours))
            return its

        return connected

    def feed(self, worker: int = 0, attempt: int = 0, **settings: Any) -> DataFeed:
        """One for a task that is in this process."""
        self._feeds.append(DataFeed(self.connect(worker, attempt), **settings))
        return self._feeds[-1]

    def run(self, function: Callable[..., Any], *args: Any) -> threading.Thread:
        """Run it in a thread; see ``faults``."""

        def run() -> None:
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 - a test looks at it
                self.faults.append(error)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()
        return thread

    def collect(self, workers: int = 2, batch: int = 500, **settings: Any) -> list[list[Any]]:
        """Threads that read their feeds to the end; returns the batches that each gets, as they come."""
        got: list[list[Any]] = [[] for _ in range(workers)]

        def read(feed: DataFeed, into: list[Any]) -> None:
            while not feed.should_stop():
                into.append(feed.next_batch(batch))

        for worker, into in enumerate(got):
            self.run(read, self.feed(worker, **settings), into)
        return got

    def answer(
        self, function: Callable[[Any], Any], workers: int = 2, batch: int = 100, **settings: Any
    ) -> None:
        """Threads that give a result for each row."""

        def read(feed: DataFeed) -> None:
            while not feed.should_stop():
                feed.batch_results([function(row) for row in feed.next_batch(batch)])

        for worker in range(workers):
            self.run(read, self.feed(worker, train_mode=False, **settings))

    def here(self, *workers: int) -> None:
        """Wait until these have opened the feed: nobody is said to be waited for then."""
        links = self.feeder._feeds["input"].links
        names = [f"worker/{worker}" for worker in workers]
        until(lambda: all(name in links and links[name].opened for name in names))

    def asks(self, worker: int = 0) -> bool:
        """Whether this one waits for rows, and has all that were sent."""
        link = self.feeder._feeds["input"].links.get(f"worker/{worker}")
        return link is not None and link.hungry

    @property
    def all_given(self) -> bool:
        """Whether all rows of the call that goes on were sent."""
        with self.feeder._lock:
            feed = self.feeder._feeds["input"]
            making = any(link.ledger.shares for link in feed.links.values())
            return feed.flow is not None and feed.flow.all_given and not making

    @property
    def moved(self) -> float:
        """When a task last took rows, or when there last were none to take; by the `Clock`."""
        flow = self.feeder._feeds["input"].flow
        return 0.0 if flow is None else flow._patience._moved

    def at_rest(self, when: Callable[[], Any]) -> bool:
        """Wait until something is so, and nothing moves any more, look after look."""
        looks, last = 0, 0.0

        def look() -> bool:
            nonlocal looks, last
            time.sleep(0.05)
            moved = self.moved if when() else 0.0
            looks, last = looks + 1 if moved and moved == last else 0, moved
            return looks == 20

        until(look)
        return True

    @property
    def owed(self) -> int:
        """How many results are to come."""
        with self.feeder._lock:
            return sum(link.ledger.unanswered for link in self.feeder._feeds["input"].links.values())

    def finish(self) -> None:
        """End the feeds, and wait for the threads."""
        self.feeder.finish()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        assert not self.faults, self.faults

    def start(self, folder: Path, worker: int, way: str, *args: str) -> subprocess.Popen[bytes]:
        """A process that is a task; see `consumer`."""
        if self._door is None:
            self._door = socket.socket(socket.AF_UNIX)
            self._door.bind(str(folder / "door"))
            self._door.listen(8)
            self._accepting = self.run(self._accept, self._door)
        argv = [sys.executable, str(PROGRAM), str(folder / "door"), str(worker), way, *args]
        process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)})
        self._processes.append(process)
        return process

    def _accept(self, door: socket.socket) -> None:
        while True:
            try:
                sock, _ = door.accept()
            except OSError:
                return
            try:
                worker, feed = sock.recv(32, socket.MSG_WAITALL).decode().split()
            except (OSError, ValueError):  # it was killed before it had said so
                sock.close()
                continue
            self.feeder.add(Guest(f"worker/{worker}", 0, feed, sock))


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection of the network."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = socket.create_connection(door.getsockname())
        its, _ = door.accept()
    return ours, its


def until(condition: Callable[[], Any], seconds: float = 40.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def numbers(file: Path) -> array.array[int]:
    """What a `consumer` has written."""
    found = array.array("q")
    if file.exists():
        data = file.read_bytes()
        found.frombytes(data[: len(data) // 8 * 8])
    return found


def uneven(rows: int) -> list[range]:
    """So many numbers in partitions of very different sizes, some of them empty."""
    found, at, size = [], 0, 1
    while at < rows:
        found.append(range(at, min(rows, at + size)))
        at, size = at + size, (size * 7 + 13) % 50_021
    return found

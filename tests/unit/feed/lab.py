"""A feeder with its listener, and tasks: threads of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.feed.feeder import Feeder
from launcher.feed.listener import FeedPeer, Listener
from launcher.feed.remote.connect import DriverRoutes
from launcher.feed.remote.data_feed import DataFeed, end_all
from tests.told import Told

KEY = b"k" * 32


def connector(address: str, worker: int, attempt: int = 1) -> Callable[[str], socket.socket]:
    """Makes connections for a `DataFeed`."""
    hello = {"task": f"worker/{worker}", "attempt": attempt, "python": [3, 10], "pid": 1}
    routes = DriverRoutes([address], "", KEY, hello)
    return lambda name: routes.connect("feed", 0.0, feed=name)


class Lab:
    """Tasks ``worker/0`` ... that are fed; as a context manager it ends everything."""

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        feeds: tuple[str, ...] = ("input",),
        tcp: bool = False,
        **settings: Any,
    ) -> None:
        self.told = Told().__enter__()
        self.feeder = Feeder([f"worker/{n}" for n in range(workers)], feeds, **settings)
        self.listener = Listener(KEY, str(folder), ["127.0.0.1"] if tcp else ())
        self.listener.listen_on_network()
        self.listener.serve(self._accept)
        self.address = f"tcp:127.0.0.1:{self.listener.port}" if tcp else f"unix:{self.listener.path}"
        self.peers: list[FeedPeer] = []
        self.errors: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        self.feeder.close()
        end_all()
        self.told.__exit__()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _accept(self, peer: FeedPeer) -> None:
        self.peers.append(peer)
        self.feeder.add(peer)

    def feed(self, worker: int = 0, attempt: int = 1, **settings: Any) -> DataFeed:
        """A feed of a task in this process."""
        return DataFeed(connector(self.address, worker, attempt), **settings)

    def run(self, function: Callable[..., Any], *args: Any, **named: Any) -> threading.Thread:
        """Run it in a thread; its exception is added to ``errors``."""

        def run() -> None:
            try:
                function(*args, **named)
            except Exception as error:  # noqa: BLE001 - a test looks at it
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        return self._threads[-1]

    def read(self, workers: int = 2, batch: int = 500, **settings: Any) -> list[list[Any]]:
        """Threads that read their feeds to the end; the batches that each gets, as they come."""
        got: list[list[Any]] = [[] for _ in range(workers)]

        def read(feed: DataFeed, into: list[Any]) -> None:
            while not feed.should_stop():
                into.append(feed.next_batch(batch))

        for worker, into in enumerate(got):
            self.run(read, self.feed(worker, **settings), into)
        return got

    def answer(self, function: Callable[[Any], Any], workers: int = 2, batch: int = 100) -> None:
        """Threads that give a result for each row."""

        def answer(feed: DataFeed) -> None:
            while not feed.should_stop():
                feed.batch_results([function(row) for row in feed.next_batch(batch)])

        for worker in range(workers):
            self.run(answer, self.feed(worker, train_mode=False))

    def finish(self) -> None:
        """End the feeds, and wait for the threads."""
        self.feeder.finish()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        assert not self.errors, self.errors


def flat(got: list[list[Any]]) -> list[Any]:
    """The rows of what `Lab.read` returned."""
    return [row for batches in got for batch in batches for row in batch]


def uneven(rows: int) -> list[range]:
    """So many numbers in partitions of very different sizes, some of them empty."""
    found, at, size = [], 0, 1
    while at < rows:
        found.append(range(at, min(rows, at + size)))
        at, size = at + size, (size * 7 + 13) % 50_021
    return found

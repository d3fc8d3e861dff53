"""A feeder with its listener, and a task: threads of this process."""

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
HELLO = {"task": "worker/0", "attempt": 1, "python": [3, 10], "pid": 1}


class Lab:
    """The task ``worker/0`` and its feeds; as a context manager it ends everything."""

    def __init__(self, folder: Path) -> None:
        self.told = Told().__enter__()
        self.feeder = Feeder(["worker/0"], ("input", "tests"))
        self.listener = Listener(KEY, str(folder))
        self.listener.serve(self._accept)
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
        self._join()

    def _accept(self, peer: FeedPeer) -> None:
        self.peers.append(peer)
        self.feeder.add(peer)

    def connect(self, name: str = "input") -> socket.socket:
        """Make a connection of the task for the feed of this name."""
        return DriverRoutes([f"unix:{self.listener.path}"], "", KEY, HELLO).connect("feed", 0.0, feed=name)

    def feed(self, **settings: Any) -> DataFeed:
        """Return a feed of the task in this process."""
        return DataFeed(self.connect, **settings)

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

    def read(self, batch: int = 500, **settings: Any) -> list[list[Any]]:
        """Let a thread read a feed to its end; returns the batches, which come one by one."""
        got: list[list[Any]] = []

        def read(feed: DataFeed) -> None:
            while not feed.should_stop():
                got.append(feed.next_batch(batch))

        self.run(read, self.feed(**settings))
        return got

    def answer(self, function: Callable[[Any], Any]) -> None:
        """Let a thread give a result for each row."""

        def answer(feed: DataFeed) -> None:
            while not feed.should_stop():
                feed.batch_results([function(row) for row in feed.next_batch(100)])

        self.run(answer, self.feed(train_mode=False))

    def finish(self) -> None:
        """End the feeds, and wait for the threads."""
        self.feeder.finish()
        self._join()
        assert not self.errors, self.errors

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

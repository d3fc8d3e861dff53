"""A task in a process of its own.

consumer.py DOOR WORKER write FILE BATCH [MOST]
                                        writes the numbers that it gets to a file, a batch a millisecond; of
                                        MOST of them, it takes no more
consumer.py DOOR WORKER answer BATCH    gives back the double of each number
consumer.py DOOR WORKER stall BATCH     takes one batch, and then no more
"""

from __future__ import annotations

import array
import os
import socket
import sys
import time
from collections.abc import Callable

from launcher.feed.remote.data_feed import DataFeed

Connect = Callable[[str], socket.socket]


def main(door: str, worker: str, way: str, *args: str) -> None:
    """Be a task."""

    def connect(feed: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(door)
        sock.sendall(f"{worker} {feed}".ljust(32).encode())
        return sock

    ways: dict[str, Callable[..., None]] = {"write": write, "answer": answer, "stall": stall}
    ways[way](connect, *args)


def write(connect: Connect, file: str, batch: str, most: str = "") -> None:
    """What is in the file when the next batch is asked for has been consumed."""
    parent = os.getppid()
    feed = DataFeed(connect)
    written = 0
    with open(file, "wb", buffering=0) as out:
        while not feed.should_stop():
            rows = feed.next_batch(int(batch))
            out.write(array.array("q", rows).tobytes())
            time.sleep(0.001)
            written += len(rows)
            if most and written >= int(most):
                _stay(parent)


def answer(connect: Connect, batch: str) -> None:
    """Twice each number."""
    feed = DataFeed(connect, train_mode=False)
    while not feed.should_stop():
        feed.batch_results([2 * row for row in feed.next_batch(int(batch))])


def stall(connect: Connect, batch: str) -> None:
    """Until it is killed, or its parent is."""
    parent = os.getppid()
    DataFeed(connect).next_batch(int(batch))
    _stay(parent)


def _stay(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A consumer of rows: takes batches until there are no more, then prints their rows and its memory.

    feed.py WAY ADDRESS BATCH PAUSE

`bench.feed` starts it. ``WAY`` is how the rows come: ``feed`` (the DataFeed), ``bare`` (pickled chunks over a
socket) or ``queue`` (a multiprocessing manager's queue, row by row). ``PAUSE`` is how many seconds the
consumer sleeps for each batch.
"""

from __future__ import annotations

import pickle
import socket
import struct
import sys
import time
from multiprocessing.managers import BaseManager
from pathlib import Path


def main(way: str, address: str, batch: int, pause: float) -> None:
    """Consume all rows, then report their number and the largest memory of this process.

    Args:
        way: How the rows arrive: ``feed``, ``bare`` or ``queue``.
        address: The path of the socket of the bench.
        batch: The number of rows in a batch.
        pause: How many seconds to sleep for each batch.
    """
    rows = {"feed": _feed, "bare": _bare, "queue": _queue}[way](address, batch, pause)
    most = _most_memory()
    with _connected(address, "report") as report:
        report.sendall(b"%d %d" % (rows, most))


def _most_memory() -> int:
    """Return the largest memory of this process in KiB. Unlike ``ru_maxrss`` it is not inherited."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def _connected(address: str, purpose: str) -> socket.socket:
    """Return a new connection to the bench, which begins with its purpose in 16 bytes."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address)
    sock.sendall(purpose.encode().ljust(16))
    return sock


def _feed(address: str, batch: int, pause: float) -> int:
    """Read rows by the `DataFeed` of the Python API, and return their number."""
    from launcher.feed.remote.data_feed import DataFeed, end_all

    feed = DataFeed(lambda name: _connected(address, name))
    rows = 0
    while not feed.should_stop():
        rows += len(feed.next_batch(batch))
        time.sleep(pause) if pause else None
    end_all()
    return rows


def _bare(address: str, batch: int, pause: float) -> int:
    """Read pickled chunks of rows from a socket, each after its size, and return the number of rows."""
    rows = 0
    with _connected(address, "bare") as sock, sock.makefile("rb", 0) as file:
        while size := struct.unpack("<Q", _exactly(file, 8))[0]:
            chunk = pickle.loads(_exactly(file, size))
            for at in range(0, len(chunk), batch):
                rows += len(chunk[at : at + batch])
                time.sleep(pause) if pause else None
        sock.sendall(b"!")
    return rows


def _exactly(file: object, size: int) -> bytearray:
    """Read exactly this number of bytes."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        view = view[file.readinto(view) :]  # type: ignore[attr-defined]
    return data


def _queue(address: str, batch: int, pause: float) -> int:
    """Read rows one by one from a manager's queue, as TensorFlowOnSpark does, and return their number."""
    BaseManager.register("queue")
    manager = BaseManager(address + ".manager", authkey=b"bench")
    manager.connect()
    with _connected(address, "queue") as sock:
        place = int(sock.recv(16))
        queue = manager.queue(place)  # type: ignore[attr-defined]
        rows = 0
        while True:
            taken: list[object] = []
            while len(taken) < batch:
                item = queue.get(True)
                queue.task_done()
                if item is None:
                    return rows + len(taken)
                taken.append(item)
            rows += len(taken)
            time.sleep(pause) if pause else None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))

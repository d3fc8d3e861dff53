"""Both ends of a way through a relay, and what carries it.

    relay.py carry HOST SOCKET

forwards a port of HOST to SOCKET here by launch's relay, prints the port, and exits at the end of its
standard input.

    relay.py talk DIRECTION WHERE STREAMS SIZE

runs on a host: it sends SIZE bytes on each of STREAMS ways at once, and prints how many seconds that took.
WHERE is a port of the loopback, or the path of a socket.

`bench.relay` starts both, and calls `serve` for the end that listens at the socket. Each end checks every
byte that it receives. What travels is one block over and over.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import threading
import time

#: The directions: bytes to the listener, bytes from it, and questions that each wait for their answer.
UP, DOWN, ASK = "up", "down", "ask"
_HEAD = struct.Struct("<4sQ")
_BLOCK = random.Random(1).randbytes(1 << 18)
#: The block twice, so that a piece from anywhere in it is one slice.
_BLOCKS = _BLOCK * 2
_QUESTION = 100
#: A connection without a byte for these seconds counts as stuck.
_TIME_LIMIT = 60.0


class Spoiled(Exception):
    """The bytes that arrived are not those that were sent."""


def send(way: socket.socket, size: int) -> None:
    """Send a number of bytes, which repeat the block."""
    sent, blocks = 0, memoryview(_BLOCKS)
    while sent < size:
        start = sent % len(_BLOCK)
        sent += way.send(blocks[start : start + min(len(_BLOCK), size - sent)])


def take(way: socket.socket, size: int) -> None:
    """Receive a number of bytes, and check each of them.

    Raises:
        Spoiled: Other bytes arrived, or fewer.
    """
    buffer = bytearray(len(_BLOCK))
    view = memoryview(buffer)
    taken = 0
    while taken < size:
        came = way.recv_into(view[: min(len(_BLOCK), size - taken)])
        start = taken % len(_BLOCK)
        # Two memoryviews would be compared item by item, which takes longer than the transfer.
        if not came or bytes(view[:came]) != _BLOCKS[start : start + came]:
            raise Spoiled(f"after {taken} of {size} bytes")
        taken += came


def _exactly(way: socket.socket, size: int) -> bytes:
    """Receive and return exactly this number of bytes.

    Raises:
        Spoiled: The connection was closed before.
    """
    data = b""
    while len(data) < size:
        piece = way.recv(size - len(data))
        if not piece:
            raise Spoiled(f"{len(data)} of {size} bytes")
        data += piece
    return data


# ---------------------------------------------------------------------- the listener


def serve(listening: socket.socket) -> None:
    """Answer each connection in a thread of its own, until the listening socket is closed."""
    while True:
        try:
            way = listening.accept()[0]
        except OSError:
            return
        threading.Thread(target=_answer, args=(way,), daemon=True).start()


def _answer(way: socket.socket) -> None:
    """Do what the first bytes of a connection ask for: receive, send, or answer questions."""
    way.settimeout(_TIME_LIMIT)
    with way:
        try:
            word, size = _HEAD.unpack(_exactly(way, _HEAD.size))
            direction = word.strip(b"\0").decode()
            if direction == UP:
                take(way, size)
                way.sendall(b"!")
            elif direction == DOWN:
                send(way, size)
            else:
                for _ in range(size):
                    way.sendall(_exactly(way, _QUESTION))
        except (OSError, Spoiled):  # the peer does not get its answer, and reports that
            return


# ---------------------------------------------------------------------- the peer


def talk(direction: str, where: str, streams: int, size: int) -> float:
    """Exchange bytes with the listener on several connections at the same time.

    Args:
        direction: `UP`, `DOWN` or `ASK`.
        where: A port of the loopback, or the path of a socket.
        streams: The number of connections.
        size: The bytes, or questions, on each connection.

    Returns:
        The seconds from the start of the first connection to the end of the last one.

    Raises:
        Spoiled: Something did not arrive as it was sent.
    """
    ways = [_connected(where) for _ in range(streams)]
    done: list[float] = []
    threads = [
        threading.Thread(target=lambda way=way: done.append(_say(way, direction, size))) for way in ways
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) < streams:
        raise Spoiled(f"{streams - len(done)} of {streams} ways")
    return max(done) - began


def _connected(where: str) -> socket.socket:
    """Return a connection to a port of the loopback, or to the path of a socket."""
    if where.isdigit():
        return socket.create_connection(("127.0.0.1", int(where)), _TIME_LIMIT)
    way = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    way.settimeout(_TIME_LIMIT)
    way.connect(where)
    return way


def _say(way: socket.socket, direction: str, size: int) -> float:
    """Exchange bytes on one connection, and return when that was done, on the monotonic clock."""
    with way:
        way.sendall(_HEAD.pack(direction.encode(), size))
        if direction == UP:
            send(way, size)
            _exactly(way, 1)
        elif direction == DOWN:
            take(way, size)
        else:
            for _ in range(size):
                way.sendall(_BLOCK[:_QUESTION])
                _exactly(way, _QUESTION)
        return time.monotonic()


def carry(host: str, path: str) -> None:
    """Forward a port of a host to a socket here by launch's relay, until standard input ends."""
    from launcher.backends.ssh.connections import SshConnections
    from launcher.config.settings import Settings
    from launcher.job import Host

    with SshConnections([Host(host)], Settings()) as fleet:
        fleet.connect()
        print(fleet.relay(path)[host], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "carry":
        carry(*sys.argv[2:])
    else:
        print(talk(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))

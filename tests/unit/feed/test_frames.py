"""Frames: what is sent comes out, whole, in order, in writable memory; what is torn is said to be."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.feed.remote.frames import FeedBroken, Kind, ReadAhead, recv_frame, send_frame


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    for sock in (one, other):
        sock.settimeout(10)
    with one, other:
        yield one, other


def _sent(sock: socket.socket, *frames: tuple[int, list[bytes]]) -> threading.Thread:
    """More than the kernel holds can only be sent while somebody reads."""

    def send() -> None:
        for kind, buffers in frames:
            send_frame(sock, kind, buffers)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "buffers",
    [[], [b""], [b"", b"a", b""], [b"abc", bytes(3 << 20), b"z"], [b"x" * (n % 5) for n in range(3000)]],
    ids=["none", "empty", "with empty ones", "big", "many"],
)
def test_what_is_sent_comes_out(pair: tuple[socket.socket, socket.socket], buffers: list[bytes]):
    thread = _sent(pair[0], (Kind.CHUNK, buffers), (Kind.END, []))
    first, second = recv_frame(pair[1]), recv_frame(pair[1])
    thread.join()
    assert first is not None and first[0] == Kind.CHUNK
    assert [bytes(buffer) for buffer in first[1]] == buffers
    assert second == (Kind.END, [])


def test_memory_of_other_items_goes_as_bytes_and_comes_writable(pair: tuple[socket.socket, socket.socket]):
    numbers: Any = memoryview(bytearray(struct.pack("<3d", 1, 2, 3))).cast("d")
    send_frame(pair[0], Kind.CHUNK, [numbers])
    received = recv_frame(pair[1])
    assert received is not None
    [buffer] = received[1]
    assert struct.unpack("<3d", buffer) == (1, 2, 3)
    buffer[0] = 1
    assert not buffer.readonly


def test_reading_ahead_gives_the_same_frames(pair: tuple[socket.socket, socket.socket]):
    sent = [[bytes([n % 7]) * (n % 5), bytes(n * 997 % 9001)] for n in range(200)]
    thread = _sent(pair[0], *((Kind.PROGRESS, buffers) for buffers in sent))
    ahead = ReadAhead(pair[1])
    for buffers in sent:
        frame = recv_frame(ahead)
        assert frame is not None and [bytes(buffer) for buffer in frame[1]] == buffers
    thread.join()
    pair[0].shutdown(socket.SHUT_WR)
    assert recv_frame(ahead) is None


def test_an_orderly_end_is_none(pair: tuple[socket.socket, socket.socket]):
    pair[0].shutdown(socket.SHUT_WR)
    assert recv_frame(pair[1]) is None


@pytest.mark.parametrize("whole", [1, 5, 12, 13, 14])
def test_a_torn_frame_is_broken(pair: tuple[socket.socket, socket.socket], whole: int):
    frame = struct.pack("<BIQ", Kind.CHUNK, 1, 3) + b"abc"
    pair[0].sendall(frame[:whole])
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(FeedBroken, match="within a frame"):
        recv_frame(pair[1])


def test_too_big_a_frame_is_refused_before_memory_is_taken(pair: tuple[socket.socket, socket.socket]):
    pair[0].sendall(struct.pack("<BIQ", Kind.CHUNK, 1, 1 << 60))
    with pytest.raises(FeedBroken, match=f"{1 << 60:,} bytes; at most 4,096"):
        recv_frame(pair[1], 4096)


def test_too_many_buffers_are_refused(pair: tuple[socket.socket, socket.socket]):
    pair[0].sendall(struct.pack("<BI", Kind.CHUNK, 1 << 31))
    with pytest.raises(FeedBroken, match="buffers"):
        recv_frame(pair[1])


def test_a_broken_frame_is_an_error_of_connections():
    assert issubclass(FeedBroken, ConnectionError)

"""The socket under a connection: a writer never waits, a reader sleeps until there is something."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from launcher.transport.ssh.queued import QueuedSocket
from launcher.transport.ssh.wake import Wake
from tests.local.seeing import soon

#: Seconds for what takes a moment, on a machine that has other work too.
SOON = 40.0


@pytest.fixture
def pair() -> Iterator[tuple[QueuedSocket, socket.socket]]:
    """Ours and the other end."""
    ours, other = socket.socketpair()
    queued = QueuedSocket(ours)
    queued.settimeout(None)  # a reader is woken, or never comes back
    yield queued, other
    queued.close()
    other.close()


def test_what_comes_is_given_in_the_sizes_asked_for(pair: tuple[QueuedSocket, socket.socket]):
    queued, other = pair
    other.sendall(b"0123456789")
    assert [queued.recv(3) for _ in range(4)] == [b"012", b"345", b"678", b"9"]
    other.close()
    assert queued.recv(3) == b"" and queued.ended
    assert queued.recv(3) == b""


def test_nothing_in_time(pair: tuple[QueuedSocket, socket.socket]):
    queued, _ = pair
    queued.settimeout(0.05)
    with pytest.raises(TimeoutError):
        queued.recv(1)


def test_a_writer_never_waits_and_the_reader_sends_the_rest(pair: tuple[QueuedSocket, socket.socket]):
    queued, other = pair
    room = threading.Event()
    queued.drained = room.set
    reader = threading.Thread(target=queued.recv, args=(1,))
    reader.start()
    data = bytes(range(256)) * 20_000
    assert queued.send(data) == len(data), "and nobody has read a byte"
    assert not room.is_set()
    received = b""
    while len(received) < len(data):
        received += other.recv(1 << 20)
    assert received == data
    assert room.wait(SOON)
    assert queued.has_room
    other.sendall(b"x")
    reader.join(SOON)
    assert not reader.is_alive()


def test_order_is_kept(pair: tuple[QueuedSocket, socket.socket]):
    queued, other = pair
    reader = threading.Thread(target=queued.recv, args=(1,))
    reader.start()
    pieces = [b"%06d" % number * 100 for number in range(3000)]
    for piece in pieces:
        queued.send(piece)
    received, wanted = b"", b"".join(pieces)
    while len(received) < len(wanted):
        received += other.recv(1 << 20)
    assert received == wanted
    other.sendall(b"x")
    reader.join(SOON)


def test_closing_wakes_the_reader_at_once(pair: tuple[QueuedSocket, socket.socket]):
    queued, other = pair
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(queued.recv(1)))
    reader.start()
    soon(lambda: queued._reading)
    queued.close()
    reader.join(SOON)
    assert got == [b""]
    with pytest.raises(OSError, match="closed"):
        queued.send(b"x")
    assert other.recv(1) == b""


def test_what_is_queued_is_tried_when_it_is_closed(pair: tuple[QueuedSocket, socket.socket]):
    queued, other = pair
    queued.send(b"last words")
    queued.close()
    assert other.recv(100) == b"last words"


def test_the_other_end_is_gone(pair: tuple[QueuedSocket, socket.socket]):
    queued, other = pair
    other.close()
    with pytest.raises(OSError):
        queued.send(b"x")


def test_a_wake_may_be_rung_after_its_end():
    wake = Wake()
    wake.ring()
    wake.ring()
    wake.clear()
    wake.clear()
    wake.close()
    wake.close()
    wake.ring()
    wake.clear()


class _Gone:
    """A channel whose gateway has gone: it can't even say goodbye."""

    def setblocking(self, _: bool) -> None:
        """As a channel has it."""

    def send(self, _: bytes) -> int:
        raise EOFError

    def close(self) -> None:
        raise EOFError


def test_what_is_closed_after_its_gateway_leaves_nothing():
    before = os.listdir("/proc/self/fd")
    queued = QueuedSocket(_Gone())  # type: ignore[arg-type]
    assert os.listdir("/proc/self/fd") != before
    queued.close()
    queued.close()
    assert os.listdir("/proc/self/fd") == before


def test_a_reset_is_an_end(pair: tuple[QueuedSocket, socket.socket]):
    """So ends a command that did not read what was sent to it."""
    queued, other = pair
    queued.send(b"SSH-2.0-us")
    other.close()
    with pytest.raises(ConnectionResetError):
        queued.recv(1)
    assert queued.ended

"""What comes over a channel goes to a socket here: in order, without a wait, and no more than is taken."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator

import pytest

from launcher.transport.ssh.inflow import Inflow

#: Seconds for what takes a moment, on a machine that has other work too.
SOON = 40.0


class Ends:
    """An inflow into one end of a pair of sockets, and the thread that passes on what is kept."""

    def __init__(self) -> None:
        self.here, self.program = socket.socketpair()
        self.program.settimeout(SOON)
        self.here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self.passed: list[int] = []
        self.inflow = Inflow(self.passed.append)
        self.failure: OSError | None = None
        self.thread = threading.Thread(target=self._pass_on, daemon=True)

    def _pass_on(self) -> None:
        try:
            self.inflow.pass_on(self.here)
            self.here.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.failure = error

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.program.recv(size - len(data))
        return data

    def close(self) -> None:
        self.inflow.close()
        self.program.close()
        if self.thread.ident:
            self.thread.join(SOON)
            assert not self.thread.is_alive()
        self.here.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def numbered(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") * 500 for number in range(count)]


def test_what_came_before_the_socket_was_there_is_the_first(ends: Ends):
    ends.inflow.feed(b"early ")
    assert ends.passed == []
    ends.thread.start()
    assert ends.read(6) == b"early "
    ends.inflow.feed(b"late")
    assert ends.read(4) == b"late"
    ends.inflow.close()
    assert ends.program.recv(1) == b"", "the program hears that it was all"


def test_who_feeds_does_not_wait_for_a_program_that_does_not_read(ends: Ends):
    ends.thread.start()
    pieces = numbered(1000)
    for piece in pieces:
        ends.inflow.feed(piece)
    whole = b"".join(pieces)
    assert sum(ends.passed) < len(whole) // 2, "the host may send more than was taken"
    ends.inflow.close()
    assert ends.read(len(whole)) == whole
    assert ends.program.recv(1) == b""
    ends.thread.join(SOON)
    assert sum(ends.passed) == len(whole)


def test_nothing_overtakes_what_is_kept(ends: Ends):
    """Now it is the one thread that sends, now the other."""
    ends.thread.start()
    pieces = numbered(3000)
    feeding = threading.Thread(target=lambda: deque(map(ends.inflow.feed, pieces), 0), daemon=True)
    feeding.start()
    whole = b"".join(pieces)
    came = b"".join(ends.read(size) for size in (1, 7000, 300_000, len(whole) - 307_001))
    assert came == whole
    feeding.join(SOON)


@pytest.mark.parametrize("stuck", [False, True])
def test_a_program_that_leaves_ends_it(ends: Ends, stuck: bool):
    ends.thread.start()
    ends.inflow.feed(bytes(400_000) if stuck else b"x")
    ends.program.close()
    while ends.thread.is_alive():
        ends.inflow.feed(b"more")  # whoever feeds is not told: it is not his socket
        ends.thread.join(0.01)
    assert ends.failure is not None

"""Connections of the probe: to whom they get, and what becomes of the others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from launcher.agent.probe_connect import connect
from launcher.agent.probe_listen import LARGE, Listener


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener("challenge", "token")
    yield found
    close(found)


def close(listener: Listener) -> None:
    """As the end of its process does."""
    if listener._server.fileno() >= 0:
        listener._server.shutdown(socket.SHUT_RDWR)  # wakes the one that waits for guests
        listener._server.close()
        listener._keeper.release_all()


def reach(
    port: int,
    token: str = "token",
    seconds: float = 5.0,
    challenge: str = "challenge",
    address: str = "127.0.0.1",
):
    peers = [{"address": address, "port": port, "token": token}]
    return connect({"peers": peers, "challenge": challenge, "seconds": seconds, "all_seconds": seconds + 1})[
        0
    ]


def test_a_port_that_is_held_is_reached(listener: Listener):
    for address in ("127.0.0.1", "localhost"):
        found = reach(listener.port, address=address)
        assert found["result"] == "ok"
        assert 0 < found["rtt_s"] < 1 and found["retransmits"] == 0
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", listener.port))


def test_somebody_else(listener: Listener):
    assert reach(listener.port, token="of another host")["result"] == "somebody else"
    assert reach(listener.port, challenge="of another check")["result"] == "somebody else"


def test_refused(listener: Listener):
    port = listener.port
    close(listener)
    assert reach(port)["result"] == "refused"


def test_an_unknown_name():
    assert reach(1, address="nowhere.invalid")["result"] == "unknown name"
    assert reach(1, address="x" * 300)["result"] == "unknown name"


class Talker:
    """A server that goes so far, and says no more until it is told to end."""

    def __init__(self, answers: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._answers = answers
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        line, _ = self._server.accept()
        with line:
            answers = [b"token\n", b"p", b"p", b"p"][: self._answers]
            for answer in answers:
                line.recv(100)
                line.sendall(answer)
            self._end.wait(20)

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._server.close()


@pytest.mark.parametrize(("answers", "result"), [(0, "timed out"), (2, "timed out"), (4, "stuck")])
def test_one_that_falls_silent(answers: int, result: str):
    talker = Talker(answers)
    try:
        started = time.monotonic()
        found = reach(talker.port, seconds=0.5)
        assert found["result"] == result
        assert time.monotonic() - started < 5
    finally:
        talker.close()


def test_one_that_hangs_up():
    talker = Talker(1)
    ended = threading.Timer(0.1, talker._end.set)
    ended.start()
    assert reach(talker.port)["result"] == "cut off"
    ended.join()
    talker.close()


def test_many_guests_at_a_time(listener: Listener):
    peers = [{"address": "127.0.0.1", "port": listener.port, "token": "token"}] * 40
    found = connect({"peers": peers, "challenge": "challenge", "seconds": 10.0, "all_seconds": 20.0})
    assert [pair["result"] for pair in found] == ["ok"] * 40


def test_a_stranger_learns_nothing(listener: Listener):
    with socket.create_connection(("127.0.0.1", listener.port), 5) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(LARGE))
        try:
            assert stranger.recv(1000) == b""
        except ConnectionResetError:
            pass

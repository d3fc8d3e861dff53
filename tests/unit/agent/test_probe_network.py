"""Connections of the probe: to whom they get, and what becomes of the others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from launcher.agent import probe_connect
from launcher.agent.probe_connect import connect
from launcher.agent.probe_listen import LARGE, Listener

#: Seconds for what takes a moment, on a machine that has other work too.
SOON = 40.0


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener("challenge", "token")
    yield found
    close(found)


def close(listener: Listener) -> None:
    """As the end of its process does."""
    serve_no_more(listener)
    listener._keeper.release_all()


def serve_no_more(listener: Listener) -> None:
    """And keep the port, so that nobody else gets it."""
    if listener._server.fileno() >= 0:
        listener._server.shutdown(socket.SHUT_RDWR)  # wakes the one that waits for guests
        listener._server.close()


def reach(
    port: int,
    token: str = "token",
    seconds: float = SOON,
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
    serve_no_more(listener)
    assert reach(listener.port)["result"] == "refused"


def test_an_unknown_name():
    assert reach(1, address="nowhere.invalid")["result"] == "unknown name"
    assert reach(1, address="x" * 300)["result"] == "unknown name"


class Talker:
    """A server that goes so far, and says no more until it is told to end.

    Args:
        answers: how many it gives.
        last: called when whoever came waits for the last of them.
    """

    def __init__(self, answers: int, last: Callable[[], object] = lambda: None) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._answers = answers
        self._last = last
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        line, _ = self._server.accept()
        with line:
            answers = [b"token\n", b"p", b"p", b"p"][: self._answers]
            for number, answer in enumerate(answers, 1):
                line.recv(100)
                if number == self._answers:
                    self._last()
                line.sendall(answer)
            self._end.wait(SOON)

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._server.close()


@pytest.mark.parametrize("answers", [0, 2])
def test_one_that_falls_silent(answers: int):
    talker = Talker(answers)
    try:
        assert reach(talker.port, seconds=0.5)["result"] == "timed out"
    finally:
        talker.close()


def test_one_that_has_small_answers_only(monkeypatch: pytest.MonkeyPatch):
    """However long those take: the time is up with the last of them."""
    now = {"is": 0.0}
    monkeypatch.setattr(probe_connect, "time", SimpleNamespace(monotonic=lambda: now["is"]))
    talker = Talker(4, last=lambda: now.update({"is": 2 * SOON}))
    try:
        assert reach(talker.port)["result"] == "stuck"
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
    found = connect({"peers": peers, "challenge": "challenge", "seconds": SOON, "all_seconds": SOON})
    assert [pair["result"] for pair in found] == ["ok"] * 40


def test_a_stranger_learns_nothing(listener: Listener):
    with socket.create_connection(("127.0.0.1", listener.port), SOON) as stranger:
        try:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(LARGE))
            assert stranger.recv(1000) == b""
        except ConnectionError:
            pass

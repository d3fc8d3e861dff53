"""Trying whether other hosts can be reached."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator

import pytest

from launcher.agent import peers
from launcher.agent.ports import PortKeeper
from launcher.job import TaskId

#: Seconds for what takes a moment, on a machine that has other work too.
SOON = 30.0


@pytest.fixture
def held() -> Iterator[int]:
    """A port as agents hold it."""
    keeper = PortKeeper()
    yield keeper.hold(TaskId("worker/0"))
    keeper.release_all()


def test_a_held_port_is_reached(held: int):
    assert peers.unreachable([f"127.0.0.1:{held}", f"[::1]:{held}", f"localhost:{held}"], SOON) == {}


def test_so_is_one_where_somebody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert peers.unreachable([f"127.0.0.1:{server.getsockname()[1]}"], SOON) == {}


def test_an_unknown_name(held: int):
    found = peers.unreachable(["no-such-host.invalid:1", f"127.0.0.1:{held}", f"{'x' * 70}.invalid:1"], SOON)
    assert set(found) == {"no-such-host.invalid:1", f"{'x' * 70}.invalid:1"}
    assert set(found.values()) == {"its name is unknown here"}


def test_who_is_silent():
    """A listener whose queue is full answers nobody."""
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for line in (first, second):
            line.setblocking(False)
            line.connect_ex(server.getsockname())
        assert select.select([server], [], [], SOON)[0], "one is in the queue"
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert peers.unreachable([address], 0.2) == {
            address: "no answer: a firewall may drop what is sent there"
        }


def test_who_has_answered_is_heard_however_late_it_is(held: int):
    """The whole machine may have stood still for a while."""
    with socket.socket() as line:
        line.setblocking(False)
        line.connect_ex(("127.0.0.1", held))
        assert select.select([], [line], [], SOON)[1]
        assert peers._outcomes({line.fileno(): ("a:1", line)}, time.monotonic() - 60.0) == {}


def test_asked_of_a_child(held: int, monkeypatch: pytest.MonkeyPatch):
    real = socket.getaddrinfo

    def look_up(host: str, *more: int) -> object:
        if host.endswith(".invalid"):  # a name server may take longer than the child has
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(peers, "PATIENCE", SOON)
    inquiry = peers.try_peers([f"127.0.0.1:{held}", "no-such-host.invalid:1"])
    assert inquiry.output is not None and inquiry.pid is not None
    while True:
        ready, _, _ = select.select([inquiry.output], [], [], SOON)
        assert ready
        if inquiry.read():
            break
    assert os.waitpid(inquiry.pid, 0)[1] == 0
    inquiry.reaped(inquiry.pid)
    assert peers.read_peers(inquiry.close(), []) == {"no-such-host.invalid:1": "its name is unknown here"}


def test_a_child_that_was_killed_said_nothing():
    assert peers.read_peers(b"", ["a:1", "b:2"]) == {"a:1": "no answer in 6 s", "b:2": "no answer in 6 s"}

"""Connections come in to who knows the token, and are let go of."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from launcher.agent import door as door_module
from launcher.agent.door import Connection, Door, await_release, knock

TOKEN = os.urandom(8).hex()


@pytest.fixture
def door() -> Iterator[Door]:
    """One that is open."""
    opened = Door(TOKEN)
    yield opened
    opened.close()


def answered(door: Door) -> Connection | None:
    """What comes in."""
    assert select.select([door], [], [], 5)[0]
    door.enter()
    waiting = door.waiting()
    assert select.select(waiting, [], [], 5)[0]
    return door.take(waiting[0])


def test_a_connection_is_handed_in_and_let_go_of(door: Door):
    reading, ours = os.pipe()
    theirs, writing = os.pipe()
    bearer = knock(TOKEN, 3, reading, writing)
    assert bearer is not None
    connection = answered(door)
    assert connection is not None
    assert connection.attempt == 3
    for fd in (reading, writing):
        os.close(fd)
    os.write(ours, b"there")
    assert os.read(connection.reading, 100) == b"there"
    os.write(connection.writing, b"and back")
    assert os.read(theirs, 100) == b"and back"
    with pytest.raises(BlockingIOError):
        os.read(connection.reading, 100)
    assert not select.select([bearer], [], [], 0)[0]
    connection.close("these are its last words")
    assert await_release(bearer) == "these are its last words"
    assert os.read(theirs, 100) == b""
    bearer.close()
    for fd in (ours, theirs):
        os.close(fd)


def test_its_bearer_waits_until_it_is_let_go_of(door: Door):
    bearer = knock(TOKEN, 1, 0, 1)
    assert bearer is not None
    connection = answered(door)
    assert connection is not None
    said: list[str] = []
    waiter = threading.Thread(target=lambda: said.append(await_release(bearer)))
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    connection.close()
    waiter.join(30)
    assert said == [""]
    bearer.close()


def test_nobody_lives_there():
    assert knock(TOKEN, 1, 0, 1) is None


def test_only_one_porter_has_a_token(door: Door):
    with pytest.raises(OSError, match="in use"):
        Door(TOKEN)
    Door(os.urandom(8).hex()).close()  # such names are those of the whole machine


def test_who_does_not_know_the_token_or_brings_nothing_is_turned_away(door: Door):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(_name(door))
        stranger.send(b"\0\0\0\0wrong")
        assert answered(door) is None
        assert stranger.recv(10) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(_name(door))
        stranger.send(b"\0\0\0\0" + TOKEN.encode())
        assert answered(door) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(_name(door))
    assert answered(door) is None
    assert door.waiting() == []


def test_it_does_not_spin_while_there_is_no_descriptor(door: Door, monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(door_module, "time", SimpleNamespace(monotonic=lambda: now))

    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        fileno = door._listener.fileno

    with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as comes:
        comes.connect(_name(door))
        patch.setattr(door, "_listener", Full())
        assert select.select([door], [], [], 5)[0]
        door.enter()
        now += door_module._FULL - 0.01
        assert not select.select([door], [], [], 0)[0]
        now += 0.02
        assert select.select([door], [], [], 0)[0], "then it lets in again"


def test_file_descriptors_of_strangers_are_closed(door: Door):
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(_name(door))
        socket.send_fds(stranger, [b"\0\0\0\0wrong"], [0, 1])
        assert answered(door) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_more_than_a_few_wait(door: Door):
    strangers = []
    for _ in range(10):
        strangers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        strangers[-1].connect(_name(door))
        door.enter()
    assert len(door.waiting()) == 8
    for stranger in strangers:
        stranger.close()


def test_other_users_are_turned_away_by_either_side(door: Door, monkeypatch: pytest.MonkeyPatch):
    name = _name(door)
    somebody = os.getuid() + 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(name)
        monkeypatch.setattr("launcher.agent.door.os.getuid", lambda: somebody)
        door.enter()
        assert door.waiting() == []
        assert stranger.recv(10) == b""
    monkeypatch.setattr("launcher.agent.door._address", lambda _: name)
    assert knock(TOKEN, 1, 0, 1) is None


def _name(door: Door) -> bytes:
    name = door._listener.getsockname()
    assert isinstance(name, bytes)
    assert TOKEN.encode() not in name
    return name

"""Strangers at the door: what they send is never unpickled, nor do they keep anybody out."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import TFCluster
from launcher.feed import door as door_module
from launcher.feed.door import MOST_STRANGERS, Door, Guest
from launcher.feed.frames import recv_frame
from launcher.feed.knock import GREETING, Doors
from launcher.feed.ways import Closed

pytestmark = pytest.mark.timeout(180)
KEY = b"k" * 32
WHO = {"task": "worker/0", "attempt": 1, "python": [3, 11], "pid": 1}


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[tuple[Door, list[Guest], list[str]]]:
    """A door, who came in, and what was remarked."""
    guests: list[Guest] = []
    remarks: list[str] = []
    door = Door(KEY, str(tmp_path), tcp=True, remark=remarks.append)
    door.serve(guests.append)
    yield door, guests, remarks
    door.close()
    for guest in guests:
        guest.sock.close()


def called(door: Door) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(15)
    line.connect(door.path)
    return line


def doors(door: Door, key: bytes = KEY, **more: Any) -> Doors:
    return Doors([f"unix:{door.path}"], "", key, {**WHO, **more})


def until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_who_has_the_key_comes_in(house: Any):
    door, guests, remarks = house
    with doors(door).knock("feed", feed="input") as line:
        until(lambda: guests)
        assert guests[0][:4] == ("worker/0", 1, "feed", "input")
        guests[0].sock.sendall(b"welcome")
        assert line.recv(100) == b"welcome"
    assert not remarks


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_over_the_network(house: Any, address: str):
    door, guests, _ = house
    if address == "[::1]" and not socket.has_ipv6:
        pytest.skip("no IPv6")
    with Doors(["unix:/no/such", f"tcp:{address}:{door.port}"], "", KEY, WHO).knock("member"):
        until(lambda: guests)
    assert door.addresses[0] == f"unix:{door.path}"
    assert not any("127.0.0.1" in address for address in door.addresses)


def test_a_relay_is_the_last_way(house: Any):
    door, guests, _ = house
    with Doors(["unix:/no/such", "tcp:127.0.0.1:9"], f"127.0.0.1:{door.port}", KEY, WHO).knock("member"):
        until(lambda: guests)


def test_another_key_does_not_open(house: Any):
    door, guests, remarks = house
    with pytest.raises(Closed, match="no way to the program"):
        doors(door, b"x" * 32).knock("member", patience=0.0)
    until(lambda: remarks)
    assert not guests


def test_a_door_of_others_is_not_entered(tmp_path: Path):
    """Whoever pretends to be the driver must prove it before a task reads anything."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "door"))
        listening.listen()

        import threading

        def pretend() -> None:
            line, _ = listening.accept()
            line.sendall(GREETING + os.urandom(32))
            line.recv(64)
            line.sendall(os.urandom(32))
            line.recv(100)
            line.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(Closed, match="has not the key of this job"):
            Doors([f"unix:{tmp_path}/door"], "", KEY, WHO).knock("member", patience=0.0)
        thread.join(10)


@pytest.mark.parametrize("what", ["rubbish", "pickle", "nothing"])
def test_strangers_are_sent_away(house: Any, what: str, tmp_path: Path):
    door, guests, remarks = house
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    with called(door) as line:
        if what == "nothing":
            line.shutdown(socket.SHUT_WR)
        else:
            line.sendall(bomb * 100 if what == "pickle" else os.urandom(10_000))
        said = line.recv(1000)
        assert said.startswith(GREETING)
        try:
            assert line.recv(1000) == b""
        except ConnectionResetError:
            pass
    if what != "nothing":  # a task that has come in by another way leaves without a word
        until(lambda: remarks)
    assert not guests and not (tmp_path / "exploded").exists()


def test_what_is_too_long_is_not_read(house: Any):
    door, guests, remarks = house
    with pytest.raises((Closed, OSError)), doors(door, more="x" * 5000).knock("member", patience=0.0) as line:
        line.settimeout(10)
        recv_frame(line)
        raise Closed("sent away")
    until(lambda: remarks)
    assert not guests and "bytes of itself" in remarks[0]


def test_strangers_who_say_nothing_keep_nobody_out(house: Any, monkeypatch: pytest.MonkeyPatch):
    door, guests, remarks = house
    monkeypatch.setattr(door_module, "PATIENCE", 60)
    crowd = [called(door) for _ in range(MOST_STRANGERS + 10)]
    try:
        with doors(door).knock("member"):
            until(lambda: guests)
        assert len(remarks) == 1 and "others are waiting" in remarks[0]
    finally:
        for line in crowd:
            line.close()


def test_a_stranger_is_sent_away_after_a_while(house: Any, monkeypatch: pytest.MonkeyPatch):
    door, _, remarks = house
    monkeypatch.setattr(door_module, "PATIENCE", 0.2)
    with called(door) as line:
        line.recv(1000)
        assert line.recv(1000) == b""
    until(lambda: remarks)
    assert "said nothing for 0.2 s" in remarks[0]


def test_a_job_goes_on_with_strangers_at_its_door(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """They are there first: before any of its tasks. And later."""
    real = door_module.Door.serve
    lines: list[socket.socket] = []

    def with_strangers(door: Door, on_guest: Any) -> None:
        real(door, on_guest)
        for data in (pickle.dumps(Bomb(tmp_path / "exploded")) * 50, b"GET / HTTP/1.1\r\n\r\n" * 20, b""):
            line = called(door)
            line.sendall(data)
            lines.append(line)

    patch = pytest.MonkeyPatch()
    patch.setattr(door_module.Door, "serve", with_strangers)
    try:
        TFCluster.run(lambda args, ctx: Path(args, str(ctx.task_index)).touch(), str(tmp_path), 2).shutdown()
    finally:
        patch.undo()
        for line in lines:
            line.close()
    assert (tmp_path / "0").exists() and (tmp_path / "1").exists() and not (tmp_path / "exploded").exists()
    assert capfd.readouterr().err.count("no task of this job has knocked") == 1

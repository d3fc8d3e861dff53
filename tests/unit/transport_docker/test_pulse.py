"""An engine that does not answer: seen while a job runs, and told while somebody waits for its answer."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from launcher.errors import TransportError
from launcher.transport.docker import engine as engines
from launcher.transport.docker import pulse
from launcher.transport.docker.engine import Engine, Where, connect
from launcher.transport.docker.pulse import Pulse


class Stuck:
    """Stands in for `Engine`: answers what a test wants."""

    where = Where("unix:///x", "a test")

    def __init__(self) -> None:
        self.silent = False
        self.asked = 0
        self.given_up = self.stuck = False

    def is_silent(self, seconds: float) -> bool:
        """See `Engine.is_silent`."""
        self.asked += 1
        return self.silent

    def give_up(self) -> None:
        """See `Engine.give_up`."""
        self.given_up = True


class World:
    """An engine that is asked all the time."""

    def __init__(self) -> None:
        self.engine = Stuck()
        self.told: list[str] = []
        self.lost = threading.Event()
        self.pulse = Pulse(cast(Engine, self.engine), self.told.append, self.lost.set)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Its thread has ended after the test."""
    for name, seconds in {"EVERY": 0.01, "PATIENCE": 0.01, "LIMIT": 0.3, "_AGAIN": 0.01}.items():
        monkeypatch.setattr(pulse, name, seconds)
    found = World()
    found.pulse.start()
    yield found
    found.pulse.close()
    found.pulse.join(10)
    assert not found.pulse.is_alive()


def until(what: Callable[[], object]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_one_that_answers(world: World):
    until(lambda: world.engine.asked > 5)
    assert (world.told, world.lost.is_set()) == ([], False)


def test_one_that_sticks_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pulse, "LIMIT", 60.0)
    world.engine.silent = True
    until(lambda: world.told)
    assert world.told == [
        "the Docker engine at unix:///x does not answer; the tasks go on, unseen; waiting for 60 s"
    ]
    assert world.engine.stuck
    assert world.pulse.silent_for() > 0
    world.engine.silent = False
    until(lambda: len(world.told) == 2)
    assert re.fullmatch(r"the Docker engine at unix:///x answers again after \d+ s", world.told[1])
    assert not world.lost.is_set()
    until(lambda: not world.engine.stuck)
    until(lambda: world.pulse.silent_for() == 0)


def test_one_that_sticks_for_good(world: World):
    world.engine.silent = True
    assert world.lost.wait(30)
    assert world.engine.given_up
    assert len(world.told) == 1
    world.pulse.join(10)
    assert not world.pulse.is_alive()


def test_after_the_end_nothing_is_told(world: World):
    world.pulse.close()
    world.engine.silent = True
    world.pulse.join(10)
    assert world.told == []


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """Takes connections, and says nothing."""
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(str(tmp_path / "it"))
        found.listen()
        yield found


def test_whoever_waits_for_its_answer_is_told(listener: socket.socket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "_ANSWER", 2.0)
    monkeypatch.setattr(engines, "_PATIENCE", 0.02)
    told: list[str] = []
    address = f"unix://{listener.getsockname()}"
    with pytest.raises(TransportError, match="does not answer"):
        connect({"DOCKER_HOST": address}, told.append)
    assert told == [f"waiting for the Docker engine at {address} to answer"]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", b"", None])
def test_only_one_that_says_nothing_is_silent(listener: socket.socket, answer: bytes | None):
    """An answer; one that hangs up; one that says nothing."""
    address = f"unix://{listener.getsockname()}"
    client = engines._client(address, "1.41")
    client.asks_once = True
    engine = Engine(client, Where(address, "a test"), {})
    found: list[bool] = []
    asking = threading.Thread(
        target=lambda: found.append(engine.is_silent(30.0 if answer is not None else 0.2))
    )
    asking.start()
    line, _ = listener.accept()
    with line:
        line.recv(4096)
        if answer is None:
            asking.join(10)
        else:
            line.sendall(answer)
    asking.join(10)
    assert found == [answer is None]
    assert not engine.hangs
    engine.close()

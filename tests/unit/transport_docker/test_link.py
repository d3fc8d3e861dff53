"""The link to a container, against an engine that is a socket pair."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from launcher.transport.bundle import SOURCE_FORM
from launcher.transport.docker.link import DockerLink
from launcher.transport.docker.settings import Container, End

READY = b"\n<tf-launcher errand 1: ready>\n"


class Hands:
    """Knows how the container ended."""

    def __init__(self) -> None:
        self.end: End | None = End(0)
        self.unknown = ""
        self.removed = False

    def ended(self, seconds: float) -> End | None:
        """See `launcher.transport.docker.link.Hands`."""
        return self.end

    def why_unknown(self) -> str:
        """See `launcher.transport.docker.link.Hands`."""
        return self.unknown

    def remove(self) -> None:
        """See `launcher.transport.docker.link.Hands`."""
        self.removed = True
        self.end = End(137)


class World:
    """A link, and the engine's end of it."""

    def __init__(self) -> None:
        self.hands = Hands()
        ours, self.engine = socket.socketpair()
        container = Container("worker-0", "img", "python3", memory=64 << 20)
        self.link = DockerLink(container, ours, self.hands, True)

    def says(self, data: bytes, stream: int = 1) -> None:
        """The container writes to stdout (1) or stderr (2)."""
        self.engine.sendall(bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data)

    def heard(self) -> bytes:
        """All that can be read now."""
        found = b""
        while select.select([self.link.reading], [], [], 0)[0]:
            data = self.link.read(1 << 16)
            if data == b"":
                break
            found += data or b""
        return found


@pytest.fixture
def world() -> Iterator[World]:
    """One of each."""
    it = World()
    yield it
    it.link.close()
    it.engine.close()


def test_what_comes_before_the_agent_is_not_for_the_reader(world: World):
    assert world.link.read(100) is None
    world.says(b"noise")
    world.says(READY[:9])
    assert world.heard() == b""
    world.says(READY[9:] + b"facts")
    assert world.heard() == b"facts"
    world.says(b"oh dear", stream=2)
    world.says(b"more")
    assert world.heard() == b"more"


def test_another_python_asks_for_the_source(world: World):
    world.says(b"\n<tf-launcher errand 1: needs source>\n")
    assert world.heard() == b""
    came = world.engine.recv(1 << 20)
    assert int(came[:8]) == len(came) - 8
    assert came[8:12] == SOURCE_FORM
    world.says(READY + b"facts")
    assert world.heard() == b"facts"


def test_a_python_that_is_too_old(world: World):
    world.says(b"\n<tf-launcher errand 1: too old 3.7.1>\n")
    assert world.link.read(1 << 16) == b""
    world.hands.end = End(1)
    assert world.link.wait(1) == (
        "python3 of the image img is Python 3.7.1, which is too old: it must have a Python of 3.8 or later; "
        "--python names another one of the image"
    )


def test_noise_has_a_bound(world: World):
    for _ in range(8):
        world.says(b"x" * 10_000)
        world.heard()
    assert "printed what no Python of ours does" in (world.link.wait(1) or "")


@pytest.mark.parametrize(
    ("end", "ready", "told"),
    [
        (End(0), True, ""),
        (End(1), True, "the agent ended: it was killed"),
        (End(137), True, "its container was killed by SIGKILL"),
        (End(137, True), True, "its container ran out of memory (its limit is 64 MiB)"),
        (End(0, True), True, ""),
        (End(None), True, "its container was removed by somebody else"),
        (End(1), False, "python3 of the image img does not run our agent, and ended with 1"),
        (End(0), False, "python3 of the image img does not run our agent, and ended with 0"),
    ],
)
def test_how_it_ended(world: World, end: End, ready: bool, told: str):
    if ready:
        world.says(READY)
        world.heard()
    world.hands.end = end
    assert world.link.wait(1) == told


def test_last_words(world: World):
    world.says(READY)
    world.heard()
    world.says(b"Traceback\nValueError: no\n", stream=2)
    world.hands.end = End(1)
    assert world.link.wait(1) == "the agent ended: ValueError: no"


def test_an_end_that_does_not_come(world: World):
    world.hands.end = None
    assert world.link.wait(0) is None
    world.hands.unknown = "the engine has gone"
    assert world.link.wait(0) == "the engine has gone"
    assert world.link.kill(0) is not None
    assert world.hands.removed


def test_hanging_up_leaves_the_other_direction_open(world: World):
    world.says(READY)
    world.heard()
    assert world.link.write(b"order") == 5
    world.link.hang_up()
    assert world.engine.recv(100) == b"order"
    assert world.engine.recv(100) == b""
    world.says(b"farewell")
    assert world.heard() == b"farewell"
    assert world.link.write(b"more") == 0
    world.engine.close()
    assert world.link.read(100) == b""


def test_a_link_takes_only_what_there_is_room_for(world: World):
    data = b"x" * (1 << 22)
    taken = world.link.write(data)
    assert 0 < taken < len(data)
    assert world.link.write(data) == 0


def test_one_that_is_cut_is_at_its_end(world: World):
    world.says(READY + b"facts")
    assert world.heard() == b"facts"
    world.link.cut()
    assert select.select([world.link.reading], [], [], 5)[0]
    assert world.link.read(100) == b""
    world.link.cut()

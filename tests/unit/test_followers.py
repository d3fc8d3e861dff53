"""Followers of a job over real sockets: each gets every event, and none holds up the launcher."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from launcher.common.errors import LaunchError
from launcher.event_loop import EventLoop
from launcher.launch.control import EventFollowers
from launcher.output.run_files import EventBuffer


class Stage:
    """Followers of a job, without its launcher."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop, self.recent = loop, EventBuffer()
        self.followers = EventFollowers(loop, self.recent)
        self.peers: list[socket.socket] = []

    def follow(self, number: int | None = None, output: bool = False) -> socket.socket:
        first = self.followers.first(number)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peers.append(theirs)
        ours.setblocking(False)
        theirs.settimeout(10)
        self.followers.add(ours, first, output)
        return theirs

    def happen(self, count: int, size: int = 1) -> None:
        for _ in range(count):
            self.recent.add(json.dumps({"event": "Tell", "text": "x" * size}).encode() + b"\n")
        self.followers.tell()

    def read(self, peer: socket.socket) -> list[dict[str, Any]]:
        """All lines for a follower until the launcher closes the connection; it goes on meanwhile."""
        data = b""
        while packet := peer.recv(1 << 16):
            data += packet
            self.loop.run_once(0)
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with EventLoop() as loop:
        stage = Stage(loop)
        yield stage
        stage.followers.close()
        for peer in stage.peers:
            peer.close()


def test_every_follower_gets_all_from_its_number_on(stage: Stage):
    stage.happen(5)
    readers = {first: stage.follow(first) for first in (1, 3, 6)}
    stage.happen(4)
    stage.followers.close()
    for first, peer in readers.items():
        assert [line["number"] for line in stage.read(peer)] == [*range(first, 10)]


def test_a_line_that_is_larger_than_any_packet(stage: Stage):
    peer = stage.follow()
    stage.happen(1, size=900_000)
    stage.happen(1)
    text = b""
    while text.count(b"\n") < 2:
        text += peer.recv(1 << 16)
        stage.loop.run_once(0)
    assert len(json.loads(text.splitlines()[0])["text"]) == 900_000


def test_a_slow_follower_is_dropped_and_told_so(stage: Stage):
    slow, quick = stage.follow(), stage.follow()
    got = b""
    for _ in range(40):
        stage.happen(10, size=10_000)
        while got.count(b"\n") < stage.recent.next - 1:
            got += quick.recv(1 << 16)
            stage.loop.run_once(0)
    lines = stage.read(slow)
    numbers = [line["number"] for line in lines[:-1]]
    assert numbers == [*range(1, len(numbers) + 1)] and len(numbers) < 400
    assert lines[-1] == {"event": "Dropped", "why": "too slow: later events are in events.jsonl"}


def test_who_asks_for_it_learns_that_tasks_have_printed(stage: Stage):
    """Once for all that is printed within a moment."""
    reader, other = stage.follow(output=True), stage.follow()
    for _ in range(3):
        for _ in range(5):
            stage.recent.printed = True
            stage.followers.tell()
        stage.loop.run_until(lambda: not stage.recent.printed, 10)
    stage.happen(1)
    stage.followers.close()
    assert [line["event"] for line in stage.read(reader)] == ["Printed"] * 3 + ["Tell"]
    assert [line["event"] for line in stage.read(other)] == ["Tell"]


@pytest.mark.parametrize("number", [0, 1, 1000])
def test_where_no_follower_can_begin(stage: Stage, number: int):
    stage.happen(200, size=10_000)
    with pytest.raises(LaunchError, match=r"followed from \d+ to 201; events.jsonl has earlier ones"):
        stage.follow(number)


def test_there_is_a_limit_and_who_leaves_makes_room(stage: Stage):
    peers = [stage.follow() for _ in range(16)]
    with pytest.raises(LaunchError, match="16 programs follow it already"):
        stage.follow()
    peers[3].close()
    peers[5].send(b"chatter")
    stage.loop.run_once(0)
    for _ in range(2):
        stage.follow()
    with suppress(ConnectionResetError):  # it had sent something
        assert peers[5].recv(1) == b""

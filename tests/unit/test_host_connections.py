"""The end of the connections of a job. Tests with real agents are in tests/local and tests/ssh."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

from launcher.backends.connections import Fleet
from launcher.event_loop import EventLoop
from launcher.job import Host
from launcher.launch.host_connections import HostConnections


class StuckLink:
    """A link to an agent that does not end, whose kill needs the loop: as in a container on another host."""

    same_clock = False

    def __init__(self, loop: EventLoop) -> None:
        self.tasks: set[str] = set()
        self.is_closed = False
        self._loop, self._answered = loop, threading.Event()

    def watch(self, loop: EventLoop, ready: Callable[[], object]) -> None:
        pass

    def unwatch(self) -> None:
        pass

    def receive(self) -> list[Any]:
        return []

    def shut_down(self) -> None:
        pass

    def wait(self, seconds: float) -> None:
        pass

    def kill(self, seconds: float) -> str | None:
        self._loop.call_soon(self._answered.set)
        return "it was killed" if self._answered.wait(seconds) else None

    def close(self) -> None:
        self.is_closed = True


class StuckFleet:
    def __init__(self, loop: EventLoop) -> None:
        self.links: list[StuckLink] = []
        self._loop = loop

    def link_to(self, host: Host) -> StuckLink:
        self.links.append(StuckLink(self._loop))
        return self.links[-1]


def test_the_loop_turns_while_agents_are_killed():
    with EventLoop() as loop:
        fleet = StuckFleet(loop)
        connections = HostConnections(
            cast(Fleet, fleet), loop, on_message=lambda _: None, on_loss=lambda _: None
        )
        for name in ("node1", "node2"):
            connections.open(Host(name), [])
        began = time.monotonic()
        lines = connections.close(lambda: True)
        assert time.monotonic() - began < 2.0, "no kill has waited for its time limit"
    assert all(link.is_closed for link in fleet.links)
    assert [line.split(" did not exit, ")[0] for line in lines] == [
        "the agent of node1",
        "the agent of node2",
    ]
    assert all("were killed" in line for line in lines)

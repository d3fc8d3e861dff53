"""The end of the connections of a job. Tests with real agents are in tests/local and tests/ssh."""

from __future__ import annotations

import threading
import time
from unittest.mock import Mock

from launcher.backends.connections import AgentLink
from launcher.event_loop import EventLoop
from launcher.job import Host
from launcher.launch.host_connections import HostConnections


def stuck_link(loop: EventLoop) -> Mock:
    """Return a link to an agent that does not exit, and whose kill needs the loop.

    So it is with an agent in a container on another host.
    """
    answered = threading.Event()

    def kill(seconds: float) -> str | None:
        loop.call_soon(answered.set)
        return "it was killed" if answered.wait(seconds) else None

    link = Mock(spec=AgentLink, same_clock=False, tasks=set())
    link.wait.return_value = None
    link.kill.side_effect = kill
    return link


def test_the_loop_turns_while_agents_are_killed():
    with EventLoop() as loop:
        links = {name: stuck_link(loop) for name in ("node1", "node2")}
        fleet = Mock(link_to=lambda host: links[host.name])
        connections = HostConnections(fleet, loop, on_message=lambda _: None, on_loss=lambda _: None)
        for name in links:
            connections.open(Host(name), [])
        began = time.monotonic()
        lines = connections.close(lambda: True)
        assert time.monotonic() - began < 2.0, "no kill has waited for its time limit"
    for (name, link), line in zip(links.items(), lines, strict=True):
        assert line.startswith(f"the agent of {name} did not exit, ") and "were killed" in line
        link.close.assert_called_once()

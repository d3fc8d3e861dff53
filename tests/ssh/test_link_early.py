"""The link to an agent over connections that fail before the agent has been met; without any SSH."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from launcher.job import Host
from launcher.transports import link as links
from launcher.transports.link import ReconnectingTransport
from tests.ssh.pretend import PretendFleet, PretendProgram
from tests.ssh.test_link import Reach, opened

__all__ = ["opened"]  # a fixture

pytestmark = pytest.mark.timeout(180)


class Breaking(PretendFleet):
    """So many connections break as soon as something is to be run over them, before it has begun."""

    def __init__(self, breaks: int) -> None:
        super().__init__()
        self.breaks = breaks

    def run(self, host: str, entry: str, arguments: object) -> PretendProgram:
        """See `Programs.run`."""
        if not self.breaks:
            return super().run(host, entry, arguments)
        self.breaks -= 1
        program = super().run(host, "builtins:len", arguments)
        self.line.is_cut = True
        return program


def works(here: Reach) -> None:
    """The agent is there, and does what it is told."""
    here.agent.ready()
    here.count(5)
    here.counted(5)


def test_nothing_starts_over_the_first_connection_but_over_the_second(
    opened: Callable[..., Reach], monkeypatch: pytest.MonkeyPatch
):
    """The first one ends while the second is being made."""
    monkeypatch.setattr(links, "FIRST_ANSWER", 2.0)
    fleet = PretendFleet()
    fleet.takes = 0.4
    fleet.line.frozen.set()
    here = opened(fleet=fleet)
    here.agent.until(lambda: fleet.dialled)
    monkeypatch.setattr(links, "FIRST_ANSWER", 60.0)  # the second one may take its time
    works(here)
    assert re.match(r"node1: connection lost \(nothing of ours has started there", here.notices[0])
    assert re.fullmatch(r"node1: connected again after \d+ s", here.notices[1])
    assert fleet.dialled == 1


@pytest.mark.parametrize("already", [True, False])
def test_the_connection_breaks_before_the_agent_is_there(opened: Callable[..., Reach], already: bool):
    """Before the agent is asked for, and after."""
    fleet = Breaking(0 if already else 1)
    fleet.line.is_cut = already
    here = opened(lease=30.0, fleet=fleet)
    works(here)
    lost = r"node1: connection lost \(the connection broke\); trying again for (2\d|30) s"
    assert re.fullmatch(lost, here.notices[0])
    assert re.fullmatch(r"node1: connected again after \d+ s", here.notices[1])
    assert fleet.dialled == 1


def test_connections_that_break_because_of_us():
    """Whatever is tried again breaks again: once is enough."""
    fleet, notices = Breaking(9), list[str]()
    link = ReconnectingTransport(fleet, notices.append).open(Host("node1"))
    message = link.over.wait(60) and link.wait(0.1)
    link.close()
    fleet.close()
    assert (message, fleet.dialled, len(notices)) == ("the connection broke", 1, 1)


def test_a_host_that_is_not_back_in_time():
    """Nothing is said of tasks that never were."""
    fleet, notices = PretendFleet(), list[str]()
    fleet.cut(reachable=False)
    link = ReconnectingTransport(fleet, notices.append, 4.0).open(Host("node1"))
    message = link.over.wait(60) and link.wait(0.1)
    link.close()
    fleet.close()
    assert message == "no answer for 4 s: connection refused"

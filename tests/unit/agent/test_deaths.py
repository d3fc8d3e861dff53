"""Who ended first is told first, whoever was born first."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
from collections.abc import Iterator

import pytest

from launcher.agent.deaths import Deaths


class Crowd:
    """Processes that do nothing until they are killed."""

    def __init__(self, count: int) -> None:
        self.processes = [subprocess.Popen(["sleep", "60"]) for _ in range(count)]
        self.pids = [process.pid for process in self.processes]

    def kill(self, number: int) -> None:
        """And see it over, though not reaped."""
        pid = self.pids[number]
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    found = Crowd(6)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


@pytest.fixture
def deaths() -> Iterator[Deaths]:
    found = Deaths()
    yield found
    for pid in list(found._pidfds):
        found.forget(pid)
    found._epoll.close()


def test_the_order_is_that_of_their_ends(crowd: Crowd, deaths: Deaths):
    for pid in crowd.pids:
        deaths.watch(pid)
    assert deaths.in_order() == []
    order = random.Random(7).sample(range(6), 6)
    for number in order:
        crowd.kill(number)
    assert deaths.in_order() == [crowd.pids[number] for number in order]


def test_a_moment_is_enough(deaths: Deaths):
    """Two that end within a millisecond, the younger one first, many times."""
    for _ in range(50):
        pair = Crowd(2)
        for pid in pair.pids:
            deaths.watch(pid)
        pair.kill(1)
        pair.kill(0)
        found = deaths.in_order()
        for process in pair.processes:
            process.wait()
            deaths.forget(process.pid)
        assert found == [pair.pids[1], pair.pids[0]]


def test_who_is_forgotten_wakes_nobody(crowd: Crowd, deaths: Deaths):
    deaths.watch(crowd.pids[0])
    deaths.watch(crowd.pids[1])
    crowd.kill(1)
    crowd.kill(0)
    deaths.forget(crowd.pids[1])
    assert deaths.in_order() == [crowd.pids[0]]
    deaths.forget(crowd.pids[0])
    assert deaths.in_order() == []
    assert select.select([deaths], [], [], 0) == ([], [], [])


def test_who_was_over_when_watching_began_is_seen_too(crowd: Crowd, deaths: Deaths):
    crowd.kill(3)
    deaths.watch(crowd.pids[3])
    assert deaths.in_order() == [crowd.pids[3]]


def test_without_pidfds_nobody_is_seen(crowd: Crowd, deaths: Deaths, monkeypatch: pytest.MonkeyPatch):
    """Python 3.8, or a kernel before 5.3."""
    monkeypatch.delattr(os, "pidfd_open")
    deaths.watch(crowd.pids[0])
    crowd.kill(0)
    assert deaths.in_order() == []

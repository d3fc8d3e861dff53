"""Five hundred tasks on one agent."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator

import pytest

from launcher import events
from tests.contract.driver import Driver

COUNT = 500


@pytest.fixture
def usual_limit(nothing_left: str) -> Iterator[None]:
    """The soft limit of open files that most systems have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.timeout(360, func_only=True)  # the waits below, if each takes all its time
@pytest.mark.usefixtures("usual_limit")
def test_five_hundred_tasks(open_agent: Callable[[], Driver]):
    agent = open_agent()
    agent.run("ps/0", ["sh", "-c", "ulimit -n"])  # 1024, but where a host has limits of its own
    since = time.monotonic()
    tasks = [f"worker/{index}" for index in range(COUNT)]
    assert len(set(agent.hold(*tasks).values())) == COUNT
    for task in tasks:
        agent.start(task, ["sh", "-c", "ulimit -n; exec sleep 600"])
    agent.until(lambda: len(agent.all(events.TaskStarted)) == COUNT + 1, timeout=60)
    agent.until(
        lambda: all(agent.output("ps/0") in agent.output(task) for task in tasks), timeout=60, what="limits"
    )
    up = time.monotonic()
    agent.stop(*tasks)
    agent.until(lambda: len(agent.all(events.TaskGone)) == COUNT + 1, timeout=60)
    print(f"{COUNT} tasks: up in {up - since:.2f} s, gone in {time.monotonic() - up:.2f} s")
    assert {fact.signal for fact in agent.all(events.TaskExited) if fact.task in tasks} == {15}
    assert not agent.all(events.TaskNotStarted)
    assert agent.close() == ""

"""Which task failed first, from recorded events."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.api.ends import End, Ends


def started(task: str, host: str = "node1") -> dict[str, Any]:
    return {"event": "TaskStarted", "host": host, "task": task, "attempt": 1, "pid": 1}


def exited(task: str, code: int | None = None, signal: int | None = None, oom: str = "") -> dict[str, Any]:
    return {"event": "TaskExited", "host": "node1", "task": task, "code": code, "signal": signal, "oom": oom}


def told(*events: dict[str, Any]) -> Ends:
    ends = Ends()
    for event in events:
        ends.take(event)
    return ends


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (exited("worker/0", 3), "exited with code 3"),
        (exited("worker/0", None, 9), "was killed by SIGKILL"),
        (exited("worker/0", None, 9, "killed 7"), "was killed by SIGKILL (out of memory)"),
        (exited("worker/0", None, 99), "was killed by signal 99"),
    ],
)
def test_failures(end: dict[str, Any], text: str):
    first = told(started("worker/0"), end).first
    assert first is not None and (first.task, first.text, first.host) == ("worker/0", text, "node1")


def test_the_first_one_counts():
    ends = told(started("worker/0"), started("worker/1"), exited("worker/1", 1), exited("worker/0", 2))
    assert ends.first is not None and ends.first.task == "worker/1"


def test_successes_and_what_the_launcher_ended_are_no_failures():
    signalled = {"event": "TaskSignalled", "task": "ps/0", "signal": 15}
    ends = told(
        started("ps/0"), started("worker/0"), exited("worker/0", 0), signalled, exited("ps/0", None, 15)
    )
    assert ends.first is None


def test_one_that_is_started_again_was_not_signalled():
    again = [{"event": "TaskSignalled", "task": "ps/0", "signal": 15}, started("ps/0"), exited("ps/0", 4)]
    assert told(started("ps/0"), *again).first == End("ps/0", "node1", 4, None, "", True)


def test_one_that_can_not_be_started():
    event = {"event": "TaskNotStarted", "host": "node2", "task": "worker/0", "code": 127, "why": "no python"}
    first = told(event).first
    assert first is not None and first.text == "could not be started: no python"


def test_a_lost_host_takes_its_tasks_along():
    ends = Ends()
    for event in (started("worker/0"), started("worker/1"), started("ps/0", "node2"), exited("worker/0", 0)):
        ends.take(event)
    lost = ends.take({"event": "AgentLost", "host": "node1", "why": "silence"})
    assert [(end.task, end.text) for end in lost] == [("worker/1", "is lost with its host: silence")]


def test_only_the_timer_of_the_job_is_trouble():
    assert told({"event": "TimeUp", "timer": "drain"}).trouble == ""
    assert "timeout" in told({"event": "TimeUp", "timer": "job"}).trouble


def test_when_the_launcher_began_to_end_a_task():
    events = [{"event": "TaskSignalled", "task": "ps/0", "signal": 15, "at": at} for at in (5.0, 7.0)]
    assert told(started("ps/0"), *events).signalled == {"ps/0": 5.0}
    assert told(*events, started("ps/0")).signalled == {}

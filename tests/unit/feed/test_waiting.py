"""When it is said who is waited for."""

from __future__ import annotations

import pytest

from launcher.feed import waiting
from launcher.feed.waiting import Waiting
from tests.unit.feed.feeding import Tasks, until


def test_it_is_said_soon_and_then_ever_more_rarely():
    now = 0.0
    wait = Waiting(lambda: now)
    said = {}
    while now < 600:
        now += 0.5
        if begun := wait.due():
            said[now] = begun
    assert list(said) == [2.0, 30.0, 60.0, 120.0, 240.0, 480.0]
    assert list(said.values())[:2] == ["waiting for", "still waiting, after 30 s, for"]


def test_what_is_odd_is_said_with_what_was_printed_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "FIRST", 0.1)
    monkeypatch.setattr(waiting, "ODD", 0.4)
    monkeypatch.setattr("launcher.feed.patience.ODD", 0.4)
    with Tasks(6, last_lines=lambda task: ["one", "reading the vocabulary"]) as tasks:
        tasks.run(tasks.feeder.train, [1, 2])
        until(lambda: len(tasks.said) >= 2)
        tasks.feeder.close()
    assert tasks.said[0].startswith(
        "waiting for worker/0, worker/1, worker/2, worker/3 and 2 more to ask for rows"
    )
    assert "still waiting" in tasks.said[1]
    assert tasks.said[1].endswith("(worker/0 has printed last: reading the vocabulary)")

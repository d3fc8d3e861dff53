"""Whole runs on several hosts, with agents that only pretend: clocks, remarks, the check of the network."""

from __future__ import annotations

import os
import time

import pytest

from launcher import events
from launcher.events import Tell
from launcher.testing import FakeAgent, FakeLink, FakeTransport, exits
from tests.histories.script import hosts
from tests.unit.test_orchestrator import Run


def test_facts_of_other_machines_are_dated_by_our_clock(monkeypatch: pytest.MonkeyPatch):
    """The first failure by time is looked for over hosts whose clocks are an hour apart."""
    monkeypatch.setattr(FakeLink, "same_clock", False)
    wrong = {"node1": 3600.0, "node2": -3600.0}

    def agent(host: str) -> FakeAgent:
        return FakeAgent(host, {}, clock=lambda: time.time() + wrong[host])

    before = time.time()
    run = Run(FakeTransport(agent=agent), "worker 2", where=hosts(2))
    for task in run.report.tasks:
        assert task.started_at is not None and task.ended_at is not None
        assert before - 0.1 <= task.started_at <= task.ended_at <= time.time()


def test_facts_of_this_machine_are_left_alone():
    agent = FakeAgent("node1", {}, clock=lambda: 5.0)
    run = Run(FakeTransport(agent=lambda _: agent), "worker 1")
    assert run.report.tasks[0].started_at == 5.0


class Said:
    """A voice that has one remark."""

    def __init__(self, text: str) -> None:
        self.fd, self._wake = os.pipe()
        os.write(self._wake, b".")
        self._text = text

    def take(self) -> list[str]:
        os.read(self.fd, 1)
        return [self._text]

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._wake)


def test_remarks_of_other_threads_are_told():
    voice = Said("node2: connection lost")
    try:
        run = Run(FakeTransport({"worker/0": exits()}), "worker 1", voice=voice)
    finally:
        voice.close()
    assert ("on", Tell("node2: connection lost", urgent=True)) in run.calls


def test_hosts_try_each_other_when_they_are_asked_to():
    run = Run(FakeTransport(), "worker 2", where=hosts(2), check=True)
    assert run.report.exit_code == 0
    assert sum(isinstance(what, events.PeersTried) for _, what in run.calls) == 2

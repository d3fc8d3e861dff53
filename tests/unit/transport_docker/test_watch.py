"""How a container ended, where what tells of it comes late, or not at all."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, cast

import pytest
import requests
from docker.errors import NotFound

from launcher.transport.docker import watch as watches
from launcher.transport.docker.engine import Engine
from launcher.transport.docker.settings import End
from launcher.transport.docker.watch import Watch

DIES = {"Type": "container", "Action": "die", "Actor": {"ID": "it", "Attributes": {"exitCode": "137"}}}


class Client:
    """Stands in for the SDK: an engine that has removed the container."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        #: What is told while somebody looks at the container.
        self.later: list[dict[str, Any]] = []

    def events(self, **_: object) -> Iterator[dict[str, Any]]:
        """See `docker.APIClient.events`."""
        return iter(self.said.get, None)

    def inspect_container(self, _: str) -> dict[str, Any]:
        """See `docker.APIClient.inspect_container`."""
        for event in self.later:
            self.said.put(event)
        response = requests.Response()
        response.status_code = 404
        raise NotFound("No such container", response=response)


class Stub:
    """Stands in for `Engine`."""

    hangs = False

    def __init__(self) -> None:
        self.client = Client()

    def asked(self, _: str, request: Any) -> Any:
        """See `Engine.asked`."""
        return request()


@pytest.fixture
def engine() -> Stub:
    """One."""
    return Stub()


@pytest.fixture
def watch(engine: Stub) -> Iterator[Watch]:
    """It knows the container; its thread has ended after the test."""
    found = Watch(cast(Engine, engine), print)
    found.add("it", "worker-0")
    found.start()
    yield found
    engine.client.said.put(None)
    found.join(30)
    assert not found.is_alive()


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_one_that_is_removed_before_its_end_is_heard(engine: Stub, watch: Watch, seconds: float):
    engine.client.later.append(DIES)
    assert watch.wait("worker-0", "it", seconds) == End(137)


def test_one_whose_end_nobody_tells(watch: Watch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watches, "_EVENT", 0.1)
    assert watch.wait("worker-0", "it", 0.0) == End(None)


def test_one_whose_end_was_heard(engine: Stub, watch: Watch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watches, "_EVENT", 30.0)
    engine.client.said.put(DIES)
    assert watch.wait("worker-0", "it", 30.0) == End(137)
    assert watch.wait("worker-0", "it", 0.0) == End(137)

"""Small data while the tasks are still coming."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from launcher.feed import reception
from launcher.feed.remote.frames import Kind, send_frame
from tests.unit.feed.feeding import Tasks, until


def test_who_is_just_being_welcomed_gets_its_part(monkeypatch: pytest.MonkeyPatch):
    """It is known by then, and nothing can be sent to it: the one before must not get all."""
    greet = threading.Event()

    def slow(sock: Any, kind: int, *rest: Any) -> None:
        if kind == Kind.WELCOME:
            greet.wait(40)
        send_frame(sock, kind, *rest)

    with Tasks(2) as tasks:
        first, second = tasks.feed(0), tasks.feed(1)
        tasks.run(tasks.feeder.train, range(1000))
        tasks.run(first.next_batch, 10)
        until(lambda: first._stream().rows.given)
        monkeypatch.setattr(reception, "send_frame", slow)
        tasks.run(second.next_batch, 10)
        links = tasks.feeder._feeds["input"].links
        until(lambda: "worker/1" in links)
        time.sleep(0.4)  # time to do the wrong thing
        greet.set()
        until(lambda: second._stream().rows.given)
        for feed in (first, second):
            feed.terminate()

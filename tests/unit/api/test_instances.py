"""A slot whose connection breaks while an instance runs."""

from __future__ import annotations

import os
import queue
import socket
import threading
from typing import Any

import pytest

from launcher.api import instances
from launcher.api.payload import dumps
from launcher.api.talk import Said, Word, hear, say


class Ways:
    """Stands for a `Connector`: each connection has its other end here."""

    def __init__(self) -> None:
        self.hello: dict[str, Any] = {"task": "worker/0"}
        self.made: list[socket.socket] = []
        self.came: queue.Queue[tuple[str, socket.socket]] = queue.Queue()

    def connect(self, purpose: str, patience: float = 30.0, **more: Any) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.made.append(ours)
        self.came.put((purpose, theirs))
        return ours


def test_the_end_of_its_connection_does_not_end_a_slot(monkeypatch: pytest.MonkeyPatch):
    """A relayed one ends as if the driver had hung up when the way breaks."""
    monkeypatch.setattr(instances, "_start", started := Started())
    ways, (ours, first) = Ways(), socket.socketpair()
    work = Said(Word.WORK, {"instances": 1}, [dumps(None, "nothing")])
    slot = threading.Thread(target=instances.serve, args=(ours, ways, work), daemon=True)
    slot.start()
    assert hear(first) == Said(Word.ENDED, {"number": None, "code": None, "signal": None}, [])
    say(first, Said(Word.START, {"number": 0}))
    assert started.event.wait(20)
    first.close()
    purpose, second = ways.came.get(timeout=20)
    assert purpose == "member"
    again = hear(second)
    assert again is not None and again.facts["number"] is None, "what it said last"
    started.finish()
    ended = hear(second)
    assert ended is not None and ended.facts == {"number": 0, "code": 0, "signal": None}
    say(second, Said(Word.START, {"number": 0}))  # the answer to what was said again, on its way meanwhile
    say(second, Said(Word.START, {"number": None}))
    slot.join(20)
    assert not slot.is_alive() and started.count == 1
    for line in (second, *ways.made):
        line.close()


class Started:
    """Starts a process that stands for an instance; it ends with `finish`."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.count = 0
        self._reading, self._writing = os.pipe()

    def __call__(self, line: Any, doors: Any, said: Said, order: Said) -> instances._Running:
        self.count += 1
        argv = ["/bin/sh", "-c", "read word; exit 0"]
        actions = [(os.POSIX_SPAWN_DUP2, self._reading, 0)]
        pid = os.posix_spawn("/bin/sh", argv, dict(os.environ), file_actions=actions)
        self.event.set()
        return instances._Running(order.facts["number"], pid, os.pidfd_open(pid))

    def finish(self) -> None:
        os.close(self._writing)
        os.close(self._reading)

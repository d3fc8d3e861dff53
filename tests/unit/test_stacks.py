"""Stacks of hosts that lie, are slow or are lost: the tasks of each have a note, and the others are taken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from launcher.common.cluster import TaskId
from launcher.common.errors import TransportError
from launcher.event_loop import EventLoop
from launcher.launch import stacks
from launcher.launch.stacks import StackTaker

GOOD = {"tasks": ["worker/0"], "threads": [{"name": "a", "frames": ["f (g:1)"]}]}

TASKS = [TaskId(f"worker/{number}") for number in range(3)]


class Answer:
    """A program on a host that answers with this at once, or then with an error."""

    def __init__(self, data: bytes | None, error: str = "") -> None:
        self.reading, writing = os.pipe()
        os.close(writing)
        self._rest = data
        self._error = error
        self.sent = 0

    def fileno(self) -> int:
        return self.reading

    def send(self, data: memoryview) -> int:
        self.sent += len(data)
        return len(data)

    def recv(self, size: int) -> bytes | None:
        if self._error:
            raise TransportError(self._error)
        if self._rest is not None:
            data, self._rest = self._rest[:size], self._rest[size:]
            return data
        return None

    def close(self) -> None:
        os.close(self.reading)


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[str], Answer]], dict[str, str]]]:
    """Takes the stacks of two tasks of one host and one of another: the notes of the tasks."""
    monkeypatch.setattr(stacks, "read_program", lambda: (b"x" * 200_000, {"size": 200_000}))
    monkeypatch.setattr(stacks, "_HOST_SECONDS", 1.0)

    def taken(answer_of: Callable[[str], Answer]) -> dict[str, str]:
        with EventLoop() as loop:
            taker = StackTaker(loop, cast(Any, lambda host, *_: answer_of(host)))
            pids = {"bad": {TaskId("worker/1"): 7, TaskId("worker/2"): 8}, "good": {TaskId("worker/0"): 7}}
            taker.take(pids)
            loop.run_until(lambda: not taker.taking, 20)
            assert not taker.taking
            taker.give_up()
            return {task: each.note for each in taker.groups(TASKS) for task in each.tasks}

    yield taken


@pytest.mark.parametrize(
    ("data", "error", "note"),
    [
        (b"", "", "did not answer"),
        (b"{", "", "did not answer"),
        (b"[" * 99_999, "", "did not answer"),
        (json.dumps([GOOD]).encode(), "", "did not answer"),
        (json.dumps([{**GOOD, "tasks": ["worker/1"], "more": 1}]).encode(), "", "did not answer"),
        (b" " * (1 << 20), "", "too much|did not answer"),
        (None, "", "no answer within"),
        (b"", "bad: its agent has exited", "its agent has exited"),
    ],
)
def test_a_bad_host_harms_only_its_own_tasks(take, data: bytes | None, error: str, note: str):
    good = json.dumps([GOOD]).encode()
    notes = take(lambda host: Answer(good) if host == "good" else Answer(data, error))
    assert notes.pop("worker/0") == ""
    assert notes.keys() == {"worker/1", "worker/2"}
    assert all(any(part in text for part in note.split("|")) for text in notes.values()), notes


def test_a_host_that_is_lost_before(take):
    def answer_of(host: str) -> Answer:
        if host == "bad":
            raise TransportError("its host is lost")
        return Answer(json.dumps([GOOD]).encode())

    assert take(answer_of) == {"worker/0": "", "worker/1": "its host is lost", "worker/2": "its host is lost"}

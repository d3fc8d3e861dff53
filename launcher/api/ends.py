"""Which task has failed first, from what the launcher writes down while the job runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.text import signal_name


class End(NamedTuple):
    """A task is over.

    Attributes:
        task: ``worker/0``.
        host: where it ran.
        code, signal: one of them; none: nobody saw its end.
        why: in words; empty: the status says it.
        failed: it was neither a success, nor ended by the launcher.
        attempt: which start of it.
    """

    task: str
    host: str = ""
    code: int | None = None
    signal: int | None = None
    why: str = ""
    failed: bool = False
    attempt: int = 1

    @property
    def text(self) -> str:
        """How it ended, in words."""
        if self.why:
            return self.why
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        return f"exited with code {self.code}"


class Ends:
    """Reads events in the order they came.

    Attributes:
        first: the end of the task that failed first; ``None``: none has failed.
        trouble: what ended the job when no task failed: time is up, somebody stopped it; empty: nothing.
        signalled: when the launcher began to end each task that it has ended, by the clock on the wall.
    """

    def __init__(self) -> None:
        self.first: End | None = None
        self.trouble = ""
        #: Where each task runs, and which start of it.
        self._where: dict[str, tuple[str, int]] = {}
        self._over: set[str] = set()
        self.signalled: dict[str, float] = {}

    def take(self, event: Mapping[str, Any]) -> list[End]:
        """The ends that this event tells of, in the order of the tasks."""
        found = self._ends_of(event)
        for end in found:
            self._over.add(end.task)
            if end.failed and self.first is None:
                self.first = end
        return found

    def _ends_of(self, event: Mapping[str, Any]) -> list[End]:
        kind, task = event["event"], event.get("task", "")
        if kind == "TaskStarted":
            self._where[task] = event["host"], event.get("attempt", 1)
            self._over.discard(task)
            self.signalled.pop(task, None)
        elif kind == "TaskSignalled":
            self.signalled.setdefault(task, event.get("at", 0.0))
        elif kind == "TaskExited":
            return [self._exited(event)]
        elif kind == "TaskNotStarted":
            why = f"could not be started: {event['why']}"
            return [End(task, event["host"], event["code"], None, why, True, event.get("attempt", 1))]
        elif kind == "AgentLost":
            return self._lost(event)
        elif kind == "TimeUp" and event["timer"] == "job":
            self.trouble = self.trouble or "the job took longer than its timeout"
        return []

    def _exited(self, event: Mapping[str, Any]) -> End:
        task, code, number = event["task"], event["code"], event["signal"]
        oom = " (out of memory)" if event.get("oom") else ""
        failed = code != 0 and task not in self.signalled
        end = End(task, event["host"], code, number, "", failed, event.get("attempt", 1))
        return end._replace(why=end.text + oom) if oom else end

    def _lost(self, event: Mapping[str, Any]) -> list[End]:
        host = event["host"]
        why = f"is lost with its host: {event.get('why', '')}"
        return [
            End(task, host, None, None, why, True, attempt)
            for task, (where, attempt) in self._where.items()
            if where == host and task not in self._over
        ]

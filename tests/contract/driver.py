"""Drives one agent through its link, as the orchestrator does, with a bound on every wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from launcher.backends.connections import AgentLink
from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence
from launcher.event_loop import EventLoop

#: Seconds for anything that should happen at once, on a busy machine.
SOON = 20.0
#: SIGKILL.
AT_ONCE: StopSequence = ((9, 5.0),)
#: SIGTERM, a long time, SIGKILL: what ends on it ended by SIGTERM.
POLITE: StopSequence = ((15, 60.0), (9, 5.0))
#: SIGTERM and soon after it SIGKILL.
QUICK: StopSequence = ((15, 0.3), (9, 5.0))

F = TypeVar("F")


class Driver:
    """One agent: sends orders, collects facts and output.

    Args:
        link: to it.
        host: the host's name.
        mark: goes into the environment of every task.
        loop: drives the link.
    """

    def __init__(self, link: AgentLink, host: str, mark: Mapping[str, str], loop: EventLoop) -> None:
        self.link = link
        self.loop = loop
        self.host = host
        self._mark = mark
        #: All facts but output, in order.
        self.facts: list[events.Event] = []
        self._output: dict[str, bytearray] = {}
        #: The link is at its end.
        self.ended = False
        #: How often nothing came of it while it was waited for.
        self.silent = 0
        self._came = False
        link.watch(loop, self._receive)

    # ------------------------------------------------------------------ the link

    def pump(self, seconds: float) -> None:
        """Wait so long for the link, at most, and take and send what it has and takes."""
        deadline, self._came = time.monotonic() + seconds, False
        while True:
            self.loop.run_once(max(0.0, deadline - time.monotonic()))
            if self._came or time.monotonic() >= deadline:
                break
        self.silent += seconds > 0 and not self._came

    def _receive(self) -> None:
        messages = self.link.receive()
        self._came, self.ended = True, messages is None
        if self.ended:
            self.link.unwatch()
        self._take(messages or ())

    def _take(self, messages: Sequence[object]) -> None:
        for message in messages:
            if isinstance(message, events.TaskOutput):
                self._output.setdefault(message.task, bytearray()).extend(message.data)
            else:
                self.facts.append(message)  # type: ignore[arg-type]  # agents send facts

    def until(self, condition: Callable[[], F | None], timeout: float = SOON, what: str = "") -> F:
        """Pump until the condition gives something; fail if it does not in time, or the link ends."""
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            left = deadline - time.monotonic()
            assert left > 0, f"not in {timeout} s: {what or condition}; {self._story()}"
            assert not self.ended, f"{self.link.wait(0)}: {what or condition}; {self._story()}"
            self.pump(min(left, 0.5))
        return found

    def _story(self) -> str:
        tails = {task: bytes(data[-500:]) for task, data in self._output.items()}
        return f"facts: {self.facts[-20:]}; output: {tails}"

    def quiet(self, seconds: float) -> None:
        """Pump for so long, whatever comes."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self.ended:
            self.pump(left)

    def to_the_end(self, timeout: float = SOON) -> str | None:
        """Pump until the link ends and wait for the agent: how it ended."""
        deadline = time.monotonic() + timeout
        while not self.ended:
            assert time.monotonic() < deadline, f"the link does not end; {self._story()}"
            self.pump(0.5)
        return self.link.wait(max(0.0, deadline - time.monotonic()))

    def send(self, order: Any) -> None:
        """Give an order."""
        self.link.send(order)
        self.pump(0)

    def send_unread(self, order: Any) -> None:
        """Give an order, and take nothing that has come."""
        self.link.unwatch()
        self.link.send(order)
        self.loop.run_once(0)
        self.link.watch(self.loop, self._receive)

    def hang_up(self) -> None:
        """Hang up; what has come counts no more."""
        self.link.shut_down()
        self.loop.run_once(0)

    def vanish(self) -> None:
        """Close both ends of the link, as the end of the launcher does."""
        self.link.unwatch()
        self.link.close()
        self.ended = True

    # ------------------------------------------------------------------ facts

    def fact(self, kind: type[F], task: str | None = None, attempt: int = 1) -> F | None:
        """The first fact of this kind, of this task's attempt if one is named."""
        found = (f for f in self.all(kind, task) if task is None or getattr(f, "attempt", None) == attempt)
        return next(found, None)

    def all(self, kind: type[F], task: str | None = None) -> list[F]:
        """Every fact of this kind so far, of this task if one is named."""
        of_kind = [fact for fact in self.facts if isinstance(fact, kind)]
        return [fact for fact in of_kind if task is None or getattr(fact, "task", None) == task]

    def wait(self, kind: type[F], task: str | None = None, attempt: int = 1, timeout: float = SOON) -> F:
        """Wait for a fact."""
        what = f"{kind.__name__} {task or ''}"
        return self.until(lambda: self.fact(kind, task, attempt), timeout, what)

    def output(self, task: str) -> bytes:
        """What a task has printed so far."""
        return bytes(self._output.get(task, b""))

    def size(self, task: str) -> int:
        """How many bytes it has printed so far."""
        return len(self._output.get(task, b""))

    def drain(self, task: str) -> bytes:
        """What it has printed since it was drained last."""
        return bytes(self._output.pop(task, b""))

    # ------------------------------------------------------------------ orders

    def ready(self) -> events.AgentReady:
        """Wait for the agent."""
        return self.wait(events.AgentReady)

    def hold(self, *tasks: str) -> dict[str, int]:
        """Have a port held for each task."""
        before = len(self.all(events.PortsHeld))
        self.link.tasks.update(tasks)
        self.send(events.HoldPorts(self.host, tuple(map(TaskId, tasks))))
        held = self.until(lambda: self.all(events.PortsHeld)[before:], what="ports")[0]
        return {str(task): port for task, port in held.ports.items()}

    def start(
        self,
        task: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        steps: StopSequence = QUICK,
        attempt: int = 1,
    ) -> None:
        """Start a task; does not wait."""
        what: dict[str, Any] = {"task": TaskId(task), "attempt": attempt, "argv": tuple(argv)}
        environment = {**self._mark, **(env or {})}
        self.link.tasks.add(task)
        self.send(events.StartTask(self.host, **what, env=environment, workdir=workdir, steps=steps))

    def started(self, task: str, argv: Sequence[str], **more: Any) -> events.TaskStarted:
        """Start a task and wait until it runs."""
        self.start(task, argv, **more)
        return self.wait(events.TaskStarted, task)

    def run(self, task: str, argv: Sequence[str], timeout: float = SOON, **more: Any) -> events.TaskExited:
        """Start a task and wait until all of it is over."""
        self.start(task, argv, **more)
        self.wait(events.TaskGone, task, timeout=timeout)
        return self.wait(events.TaskExited, task)

    def refused(self, task: str, argv: Sequence[str], **more: Any) -> events.TaskNotStarted:
        """Start a task that can't be started."""
        self.start(task, argv, **more)
        return self.wait(events.TaskNotStarted, task)

    def prints(self, task: str, text: bytes, timeout: float = SOON) -> bytes:
        """Wait until a task has printed this; all that it has printed."""
        self.until(lambda: text in self.output(task), timeout, f"{text!r} of {task}")
        return self.output(task)

    def stop(self, *tasks: str, steps: StopSequence = QUICK) -> None:
        """Have tasks stopped; does not wait."""
        self.send(events.StopTasks(self.host, tuple(map(TaskId, tasks)), steps))

    def stopped(self, task: str, steps: StopSequence = QUICK, timeout: float = SOON) -> events.TaskGone:
        """Stop a task and wait until it is gone."""
        self.stop(task, steps=steps)
        return self.wait(events.TaskGone, task, timeout=timeout)

    def close(self) -> str | None:
        """Close the agent in good order."""
        self.send(events.CloseAgent(self.host))
        self.wait(events.AgentClosed)
        return self.to_the_end()

"""The control socket: ``launch ps RUN`` and ``launch restart RUN TASK`` ask the launcher of a running job.

It is an abstract Unix socket: it has no file, and vanishes with the launcher, however that ends. Other users
can connect to any abstract socket, and make one of any name. So the launcher accepts only connections of its
own user, and `ask` sends nothing unless the other end is the process that the run's record names
(SO_PEERCRED).

A connection has one request and one answer, each a line of JSON::

    {"request": "tasks", "memory": true}           {"report": {...}, "memory": {"worker/0": 104857600}}
    {"request": "restart", "tasks": ["worker/0"]}  {}

``{"error": TEXT}`` is the answer to a request that can't be fulfilled.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from launcher import events
from launcher.agent.connection import process_and_user
from launcher.errors import LaunchError
from launcher.output.jsonl import report_as_dict
from launcher.report import Report, report_from_json
from launcher.runs.run import Run, RunState
from launcher.supervisor import Machine, Phase
from launcher.task_id import TaskId
from launcher.text import listed, printable

#: Bytes of a request and of an answer, at most: enough for tens of thousands of tasks.
_REQUEST_SIZE, _ANSWER_SIZE = 1 << 20, 1 << 26
_READ = 1 << 16
#: Connections at a time; seconds for each until its client has the answer; seconds for agents to measure.
_MOST, _SECONDS, _MEASURE_SECONDS = 16, 10.0, 2.0
#: Seconds for a launcher to open its socket, or to write its report; between two tries to connect.
_PATIENCE, _LOOK = 2.0, 0.05


class _Client:
    """A connection of another command."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.request = b""
        #: The part of the answer that is not sent; ``None``: there is no answer yet.
        self.answer: memoryview | None = None
        self.until = time.monotonic() + _SECONDS


class Control:
    """Serves the control socket of a job; never blocks.

    Args:
        machine: supervises the job.
        report: gives the report of the job as it is now.
        send: sends a command to the agent of a host.
        handle: passes an event to the supervisor, and executes its commands.
    """

    def __init__(
        self,
        machine: Machine,
        report: Callable[[], Report],
        send: Callable[[events.Measure], None],
        handle: Callable[[events.RestartAsked], None],
    ) -> None:
        self._machine, self._report, self._send, self._handle = machine, report, send, handle
        self._selector = selectors.EpollSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._clients: set[_Client] = set()
        #: Clients that wait for the memory of the tasks; hosts that have not measured; until when to wait.
        self._waiting: set[_Client] = set()
        self._measuring: set[str] = set()
        self._measured_until = 0.0
        self._memory: dict[TaskId, int] = {}

    def open(self, job: str) -> None:
        """Listen.

        Args:
            job: the run's name.

        Raises:
            OSError: another process has a socket of this name, or no file descriptor is left.
        """
        self._listener.bind(_address(job))
        self._listener.listen(_MOST)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Close the socket and all connections."""
        for client in tuple(self._clients):
            self._drop(client)
        self._listener.close()
        self._selector.close()

    def fileno(self) -> int:
        """Readable when `serve` has work."""
        return self._selector.fileno()

    def serve(self) -> None:
        """Accept clients, read requests, write answers."""
        for key, _ in self._selector.select(0):
            try:
                self._accept() if key.data is None else self._advance(key.data)
            except BlockingIOError:
                continue
            except OSError:  # the client has gone
                self._drop(key.data)

    def tick(self, now: float) -> float | None:
        """Drop late clients, and answer those that wait for late hosts.

        Args:
            now: monotonic seconds.

        Returns:
            The time until the next call is due, in seconds; ``None``: none is due.
        """
        for client in [client for client in self._clients if client.until <= now]:
            self._drop(client)
        if self._waiting and (not self._measuring or self._measured_until <= now):
            self._answer_waiting()
        due = [client.until - now for client in self._clients]
        due += [self._measured_until - now] if self._waiting else []
        return min(due, default=None)

    def measured(self, event: events.Measured) -> None:
        """A host has measured its tasks."""
        self._memory.update(event.memory)
        self._measuring.discard(event.host)

    # ------------------------------------------------------------------ clients

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        peer.setblocking(False)
        if process_and_user(peer)[1] != os.geteuid() or len(self._clients) >= _MOST:
            peer.close()
            return
        client = _Client(peer)
        self._clients.add(client)
        self._selector.register(peer, selectors.EVENT_READ, client)

    def _advance(self, client: _Client) -> None:
        """Read a part of the request, or write a part of the answer."""
        if client.answer is not None:
            client.answer = client.answer[client.peer.send(client.answer) :]
            if not client.answer:
                self._drop(client)
            return
        data = client.peer.recv(_READ)
        client.request += data
        if not data or client in self._waiting or len(client.request) > _REQUEST_SIZE:
            self._drop(client)
        elif client.request.endswith(b"\n"):
            try:
                self._fulfil(client, json.loads(client.request))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                self._answer(client, {"error": f"not a request: {error}"})

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.peer)
        client.peer.close()
        self._clients.discard(client)
        self._waiting.discard(client)

    def _answer(self, client: _Client, answer: Mapping[str, Any]) -> None:
        client.answer = memoryview(json.dumps(answer).encode() + b"\n")
        self._selector.modify(client.peer, selectors.EVENT_WRITE, client)

    # ------------------------------------------------------------------ requests

    def _fulfil(self, client: _Client, request: Mapping[str, Any]) -> None:
        if request["request"] == "restart":
            tasks = tuple(map(TaskId, request["tasks"]))
            why = self._refusal(tasks)
            if not why:
                self._handle(events.RestartAsked(events.now(), tasks))
            self._answer(client, {"error": why} if why else {})
        elif request["memory"]:
            self._waiting.add(client)
            self._measure()
        else:
            self._answer(client, self._tasks())

    def _refusal(self, tasks: Iterable[TaskId]) -> str:
        """Why these tasks can't be restarted; empty: they can."""
        if self._machine.phase is Phase.STARTUP:
            return "its tasks have not been started yet"
        if self._machine.phase is not Phase.RUNNING:
            return "the job ends"
        lost = [task for task in tasks if self._machine.records[task].host not in self._machine.agents]
        return f"the host of {listed(lost)} is lost" if lost else ""

    def _tasks(self) -> dict[str, Any]:
        return {"report": report_as_dict(self._report()), "memory": self._memory}

    def _measure(self) -> None:
        """Ask the agents for the memory of the tasks, unless they have been asked."""
        if self._measuring:
            return
        records, left = self._machine.records.values(), self._machine.open
        self._memory = {}
        self._measuring = {record.host for record in records if record.pid and record.task in left}
        self._measured_until = time.monotonic() + _MEASURE_SECONDS
        for host in self._measuring:
            self._send(events.Measure(host))

    def _answer_waiting(self) -> None:
        answer = self._tasks()
        for client in self._waiting:
            self._answer(client, answer)
        self._waiting.clear()
        self._measuring.clear()


def _address(job: str) -> str:
    """The name of the control socket of a run."""
    return f"\0tf-launcher-{job}"


# ---------------------------------------------------------------------- the other end


class Snapshot(NamedTuple):
    """The tasks of a run, as they are now or were at its end."""

    report: Report
    #: Resident bytes of the tasks that run, where their hosts have answered.
    memory: Mapping[str, int]
    ended: bool


def snapshot(run: Run, memory: bool = False) -> Snapshot:
    """The tasks of a run now; of one that has ended those of its report.

    Args:
        run: which.
        memory: also measure the memory of tasks that run.

    Raises:
        LaunchError: its launcher can't be asked.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        late = time.monotonic() > deadline
        try:
            if report := run.report():
                return Snapshot(report_from_json(report), {}, True)
            with suppress(ConnectionError):
                answer = ask(run, {"request": "tasks", "memory": memory})
                return Snapshot(report_from_json(answer["report"]), answer["memory"], False)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise LaunchError(f"{run.job} has a report of another version of launch: {error!r}") from error
        if late or run.state not in (RunState.RUNNING, RunState.ENDED):
            raise LaunchError(_unreachable(run))
        time.sleep(_LOOK)


def ask(run: Run, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer of a run's launcher to a request.

    Raises:
        ConnectionError: it has no control socket, or closes it: the job has not begun yet, or has ended.
        LaunchError: it refuses the request, does not answer, or is not a process of this user.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_SECONDS)
        try:
            peer.connect(_address(run.job))
            pid, uid = process_and_user(peer)
            if not run.is_ours or run.owner is None or (pid, uid) != (run.owner.pid, os.geteuid()):
                text = f"its socket belongs to process {pid} of user {uid}"
                raise LaunchError(f"can't ask the launcher of {run.job}: {text}")
            peer.sendall(json.dumps(request).encode() + b"\n")
            with peer.makefile("rb") as file:
                line = file.readline(_ANSWER_SIZE)
            if not line:
                raise ConnectionResetError
            answer: Mapping[str, Any] = json.loads(line)
        except ConnectionError:
            raise
        except (OSError, ValueError) as error:
            text = f"the launcher of {run.job} does not answer; is it suspended? (`launch stop` wakes it)"
            raise LaunchError(text) from error
    if "error" in answer:
        raise LaunchError(f"{run.job}: {printable(answer['error'])}")
    return answer


def _unreachable(run: Run) -> str:
    """Why the launcher of a run has no control socket."""
    if run.state is RunState.ELSEWHERE and run.owner is not None:
        return f"{run.job} runs on {printable(run.owner.machine)}: ask there"
    if run.state is RunState.RUNNING:
        return f"no task of {run.job} runs now: its launcher prepares their start, or copies files"
    return f"the launcher of {run.job} died and left no report; `launch logs {run.job}` has the output"

"""The control socket: ``launch ps``, ``attach`` and ``restart`` ask the launcher of a running job.

It is an abstract Unix socket: it has no file, and vanishes with the launcher, however that ends. Other users
can connect to any abstract socket, and make one of any name. So the launcher accepts only connections of its
own user, and `ask` sends nothing unless the other end is the process that the run's record names
(SO_PEERCRED).

A connection has one request, a packet, and one answer, a file in memory whose descriptor is passed: so the
launcher never waits for a client. Both are JSON::

    {"request": "restart", "tasks": ["worker/0"]}  {}
    {"request": "tasks", "measure": true}          {"report": {...}, "memory": {"worker/0": 104857600},
                                                    "measuring": ["node2"]}
    {"request": "follow", "from": 12}              {"next": 12}

``{"error": TEXT}`` is the answer to a request that can't be fulfilled. With ``measure`` the launcher asks the
hosts for the memory of their tasks; hosts that have not answered yet are ``measuring``.

After the answer to ``follow`` the connection has the events from this number on (default: those to come),
until the job ends: the lines of ``events.jsonl`` with their numbers, ``{"number": 12, "event": ...}``. A
packet may end within a line. The launcher keeps only the last events; a follower that is slower than that
gets ``{"event": "Dropped", "why": TEXT}`` at last.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from launcher import events
from launcher.errors import LaunchError, ProtocolError
from launcher.job_run.followers import Followers
from launcher.loop import Loop
from launcher.output.jsonl import record_as_dict
from launcher.record import Record
from launcher.report import Report, report_from_json
from launcher.runs.run import Run, RunState, selected
from launcher.supervisor import Machine, Phase
from launcher.task_id import TaskId
from launcher.text import listed, printable
from launcher.unix_socket import BACKLOG, accept_own, connect_unix, process_and_user

#: Bytes of a request; connections at a time.
_SIZE, _MOST = 1 << 16, 16
#: Seconds for the launcher to answer; to open its socket, or to write its report; between two tries.
_ANSWER_SECONDS, _PATIENCE, _LOOK = 10.0, 2.0, 0.05


class Control:
    """Serves the control socket of a job.

    Args:
        loop: serves the socket.
        machine: supervises the job.
        followers: get its events.
        report: gives the report of the job as it is now.
        send: sends a command to the agent of a host.
        handle: passes an event to the supervisor, and executes its commands.
    """

    def __init__(
        self,
        loop: Loop,
        machine: Machine,
        followers: Followers,
        report: Callable[[], Report],
        send: Callable[[events.Measure], None],
        handle: Callable[[events.RestartAsked], None],
    ) -> None:
        self._loop, self._machine, self.followers = loop, machine, followers
        self._report, self._send, self._handle = report, send, handle
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        #: The connections, the oldest first.
        self._clients: list[socket.socket] = []
        #: Hosts that have not measured their tasks yet; what the others sent.
        self._measuring: set[str] = set()
        self._memory: dict[TaskId, int] = {}

    def open(self, job: str) -> None:
        """Listen.

        Args:
            job: the run's name.

        Raises:
            OSError: another process has a socket of this name.
        """
        self._listener.bind(_address(job))
        self._listener.listen(BACKLOG)
        self._loop.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Close the socket and all connections."""
        self.followers.close()
        for client in tuple(self._clients):
            self._drop(client)
        if self._listener.fileno() >= 0:
            self._loop.watch(self._listener.fileno())
        self._listener.close()

    def measured(self, event: events.Measured) -> None:
        """A host has measured its tasks."""
        self._memory.update(event.memory)
        self._measuring.discard(event.host)

    # ------------------------------------------------------------------ clients

    def _accept(self) -> None:
        for client in accept_own(self._listener):
            if len(self._clients) == _MOST:
                self._drop(self._clients[0])
            client.setblocking(False)
            self._clients.append(client)
            self._loop.watch(client.fileno(), partial(self._read, client))

    def _read(self, client: socket.socket) -> None:
        if client not in self._clients:  # dropped in the same turn
            return
        packet = b""
        with suppress(OSError):  # the client has gone
            packet = client.recv(_SIZE)
        answer = self._answer(packet)
        # An error: the client has gone, or no file descriptor is left.
        with suppress(OSError), open(os.memfd_create("answer"), "wb", buffering=0) as file:
            file.write(json.dumps(answer).encode())
            socket.send_fds(client, [b"answer"], [file.fileno()])
            if "next" in answer:
                self._forget(client)
                self.followers.add(client, answer["next"])
                return
        self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        self._forget(client)
        client.close()

    def _forget(self, client: socket.socket) -> None:
        self._loop.watch(client.fileno())
        self._clients.remove(client)

    # ------------------------------------------------------------------ requests

    def _answer(self, packet: bytes) -> Mapping[str, Any]:
        try:
            request = json.loads(packet)
            tasks = self._tasks(request["tasks"]) if request["request"] == "restart" else ()
            if request["request"] == "follow":
                return {"next": self.followers.first(request.get("from"))}
            measure = request.get("measure", False)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            return {"error": f"not a request: {error}"}
        except LaunchError as error:
            return {"error": str(error)}
        if tasks:
            self._handle(events.RestartAsked(events.now(), tasks))
            return {}
        if measure:
            self._measure()
        now = {"report": record_as_dict(self._report()), "memory": self._memory}
        return {**now, "measuring": [*self._measuring], "restarting": [*self._machine.state.tasks.restarting]}

    def _tasks(self, names: Collection[str]) -> tuple[TaskId, ...]:
        """The tasks to restart.

        Raises:
            LaunchError: they can't be restarted.
        """
        if self._machine.phase is not Phase.RUNNING:
            raise LaunchError("its tasks have not been started yet, or the job is ending")
        tasks = selected(self._machine.state.tasks.keys(), names)
        if lost := self._machine.stranded(tasks):
            raise LaunchError(f"the host of {listed(lost)} is lost")
        return tuple(tasks)

    def _measure(self) -> None:
        self._memory.clear()
        self._measuring = set(self._machine.busy_hosts())
        for host in self._measuring:
            self._send(events.Measure(host))


def _address(job: str) -> str:
    """The name of the control socket of a run."""
    return f"\0tf-launcher-{job[:80]}"


# ---------------------------------------------------------------------- the other end


class Snapshot(Record):
    """The tasks of a run, as they are now or were at its end."""

    report: Report
    #: Resident bytes of tasks, as far as they were measured; whether hosts still measure them.
    memory: Mapping[str, int]
    measuring: bool
    ended: bool
    #: Tasks that wait to start again.
    restarting: Collection[str] = ()


def snapshot(run: Run, measure: bool = False) -> Snapshot:
    """The tasks of a run now; of one that has ended those of its report.

    Args:
        run: which.
        measure: let the hosts measure the memory of tasks, for later calls.

    Raises:
        LaunchError: its launcher can't be asked.
    """
    run.check_trusted()
    deadline = time.monotonic() + _PATIENCE
    while True:
        late = time.monotonic() > deadline
        try:
            if report := run.report():
                return Snapshot(report_from_json(report), {}, False, True)
            with suppress(ConnectionError):
                answer = ask(run, {"request": "tasks", "measure": measure})
                now = report_from_json(answer["report"])
                waiting = frozenset(map(str, answer.get("restarting", ())))
                return Snapshot(now, answer["memory"], bool(answer["measuring"]), False, waiting)
        except (LookupError, TypeError, ValueError, ProtocolError) as error:
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        return _ask(peer, run, request)


class Events:
    """The events of a run that come from now on; a context.

    Args:
        run: which.

    Raises:
        ConnectionError, LaunchError: as `ask`.
    """

    def __init__(self, run: Run) -> None:
        self._peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        #: No more come: the job ends, its launcher was killed, or we were too slow.
        self.ended = False
        self._rest = b""
        try:
            _ask(self._peer, run, {"request": "follow"})
        except BaseException:
            self._peer.close()
            raise

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close()

    def wait(self, seconds: float | None = None) -> list[Mapping[str, Any]]:
        """The next events, or none if the time is up or there are no more.

        Args:
            seconds: ``None``: no limit.
        """
        if not select.select([self._peer], [], [], seconds)[0]:
            return []
        packet = b""
        with suppress(ConnectionError):  # it was killed
            packet = self._peer.recv(_SIZE)
        self.ended = not packet
        *lines, self._rest = (self._rest + packet).split(b"\n")
        return [json.loads(line) for line in lines]


def _ask(peer: socket.socket, run: Run, request: Mapping[str, Any]) -> Mapping[str, Any]:
    connected = False
    try:
        connect_unix(peer, _address(run.job), _ANSWER_SECONDS)
        connected = True
        pid, uid = process_and_user(peer)
        if not run.is_ours or run.owner is None or (pid, uid) != (run.owner.pid, os.geteuid()):
            text = f"its socket belongs to process {pid} of user {uid}"
            raise LaunchError(f"can't ask the launcher of {run.job}: {text}")
        peer.send(json.dumps(request).encode())
        _, files, _, _ = socket.recv_fds(peer, _SIZE, 1)
    except TimeoutError as error:
        why = "does not answer; is it suspended?"
        if not connected:
            why = "accepts no connections, and their queue is full; is it suspended?"
        text = f"the launcher of {run.job} {why} (`launch stop` wakes it)"
        raise LaunchError(text) from error
    if not files:
        raise ConnectionResetError
    with open(files[0], "rb") as file:
        file.seek(0)
        answer: Mapping[str, Any] = json.load(file)
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

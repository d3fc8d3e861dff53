"""Asks the launcher of a run by its control socket, whose other end is `launcher.launch.control`.

Commands such as ``launch ps`` and ``launch attach`` use it. It never trusts a process only because that
listens at the socket: the process must belong to this user, and be the one that the folder of the run names.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from launcher.common.errors import LaunchError, ProtocolError
from launcher.common.record import Record
from launcher.common.report import Report, report_from_json
from launcher.common.text import escape_controls
from launcher.common.trusted_io import PACKET_BYTES, connect_unix, control_address, process_and_user
from launcher.runs.run import Run, RunState

_ANSWER_TIMEOUT_SECONDS = 10.0
#: A launcher that has just started has no socket yet; one that has just ended has no report yet. This is how
#: long they may take.
_APPEARANCE_TIMEOUT_SECONDS = 2.0
_POLL_SECONDS = 0.05


class RunSnapshot(Record):
    """The state of a run and its tasks: now, or at the end of the run."""

    report: Report
    ended: bool
    #: The resident memory of tasks in bytes, by the names of the tasks that were measured.
    memory: Mapping[str, int] = {}
    #: Whether hosts still measure memory, so a later snapshot may contain more.
    measuring: bool = False
    #: The names of tasks that wait to start again.
    restarting: Collection[str] = ()


def snapshot(run: Run, *, measure: bool = False) -> RunSnapshot:
    """Return the state of a run now. If the run has ended, return what its report says.

    Args:
        run: The run.
        measure: Whether to let the hosts measure the memory of tasks, which later snapshots will contain.

    Raises:
        LaunchError: The launcher cannot be asked, or its answer or report is that of another version of
            launch.
    """
    run.check_trusted()
    # A launcher that has just started has no socket yet, and one that has just exited perhaps no report.
    deadline = time.monotonic() + _APPEARANCE_TIMEOUT_SECONDS
    while True:
        # The clock is read first, so that the launcher is asked once more after the deadline.
        is_late = time.monotonic() > deadline
        try:
            if report := run.report():
                return RunSnapshot(report_from_json(report), ended=True)
            with suppress(ConnectionError):  # The launcher has no socket now.
                answer = ask(run, {"request": "tasks", "measure": measure})
                return RunSnapshot(
                    report_from_json(answer["report"]),
                    ended=False,
                    memory=answer["memory"],
                    measuring=bool(answer["measuring"]),
                    restarting=frozenset(map(str, answer.get("restarting", ()))),
                )
        except (LookupError, TypeError, ValueError, ProtocolError) as error:
            raise LaunchError(f"{run.name} has a report of another version of launch: {error!r}") from error
        # If the launcher has died or is elsewhere, it is useless to wait for its socket or report.
        if is_late or run.state not in (RunState.RUNNING, RunState.ENDED):
            raise LaunchError(unreachable(run))
        time.sleep(_POLL_SECONDS)


def ask(run: Run, request: Mapping[str, Any], seconds: float = _ANSWER_TIMEOUT_SECONDS) -> Mapping[str, Any]:
    """Send a request to the launcher of a run, and return its answer, which may take these seconds.

    Raises:
        ConnectionError: The launcher has no control socket, or closes it, because the job has not started yet
            or has ended.
        LaunchError: The launcher refuses the request, does not answer, or is not a process of this user.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        return _exchange(peer, run, request, seconds)


class EventStream:
    """The events of a run from now on. Leaving its context closes the connection to the launcher.

    Args:
        run: The run.
        seconds: The time limit for the first answer of its launcher.
        with_output: Whether the events shall contain ``Printed`` when logs have grown.

    Raises:
        ConnectionError: The job has not started yet, or has ended.
        LaunchError: The launcher refuses the request, does not answer, or is not a process of this user.
    """

    def __init__(
        self, run: Run, seconds: float = _ANSWER_TIMEOUT_SECONDS, *, with_output: bool = False
    ) -> None:
        """Connect to the launcher of the run, and ask it for the events from now on."""
        #: The connection to the control socket of the launcher.
        self._peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        #: Whether no more events come, because the job ends, its launcher was killed, or the caller was too
        #: slow.
        self.has_ended = False
        #: The start of a line whose end has not arrived yet.
        self._rest = b""
        try:
            _exchange(self._peer, run, {"request": "follow", "output": with_output}, seconds)
        except BaseException:
            self._peer.close()
            raise

    def __enter__(self) -> EventStream:
        """Open a context that closes the connection at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._peer.close()

    def wait(self, seconds: float | None = None) -> list[Mapping[str, Any]]:
        """Wait for events, and return them.

        Args:
            seconds: How long to wait. By default there is no limit.

        Returns:
            The fields of each event. Empty if the time is up, or if the stream has ended.
        """
        if not select.select([self._peer], [], [], seconds)[0]:
            return []
        packet = b""
        with suppress(ConnectionError):  # The launcher may have been killed.
            packet = self._peer.recv(PACKET_BYTES)
        self.has_ended = not packet
        # The last part is empty, or the start of a line whose end has not arrived yet.
        *lines, self._rest = (self._rest + packet).split(b"\n")
        return [json.loads(line) for line in lines]


def _exchange(peer: socket.socket, run: Run, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    """Connect a socket to the launcher of a run, send a request, and return the answer.

    The answer comes as a file, because it may be larger than a packet.

    Args:
        peer: A new socket. It stays connected.
        run: The run.
        request: The request.
        seconds: The time limit for connecting and for the answer.

    Raises:
        ConnectionError: The job has not started yet, or has ended.
        LaunchError: The launcher refuses the request, does not answer, or is not a process of this user.
    """
    is_connected = False
    try:
        connect_unix(peer, control_address(run.name), seconds)
        is_connected = True
        pid, uid = process_and_user(peer)
        # Any process of this machine could have taken the address of the socket.
        if not run.is_ours or run.owner is None or (pid, uid) != (run.owner.pid, os.geteuid()):
            text = f"its socket belongs to process {pid} of user {uid}"
            raise LaunchError(f"cannot ask the launcher of {run.name}: {text}")
        peer.send(json.dumps(request).encode())
        _, files, _, _ = socket.recv_fds(peer, PACKET_BYTES, 1)
    except TimeoutError as error:
        why = "does not answer; is it suspended?"
        if not is_connected:
            why = "accepts no connections, and their queue is full; is it suspended?"
        text = f"the launcher of {run.name} {why} (`launch stop` wakes it)"
        raise LaunchError(text) from error
    if not files:  # The launcher has closed the connection.
        raise ConnectionResetError
    with open(files[0], "rb") as file:
        file.seek(0)  # The offset, which is shared with the launcher, is at the end of what it has written.
        answer: Mapping[str, Any] = json.load(file)
    if "error" in answer:
        raise LaunchError(f"{run.name}: {escape_controls(answer['error'])}")
    return answer


def unreachable(run: Run) -> str:
    """Return a message for the user: why the launcher of a run has no control socket.

    Raises:
        LaunchError: The launcher was started on another machine, so nobody can tell here whether it is alive.
    """
    run.check_seen()
    if run.state is RunState.RUNNING:
        return f"no task of {run.name} runs now: its launcher prepares their start, or copies files"
    return f"the launcher of {run.called} died and left no report; `launch report {run.called}` tells more"

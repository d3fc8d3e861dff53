"""Asks the launcher of a run by its control socket, whose other end is `launcher.launch.control`.

Commands such as ``launch ps`` and ``launch attach`` use it. It trusts only a launcher of the same user that
is the process which the folder of the run names.
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

#: Seconds for the launcher to answer; to open its socket, or to write its report; between two tries.
_ANSWER_TIMEOUT_SECONDS = 10.0
_APPEARANCE_TIMEOUT_SECONDS = 2.0
_POLL_SECONDS = 0.05


class RunSnapshot(Record):
    """The tasks of a run, as they are now or were at its end."""

    report: Report
    ended: bool
    #: Resident bytes of tasks, as far as they were measured; whether hosts still measure them.
    memory: Mapping[str, int] = {}
    measuring: bool = False
    #: Tasks that wait to start again.
    restarting: Collection[str] = ()


def snapshot(run: Run, *, measure: bool = False) -> RunSnapshot:
    """Return the tasks of a run now; of one that has ended those of its report.

    Args:
        run: The run.
        measure: Whether to let the hosts measure the memory of tasks, for later calls.

    Raises:
        LaunchError: Its launcher cannot be asked.
    """
    run.check_trusted()
    deadline = time.monotonic() + _APPEARANCE_TIMEOUT_SECONDS
    while True:
        late = time.monotonic() > deadline
        try:
            if report := run.report():
                return RunSnapshot(report_from_json(report), ended=True)
            with suppress(ConnectionError):
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
        if late or run.state not in (RunState.RUNNING, RunState.ENDED):
            raise LaunchError(_unreachable(run))
        time.sleep(_POLL_SECONDS)


def ask(run: Run, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer of a run's launcher to a request.

    Raises:
        ConnectionError: It has no control socket, or closes it: the job has not begun yet, or has ended.
        LaunchError: It refuses the request, does not answer, or is not a process of this user.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        return _ask(peer, run, request, _ANSWER_TIMEOUT_SECONDS)


class EventStream:
    """The events of a run that come from now on. Leaving its context closes the connection.

    Args:
        run: The run.
        seconds: The time limit for the answer of its launcher.
        with_output: Whether ``Printed`` comes, too, when logs have grown.

    Raises:
        ConnectionError, LaunchError: See `ask`.
    """

    def __init__(
        self, run: Run, seconds: float = _ANSWER_TIMEOUT_SECONDS, *, with_output: bool = False
    ) -> None:
        self._peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        #: Whether no more come: the job ends, its launcher was killed, or we were too slow.
        self.has_ended = False
        self._rest = b""
        try:
            _ask(self._peer, run, {"request": "follow", "output": with_output}, seconds)
        except BaseException:
            self._peer.close()
            raise

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._peer.close()

    def wait(self, seconds: float | None = None) -> list[Mapping[str, Any]]:
        """Return the next events, or none if the time is up or there are no more.

        Args:
            seconds: How long to wait. By default there is no limit.
        """
        if not select.select([self._peer], [], [], seconds)[0]:
            return []
        packet = b""
        with suppress(ConnectionError):  # it was killed
            packet = self._peer.recv(PACKET_BYTES)
        self.has_ended = not packet
        *lines, self._rest = (self._rest + packet).split(b"\n")
        return [json.loads(line) for line in lines]


def _ask(peer: socket.socket, run: Run, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    connected = False
    try:
        connect_unix(peer, control_address(run.name), seconds)
        connected = True
        pid, uid = process_and_user(peer)
        if not run.is_ours or run.owner is None or (pid, uid) != (run.owner.pid, os.geteuid()):
            text = f"its socket belongs to process {pid} of user {uid}"
            raise LaunchError(f"can't ask the launcher of {run.name}: {text}")
        peer.send(json.dumps(request).encode())
        _, files, _, _ = socket.recv_fds(peer, PACKET_BYTES, 1)
    except TimeoutError as error:
        why = "does not answer; is it suspended?"
        if not connected:
            why = "accepts no connections, and their queue is full; is it suspended?"
        text = f"the launcher of {run.name} {why} (`launch stop` wakes it)"
        raise LaunchError(text) from error
    if not files:
        raise ConnectionResetError
    with open(files[0], "rb") as file:
        file.seek(0)
        answer: Mapping[str, Any] = json.load(file)
    if "error" in answer:
        raise LaunchError(f"{run.name}: {escape_controls(answer['error'])}")
    return answer


def _unreachable(run: Run) -> str:
    """Return why the launcher of a run has no control socket.

    Raises:
        LaunchError: Nobody can tell here whether it is alive.
    """
    run.check_seen()
    if run.state is RunState.RUNNING:
        return f"no task of {run.name} runs now: its launcher prepares their start, or copies files"
    return f"the launcher of {run.name} died and left no report; `launch logs {run.name}` has the output"

"""A host that lies: an agent without processes, which sends what a case says and is honest otherwise.

It runs in place of the agent of this machine (`local`), or as the Python of a host (`on_host`). A case has

- ``moment``: after which message of an honest agent the bytes are sent; `MOMENTS`;
- ``raw``: the bytes, as base64;
- ``endless``: whether they are sent again and again;
- ``instead``: the name of the honest message that is left out at that moment; may be empty.

`TASK` in the bytes of a case is the first task of the host, whose name is as long.
"""

from __future__ import annotations

import base64
import json
import os
import select
import sys
import time
from typing import Any

from launcher.agent.host import host_facts
from launcher.common import events, protocol
from launcher.common.cluster import TaskId

MOMENTS = ("start", "ready", "held", "started", "printed", "exited", "gone", "closed")
TASK = b"{{task}}"
_READ = 1 << 16


class Deaf(protocol.MessageChannel):
    """A channel that does not count which messages the launcher took."""

    def _acknowledge(self, count: int) -> None:
        """Do nothing."""


class Pretender:
    """The agent.

    Args:
        case: see above.
        channel: to the launcher.
    """

    def __init__(self, case: dict[str, Any], channel: protocol.MessageChannel) -> None:
        self._case, self._channel = case, channel
        self._task = TaskId("worker/0")
        self._running: dict[TaskId, int] = {}
        self._sent = self._attacked = False

    def run(self) -> None:
        """Answer the launcher until its end of file."""
        if self._channel.met:
            self._begin()
            self._flush()
        while data := os.read(0, _READ):
            messages = self._channel.receive(data)
            if not self._sent and self._channel.met:
                self._begin()
            for message in messages:
                self._take(message)
            self._channel.note_handled(len(messages), time.monotonic(), at_once=True)
            self._flush()

    def _begin(self) -> None:
        if not self._sent:
            self._sent = True
            self._attack("start")
            self._send("ready", events.AgentReady(host="", at=events.now(), pid=7, facts=host_facts()))

    def _take(self, command: Any) -> None:
        now = events.now()
        if isinstance(command, events.HoldPorts):
            self._task = command.tasks[0]
            ports = {task: 40000 + number for number, task in enumerate(command.tasks)}
            self._send("held", events.PortsHeld("", now, ports))
        elif isinstance(command, events.TryPeers):
            self._send("", events.PeersTried("", now, {}))
        elif isinstance(command, events.StartTask):
            self._running[command.task] = command.attempt
            if len(self._running) == self._case.get("tasks", 1):
                self._start()
        elif isinstance(command, events.StopTasks):
            for task in command.tasks:
                self._end(task, None, 15)
        elif isinstance(command, protocol.RunCommand):
            self._send("", protocol.CommandData(command.command, answer(self._case, command.entry)))
            self._send("", protocol.CommandEnded(command.command, 0, ""))
        elif isinstance(command, events.CloseAgent):
            self._send("closed", events.AgentClosed("", now))

    def _start(self) -> None:
        now = events.now()
        for task, attempt in self._running.items():
            moment = "started" if task == self._task else ""
            self._send(moment, events.TaskStarted(host="", at=now, task=task, attempt=attempt, pid=1000))
        first: dict[str, Any] = {"task": self._task, "attempt": self._running[self._task]}
        self._send("printed", events.TaskOutput(host="", **first, data=b"a line\n"))
        if self._case.get("ends", True):
            for task in list(self._running):
                self._end(task, 0, None)

    def _end(self, task: TaskId, code: int | None, signal: int | None) -> None:
        attempt = self._running.pop(task, None)
        if attempt is None:
            return
        first = task == self._task
        about: dict[str, Any] = {"host": "", "at": events.now(), "task": task, "attempt": attempt}
        if signal is not None:
            self._send("", events.TaskSignalled(**about, signal=signal, processes=1))
        exited = events.TaskExited(**about, code=code, signal=signal, peak_rss=4096, cpu_s=0.1)
        self._send("exited" if first else "", exited)
        self._send("gone" if first else "", events.TaskGone(**about))

    def _send(self, moment: str, message: Any) -> None:
        if not (self._case["moment"] == moment and self._case["instead"] == type(message).__name__):
            self._channel.send(message, bulk=isinstance(message, (events.TaskOutput, events.TaskGone)))
        self._attack(moment)

    def _attack(self, moment: str) -> None:
        if moment != self._case["moment"] or self._attacked:
            return
        self._attacked = True
        self._flush()
        raw = base64.b64decode(self._case["raw"]).replace(TASK, self._task.encode())
        poll = select.poll()
        poll.register(0, 0)
        poll.register(1, select.POLLOUT)
        left = raw
        while left and poll.poll() == [(1, select.POLLOUT)]:  # else the launcher has closed its end
            left = left[os.write(1, left[: select.PIPE_BUF]) :] or (raw if self._case["endless"] else b"")
        if self._case.get("quits"):
            os._exit(1)

    def _flush(self) -> None:
        while output := b"".join(self._channel.output(time.monotonic())):
            self._channel.sent(os.write(1, output))


def local(case: dict[str, Any]) -> int:
    """Be the agent of this machine: our stdin and stdout are the pipe."""
    Pretender(case, Deaf(lambda: protocol.Decoder(from_agent=False))).run()
    return 0


def on_host(path: str) -> None:
    """Be the Python of a host: read the program of the launcher, and do something else.

    Args:
        path: of the file with the case.
    """
    _, _, program = (_exactly(int(_exactly(8))) for _ in range(3))
    entry, arguments = json.loads(program)
    with open(path, encoding="ascii") as file:
        case = json.load(file)
    os.write(1, b"\n<tf-launcher program: ready>\n")
    if entry == "launcher.agent.main:start":
        channel = Deaf(lambda: protocol.Decoder(from_agent=False), arguments["token"])
        channel.connect(1, time.monotonic())
        Pretender(case, channel).run()
    elif entry == "launcher.agent.checks:main":
        for line in base64.b64decode(case["raw"]).splitlines(keepends=True):
            os.read(0, _READ)
            os.write(1, line)
    elif entry == "launcher.agent.main:connect":
        os.write(1, b"".join(protocol.encode(protocol.Refused("its agent exited"))))
    else:
        os.write(1, answer(case, entry))


def answer(case: dict[str, Any], entry: str) -> bytes:
    """What a remote command prints."""
    if case["moment"] == entry:
        return base64.b64decode(case["raw"])
    return b"".join(protocol.encode(protocol.FilesDone()))


def _exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit(1)
    return data

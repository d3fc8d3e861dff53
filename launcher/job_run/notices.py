"""Messages for the user beside the output of the tasks."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from launcher.events import AgentReady, Event, TaskNotStarted, Tell
from launcher.job import Host
from launcher.text import printable

#: Messages that may wait for the console; the oldest are dropped.
_MOST_WAITING = 1000

_NOT_SYNCED = "--sync DIR brings a folder to every host and runs there"
_SYNCED = "--sync leaves out what .gitignore names"
_MOUNTED = "it sees only the folder that the tasks run in; --mount adds others"
_PYTHON = "venv: or python: of a host names its Python"
#: Exit codes of a task whose program is not there, or can't be run.
_NO_PROGRAM = (126, 127)


def print_notice(text: str) -> None:
    """Print a message on stderr, each line after ``launch:``; parts of it may come from a host."""
    for line in text.rstrip("\n").split("\n"):
        print(f"launch: {printable(line)}", file=sys.stderr, flush=True)


class Notices:
    """Takes messages from any thread. Prints them; while a job runs, queues them for its console."""

    def __init__(self) -> None:
        self._waiting: deque[Tell] = deque(maxlen=_MOST_WAITING)
        self._queueing = False
        #: Readable when messages wait.
        self.fd, self._write_end = os.pipe()
        for fd in (self.fd, self._write_end):
            os.set_blocking(fd, False)

    def __enter__(self) -> Notices:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.close(self._write_end)

    def __call__(self, text: str) -> None:
        """Give a message to the user now."""
        if not self._queueing:
            print_notice(text)
            return
        self.add(text, urgent=True)
        try:
            os.write(self._write_end, b".")
        except OSError:  # the pipe is full, or closed at the end of the launch
            pass

    def add(self, text: str, urgent: bool = False) -> None:
        """Queue a message for the console of the job, which is not there yet."""
        self._waiting.append(Tell(text, urgent))

    def take(self) -> list[Tell]:
        """The messages that wait."""
        try:
            os.read(self.fd, 65536)
        except BlockingIOError:
            pass
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    @contextmanager
    def queued(self) -> Iterator[None]:
        """While the console of a job takes them."""
        self._queueing = True
        try:
            yield
        finally:
            self._queueing = False
            for message in self.take():
                print_notice(message.text)


class HostHints:
    """Looks at the events of a job with other machines or containers.

    Args:
        hosts: those that the tasks run on.
        synced: code was brought to them.
        check: look for what usually goes wrong between hosts.
        in_containers: the tasks run in containers.
    """

    def __init__(self, hosts: Sequence[Host], synced: bool, check: bool, in_containers: bool) -> None:
        self._hosts = hosts
        self._synced = synced
        self._check = check
        self._in_containers = in_containers
        self._ready: dict[str, Mapping[str, Any]] = {}
        self._advised = False

    def observe(self, event: Event) -> str:
        """A message for the user; empty: there is none."""
        if isinstance(event, TaskNotStarted) and event.code in _NO_PROGRAM and not self._advised:
            self._advised = True
            if self._in_containers:
                return f"not there in the container of {event.host}: {_MOUNTED}"
            return f"not there on {event.host}: {_SYNCED if self._synced else _NOT_SYNCED}; {_PYTHON}"
        if isinstance(event, AgentReady) and self._check:
            self._ready[event.host] = event.facts
            if len(self._ready) == len(self._hosts):
                return "\n".join(self._findings())
        return ""

    def _findings(self) -> list[str]:
        from launcher.checking import findings_of_agents

        lines = []
        for finding in findings_of_agents(self._hosts, self._ready):
            advice = f" ({finding.advice})" if finding.advice else ""
            lines.append(f"{finding.severity}: {', '.join(finding.hosts)}: {finding.seen}{advice}")
        return lines

"""Messages of the launcher for the user."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from launcher.common.events import AgentReady, Event, HostFacts, Tell
from launcher.common.text import escape_controls, join_names
from launcher.job import Host

#: Largest number of messages that wait for the console; the oldest are dropped.
_MAX_WAITING = 1000


def print_notice(text: str) -> None:
    """Print a message on stderr, each line after ``launch:``, with escapes for control characters."""
    for line in text.rstrip("\n").split("\n"):
        print(f"launch: {escape_controls(line)}", file=sys.stderr, flush=True)


class Notices:
    """Prints messages; while a job runs, queues them for its console. Any thread may call it."""

    def __init__(self) -> None:
        self._waiting: deque[Tell] = deque(maxlen=_MAX_WAITING)
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
        """Print a message, or queue it as an urgent one."""
        if not self._queueing:
            print_notice(text)
            return
        self.add(text, urgent=True)
        self.wake()

    def wake(self) -> None:
        """Make `fd` readable, while a job runs."""
        if self._queueing:
            with suppress(OSError):  # the pipe is full, or the launch ends
                os.write(self._write_end, b".")

    def add(self, text: str, urgent: bool = False) -> None:
        """Queue a message for the console of the job."""
        self._waiting.append(Tell(text, urgent))

    def take(self) -> list[Tell]:
        """Remove and return the messages that wait."""
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
        """While a job runs: messages wait for `take`; the rest is printed at the end."""
        self._queueing = True
        try:
            yield
        finally:
            self._queueing = False
            for message in self.take():
                print_notice(message.text)


class HostHints:
    """Gives hints from what the agents of a job on other machines or in containers find.

    Args:
        hosts: the hosts of the tasks.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._names = {host.name for host in hosts}
        self._ready: dict[str, HostFacts] = {}

    def observe(self, event: Event) -> str:
        """A hint for the user about this event; empty: there is none."""
        if isinstance(event, AgentReady) and event.host in self._names:
            known = event.host in self._ready
            self._ready[event.host] = event.facts
            if len(self._ready) == len(self._hosts) and not known:
                return "\n".join(self._findings())
        return ""

    def _findings(self) -> list[str]:
        from launcher.findings import findings_of_agents

        lines = []
        for finding in findings_of_agents(self._hosts, self._ready):
            advice = f" ({finding.advice})" if finding.advice else ""
            lines.append(f"{finding.severity}: {join_names(finding.hosts)}: {finding.seen}{advice}")
        return lines

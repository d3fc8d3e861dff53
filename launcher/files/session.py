"""Conversations with the remote commands that copy files: a thread a host, time limits."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from launcher.agent.transfer import FileStream
from launcher.errors import ProtocolError, TransportError
from launcher.protocol import FilesAlive, FilesFailed
from launcher.transports.base import Hosts

T = TypeVar("T")

#: Seconds without any progress; a host waits up to 600 s for another launch.
_STUCK = 660.0
#: Messages that wait here while something is sent, at most.
_MOST_WAITING = 50_000
#: Seconds between two signs of life of this end.
_PULSE = 5.0
#: Seconds between two looks at whether the copying was cancelled, and between two tries to send.
_LOOK, _SEND_AGAIN = 0.05, 0.005
_TICK = 0.1


class Cancelled(Exception):
    """The copying was cancelled."""


class Conversation(FileStream):
    """Messages to and from one remote command. A context manager.

    Raises, in each method:
        TransportError: the host failed, or is lost; names it.
        Cancelled: see ``cancelled``.

    Args:
        commands: runs the command.
        host, entry, arguments: where, which, with what.
        cancelled: is set to end it.
    """

    def __init__(
        self, commands: Hosts, host: str, entry: str, arguments: object, cancelled: threading.Event
    ) -> None:
        super().__init__(host)
        self._host = host
        self._cancelled = cancelled
        self._pulse_at = time.monotonic() + _PULSE
        self._stuck_at = time.monotonic() + _STUCK
        self._command = commands.run(host, f"launcher.agent.files:{entry}", arguments)
        #: Bytes sent and received so far.
        self.sent = self.received = 0

    def get(self) -> Any:
        """The next message."""
        try:
            message = super().get()
        except ProtocolError as error:
            raise self.misunderstood(error) from error
        if isinstance(message, FilesFailed):
            raise TransportError(f"{self._host}: {message.why}")
        return message

    def misunderstood(self, why: object) -> TransportError:
        """The error for a host that does not keep to the protocol."""
        return TransportError(f"{self._host}: the two ends do not understand each other: {why}")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                count = self._command.send(view)
                view = view[count:]
                self.sent += count
                if count:
                    self._stuck_at = time.monotonic() + _STUCK
                self._receive(0 if count else _SEND_AGAIN)
            except TransportError:
                self._raise_failure()
                raise
        self._pulse_at = time.monotonic() + _PULSE

    def _raise_failure(self) -> None:
        """The command ended while it was sent to: raise its reason, if it gave one."""
        while (message := self._next()) is not None:
            if isinstance(message, FilesFailed):
                raise TransportError(f"{self._host}: {message.why}")

    def _wait(self) -> None:
        self._receive(_LOOK)
        if not self._received and time.monotonic() >= self._pulse_at:
            self.put(FilesAlive())
            self.flush()

    def _receive(self, seconds: float) -> None:
        """Take what has come, waiting so long for it."""
        if self._cancelled.is_set():
            raise Cancelled
        poll = select.poll()
        poll.register(self._command.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)
        data = self._command.recv(256 * 1024)
        now = time.monotonic()
        if data == b"":
            raise self._ended()
        if data is not None:
            self.received += len(data)
            self._take(data)
        elif now >= self._stuck_at:
            raise TransportError(f"{self._host}: nothing moved for {_STUCK:.0f} s while files were copied")

    def _take(self, data: bytes) -> None:
        try:
            messages = [one for one in self._decoder.feed(data) if not isinstance(one, FilesAlive)]
        except ProtocolError as error:
            raise self.misunderstood(error) from error
        if messages:
            self._stuck_at = time.monotonic() + _STUCK
        self._received += messages
        if len(self._received) > _MOST_WAITING:
            raise self.misunderstood("it sends and does not read")

    def _ended(self) -> TransportError:
        status = self._command.wait(2.0)
        lines = self._command.stderr().strip().splitlines()
        how = "it was killed" if status is None else f"it ended with {status}"
        last = f"; its last line: {lines[-1]}" if lines else ""
        return TransportError(f"{self._host}: the copying there ended too early: {how}{last}")

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._command.close()


def _bare(host: str, error: object) -> str:
    """An error of this host, without its name."""
    return str(error).removeprefix(f"{host}: ")


class Outcome(NamedTuple, Generic[T]):
    """Results of `on_all`, in the order of the hosts."""

    done: dict[str, T]
    #: The error of each host that failed; begins with its name.
    failed: dict[str, str]


def on_all(
    hosts: Sequence[str],
    work: Callable[[str, threading.Event], T],
    fanout: int,
    tick: Callable[[], None] = lambda: None,
) -> Outcome[T]:
    """Do ``work`` for each host, in a thread.

    Args:
        hosts: their names, each once.
        work: called with the host, and what is set when all is given up; raises TransportError.
        fanout: how many at once.
        tick: called in this thread, ten times a second; if it raises, all is given up.
    """
    cancelled, room = threading.Event(), threading.BoundedSemaphore(fanout)
    outcome: Outcome[T] = Outcome({}, {})
    broken: list[BaseException] = []

    def run(host: str) -> None:
        with room:
            try:
                if not cancelled.is_set():
                    outcome.done[host] = work(host, cancelled)
            except Cancelled:
                return
            except TransportError as error:
                outcome.failed[host] = f"{host}: {_bare(host, error)}"
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                broken.append(error)

    threads = [
        threading.Thread(target=run, args=(host,), name=f"files-{host}", daemon=True) for host in hosts
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not broken:
                thread.join(_TICK)
                tick()
    finally:
        cancelled.set()
    if broken:
        raise broken[0]
    done = {host: outcome.done[host] for host in hosts if host in outcome.done}
    failed = {host: outcome.failed[host] for host in hosts if host in outcome.failed}
    return Outcome(done, failed)

"""Conversations with the remote commands that copy files: one for each host, several at a time; progress."""

from __future__ import annotations

import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from launcher.agent.transfer import FileStream
from launcher.errors import ProtocolError, TransportError
from launcher.protocol import FilesFailed
from launcher.text import byte_size, counted, listed
from launcher.transports.base import Hosts, for_each

T = TypeVar("T")

#: Seconds without a byte to or from a host until it is given up; a host may wait for another launch.
_STALL = 600.0
#: Seconds between two looks at whether the copying was cancelled.
_LOOK = 0.05
#: Seconds until a line, or a bar, shows the progress.
_LINE_AFTER, _BAR_AFTER = 2.0, 0.3
#: Moves a terminal's cursor to the beginning of the line, and clears it.
_CLEAR_LINE = "\r\x1b[K"


class Conversation(FileStream):
    """Messages to and from one remote command. A context manager.

    Raises, in each method:
        TransportError: the host failed, does nothing, or the copying was cancelled; names the host.

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
        self._moved_at = time.monotonic()
        self._check()
        self._command = commands.run(host, f"launcher.agent.files:{entry}", arguments)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._command.close()

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
            except TransportError:
                self.get()  # the host may have reported why it ended
                raise
            view = view[count:]
            if count:
                self._moved_at = time.monotonic()
                self._check()
            elif early := self._receive():
                try:
                    self._received += self._decoder.feed(early)
                except ProtocolError as error:
                    raise self.misunderstood(error) from error
                self.get()
                raise self.misunderstood("it sends and does not read")

    def _read(self) -> bytes:
        while not (data := self._receive()):
            pass
        return data

    def _receive(self) -> bytes:
        """Wait a moment for what comes, or until more can be sent; nothing may have come."""
        self._check()
        poll = select.poll()
        poll.register(self._command.fileno(), select.POLLIN)
        poll.poll(_LOOK * 1000)
        data = self._command.recv(256 * 1024)
        if data is None:
            return b""
        if not data:
            status = self._command.wait(2.0)
            lines = self._command.stderr().strip().splitlines()
            how = "was killed" if status is None else f"ended with {status}"
            last = f"; its last line: {lines[-1]}" if lines else ""
            raise TransportError(f"{self._host}: the copying there {how}{last}")
        self._moved_at = time.monotonic()
        return data

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise TransportError(f"{self._host}: the time limit (--timeout) ended the copying")
        if time.monotonic() > self._moved_at + _STALL:
            raise TransportError(f"{self._host}: no file data for {_STALL:.0f} s")


class Progress:
    """Counts bytes over all hosts, for several threads, and shows them: a bar on a terminal, else lines.

    Args:
        verb: what is done: ``syncing``, ``collecting``.
        notify: prints a line; ``None``: nothing is shown.
    """

    def __init__(self, verb: str, notify: Callable[[str], None] | None = None) -> None:
        self._verb = verb
        self._notify = notify
        self._is_terminal = notify is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._due = self._began + (_BAR_AFTER if self._is_terminal else _LINE_AFTER)
        self._lock = threading.Lock()
        #: Bytes of files: those to be sent, and those that were sent.
        self.size = self.moved = 0

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def expect(self, size: int) -> None:
        """So many more bytes are to be moved."""
        with self._lock:
            self.size += size

    def move(self, size: int) -> None:
        """So many bytes were moved."""
        with self._lock:
            self.moved += size

    def show(self, waiting: Sequence[str]) -> None:
        """Show how far it is, and the hosts that are not done: to be called ten times a second."""
        if self._notify is None or time.monotonic() < self._due:
            return
        so_far = f"{byte_size(self.moved)} of {byte_size(self.size)} so far, " if self.size else ""
        if self._is_terminal:
            text = f"launch: {self._verb}: {so_far}{counted(len(waiting), 'host')} to go"
            sys.stderr.write(_CLEAR_LINE + text[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()
        else:
            self._due = float("inf")
            self._notify(f"{self._verb}: {so_far}waiting for {listed(waiting)}")

    def end(self, *lines: str) -> None:
        """It is over: remove the bar, and print these lines."""
        if self._is_terminal:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
        for line in lines:
            if self._notify is not None:
                self._notify(line)


def on_all(
    hosts: Sequence[str],
    work: Callable[[str, threading.Event], T],
    fanout: int,
    progress: Progress | None = None,
    deadline: float | None = None,
) -> tuple[dict[str, T], dict[str, str]]:
    """Do ``work`` for each host, in a thread.

    Args:
        hosts: their names, each once.
        work: called with the host, and what is set to cancel it; raises TransportError.
        fanout: how many at once.
        progress: shows it.
        deadline: when what is not done is cancelled (monotonic seconds); ``None``: never.

    Returns:
        The results, and the error of each host that failed, which begins with its name.
    """
    cancelled = threading.Event()
    shown = Progress("") if progress is None else progress

    def show(waiting: Sequence[str]) -> None:
        shown.show(waiting)
        if deadline is not None and time.monotonic() > deadline:
            cancelled.set()

    try:
        done, failed = for_each(hosts, lambda host: work(host, cancelled), print, "", fanout, show)
    finally:
        cancelled.set()
    return done, {host: f"{host}: {text}" for host, text in failed.items()}

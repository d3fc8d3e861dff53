"""Remote commands that copy files, on many hosts at once: messages, progress, the time limit."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from launcher.agent.transfer import TransferStream
from launcher.backends.connections import ProgramRunner, RemoteProgram, for_each
from launcher.common.errors import ProtocolError, TransportError
from launcher.common.text import byte_size, last_line
from launcher.event_loop import EventLoop, await_readable

T = TypeVar("T")

#: Seconds without a byte to or from a host until it is given up; a host may wait for another launch.
_STALL_SECONDS = 600.0
#: Seconds between two looks at whether the time is over.
_POLL_SECONDS = 0.05
#: Seconds of the first wait when a host takes no more bytes; each further wait is twice as long. A pipe is
#: usually empty again after the first one, and no descriptor becomes readable then.
_FIRST_WAIT = 0.001


class FileTransfer:
    """Remote commands on several hosts at once, their progress and their time limit.

    Args:
        commands: run programs of ours on the hosts.
        fanout: how many hosts at once.
        report: gets a line for the user.
        seconds: the time limit.
        loop: of the links to the hosts, see `for_each`.
    """

    def __init__(
        self,
        commands: ProgramRunner,
        fanout: int,
        report: Callable[[str], None] = lambda text: None,
        seconds: float = math.inf,
        loop: EventLoop | None = None,
    ) -> None:
        self._commands, self._fanout, self.report, self._loop = commands, fanout, report, loop
        self._began = time.monotonic()
        self._deadline = self._began + seconds
        self._cancelled = False
        self._lock = threading.Lock()
        #: Bytes of files, of all hosts together: those to be copied, and those that were.
        self.size = self.moved = 0

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._deadline

    def add(self, size: int = 0, moved: int = 0) -> None:
        """Count bytes that are to be copied, and that were copied."""
        with self._lock:
            self.size += size
            self.moved += moved

    def on_all(
        self, hosts: Sequence[str], work: Callable[[str], T], step: str
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Do ``work`` for each host, in a thread.

        Args:
            hosts: their names, each once.
            work: called with the host; raises TransportError.
            step: names the work in progress lines.

        Returns:
            The results, and the error of each host that failed, which begins with its name.
        """

        def progress() -> str:
            return f"{step}, {byte_size(self.moved)} of {byte_size(self.size)} so far" if self.size else step

        try:
            done, failed = for_each(hosts, work, self.report, progress, self._fanout, self._loop)
        finally:
            self._cancelled = True
        return done, {host: f"{host}: {text}" for host, text in failed.items()}

    def cancel(self) -> None:
        """End the copying; any thread may call it."""
        self._cancelled = True

    @contextmanager
    def command(self, host: str, entry: str, arguments: object) -> Iterator[ProgramStream]:
        """Run a command of `launcher.agent.files` on a host.

        Raises:
            TransportError: the host failed, does nothing, or the time is over; names the host.
        """
        self.check(host)
        command = self._commands.run(host, f"launcher.agent.files:{entry}", arguments)
        try:
            yield ProgramStream(self, host, command)
        except ProtocolError as error:
            raise TransportError(f"{host}: wrong message from its remote command: {error}") from error
        finally:
            command.close()

    def check(self, host: str) -> None:
        """Fail when the time is over.

        Raises:
            TransportError: the time is over, or Ctrl-C ended the copying.
        """
        if self._cancelled or self.is_late:
            raise TransportError(f"{host}: the copy was stopped by the time limit")


class ProgramStream(TransferStream):
    """Messages to and from one remote command.

    Raises, in each method:
        TransportError: the host failed, does nothing, or the time is over; names the host.
        ProtocolError: the host does not keep to the protocol.

    Args:
        transfer: that it is part of.
        host, command: the command, where.
    """

    def __init__(self, transfer: FileTransfer, host: str, command: RemoteProgram) -> None:
        super().__init__(host)
        self._transfer, self._command = transfer, command
        self._moved_at = time.monotonic()

    def moved(self, size: int) -> None:
        """See `TransferStream.moved`."""
        self._transfer.add(moved=size)

    def _write(self, data: bytes) -> None:
        view, wait_seconds = memoryview(data), _FIRST_WAIT
        while view:
            try:
                count = self._command.send(view)
            except TransportError:
                self.get()  # the host may have reported why it ended
                raise
            view = view[count:]
            if count:
                wait_seconds = _FIRST_WAIT
                self._moved_at = time.monotonic()
                self._transfer.check(self._host)
                continue
            early = self._read(wait_seconds)
            wait_seconds = min(2 * wait_seconds, _POLL_SECONDS)
            if early:
                self._received += self._decoder.feed(early)
                self.get()
                raise ProtocolError("it sends and does not receive")

    def _read(self, wait_seconds: float = _POLL_SECONDS) -> bytes:
        """Wait for bytes from the host, and return them. If none come in time, they are empty."""
        self._transfer.check(self._host)
        if time.monotonic() > self._moved_at + _STALL_SECONDS:
            silent = f"no file data for {_STALL_SECONDS:.0f}s; does another copy keep it busy?"
            raise TransportError(f"{self._host}: {silent}")
        await_readable(self._command, wait_seconds)
        data = self._command.recv(256 * 1024)
        if data is None:
            return b""
        if not data:
            if error := self._command.start_error():
                raise error
            status = self._command.wait(2.0)
            printed = last_line(self._command.stderr())
            how = "was killed" if status is None else f"exited with {status}"
            last = f"; its last line: {printed}" if printed else ""
            raise TransportError(f"{self._host}: the remote command {how}{last}")
        self._moved_at = time.monotonic()
        return data

"""The pipe to a program of ours on a host whose bytes go over the link to the host's agent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from launcher.common.errors import ProtocolError, TransportError
from launcher.common.protocol import CREDIT_BYTES, CommandCredit, CommandData, CommandEnded, Message
from launcher.common.text import last_line


class LinkPipe:
    """See `launcher.backends.programs.Pipe`; `wait` is not for the loop's thread.

    Args:
        number: The number of the program at its agent.
        lock: That of the link, which holds it when it calls `handle_message` and `lost`.
        send: Sends a message over the link.
        on_close: Called when the pipe is closed, with its number.
    """

    def __init__(
        self,
        number: int,
        lock: threading.RLock,
        send: Callable[[Message], None],
        on_close: Callable[[int], None],
    ) -> None:
        self.number = number
        self._lock, self._send, self._on_close = lock, send, on_close
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._output = bytearray()
        self._output_ended = False
        self._credit = CREDIT_BYTES
        self._why_lost = ""
        self._stderr = ""
        self._status: int | None = None
        self._ended = threading.Event()

    def handle_message(self, message: CommandData | CommandCredit | CommandEnded) -> None:
        """React to a message of the agent about this program."""
        if isinstance(message, CommandCredit):
            self._credit += message.size
        elif isinstance(message, CommandData):
            self._output += message.data
            self._output_ended = not message.data
        else:
            self._status, self._stderr, self._output_ended = message.status, message.stderr, True
            self._ended.set()
        if len(self._output) > CREDIT_BYTES or self._credit > CREDIT_BYTES:
            raise ProtocolError("a remote command sends or acknowledges more than there was")
        os.eventfd_write(self._wake, 1)

    def lost(self, why: str) -> None:
        """React to the end of the link: no message follows."""
        self._why_lost = self._why_lost or why
        self._ended.set()
        os.eventfd_write(self._wake, 1)

    def fileno(self) -> int:
        """See `Pipe.fileno`."""
        return self._wake

    def recv(self, size: int) -> bytes | None:
        """See `Pipe.recv`."""
        with self._lock:
            data = bytes(self._output[:size])
            del self._output[:size]
            if not data and not self._output_ended:
                if self._why_lost:
                    raise TransportError(self._why_lost)
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                return None
        if data:
            self._send(CommandCredit(self.number, len(data)))
        return data

    def send(self, data: bytes | memoryview) -> int:
        """See `Pipe.send`."""
        with self._lock:
            if self._why_lost:
                raise TransportError(self._why_lost)
            if self._status is not None:
                raise TransportError(f"the agent there exited: {last_line(self._stderr)}")
            count = min(len(data), self._credit)
            self._credit -= count
        if count:
            self._send(CommandData(self.number, bytes(data[:count])))
        return count

    def wait(self, seconds: float) -> int | None:
        """See `Pipe.wait`."""
        self._ended.wait(seconds)
        return self._status

    def stderr(self) -> str:
        """See `Pipe.stderr`. It is known after the end of the program."""
        return self._stderr

    def close(self) -> None:
        """See `Pipe.close`."""
        with self._lock:
            self._on_close(self.number)
            os.close(self._wake)

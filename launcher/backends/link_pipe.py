"""A program of ours on a host, whose bytes go over the link to the host's agent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from launcher.common.errors import ProtocolError, TransportError
from launcher.common.protocol import CREDIT_BYTES, CommandCredit, CommandData, CommandEnded, Message
from launcher.common.text import last_line


class LinkCommand:
    """See `launcher.backends.connections.RemoteProgram`.

    Args:
        number: of the command.
        lock: of the link; held by it when it calls `handle_message` and `lost`.
        send: sends a message over the link.
        forget: called when it is closed, with its number.
    """

    def __init__(
        self,
        number: int,
        lock: threading.RLock,
        send: Callable[[Message], None],
        forget: Callable[[int], None],
    ) -> None:
        self.number = number
        self._lock, self._send, self._forget = lock, send, forget
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._output = bytearray()
        self._output_ended = False
        self._credit = CREDIT_BYTES
        self._lost = ""
        self._stderr = ""
        self._status: int | None = None
        self._ended = threading.Event()

    def handle_message(self, message: CommandData | CommandCredit | CommandEnded) -> None:
        """Called by the link, which holds its lock, with a message of this command."""
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
        """Called by the link, which holds its lock: no message follows."""
        self._lost = self._lost or why
        self._ended.set()
        os.eventfd_write(self._wake, 1)

    def fileno(self) -> int:
        """See `RemoteProgram.fileno`."""
        return self._wake

    def recv(self, size: int) -> bytes | None:
        """See `RemoteProgram.recv`."""
        with self._lock:
            data = bytes(self._output[:size])
            del self._output[:size]
            if not data and not self._output_ended:
                if self._lost:
                    raise TransportError(self._lost)
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                return None
        if data:
            self._send(CommandCredit(self.number, len(data)))
        return data

    def send(self, data: bytes | memoryview) -> int:
        """See `RemoteProgram.send`."""
        with self._lock:
            if self._lost:
                raise TransportError(self._lost)
            if self._status is not None:
                raise TransportError(f"the agent there exited: {last_line(self._stderr)}")
            count = min(len(data), self._credit)
            self._credit -= count
        if count:
            self._send(CommandData(self.number, bytes(data[:count])))
        return count

    def wait(self, seconds: float) -> int | None:
        """See `RemoteProgram.wait`; not for the loop's thread. A program that was killed has no status."""
        self._ended.wait(seconds)
        status = self._status
        return status if status is not None and status >= 0 else None

    def start_error(self) -> None:
        """See `RemoteProgram.start_error`: it ran; if the agent has exited, `recv` says so."""

    def exit_reason(self, why: str) -> str:
        """See `RemoteProgram.exit_reason`."""
        return why

    def stderr(self) -> str:
        """See `RemoteProgram.stderr`; known after its end."""
        return self._stderr

    def close(self) -> None:
        """See `RemoteProgram.close`."""
        with self._lock:
            self._forget(self.number)
            os.close(self._wake)

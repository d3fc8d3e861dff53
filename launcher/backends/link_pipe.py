"""The programs of ours that an agent runs as its children, whose bytes travel over the link to the agent.

The links to agents have `LinkPrograms`, which makes a `LinkPipe` for each of them. The loop's thread must
never wait in a pipe, because that thread moves the bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from launcher.backends.programs import RemoteProgram
from launcher.common.errors import ProtocolError, TransportError
from launcher.common.protocol import (
    CREDIT_BYTES,
    CloseCommand,
    CommandCredit,
    CommandData,
    CommandEnded,
    Message,
    RunCommand,
)
from launcher.common.text import last_line


class LinkPipe:
    """A `launcher.backends.programs.Pipe` to a child of an agent, over the link to that agent.

    Args:
        number: The number of the program at its agent.
        lock: The lock of the link, which holds it when it calls `handle_message` and `on_link_lost`.
        send: Sends a message over the link.
        on_close: It is called with the number of the program when the pipe is closed.
    """

    def __init__(
        self,
        number: int,
        lock: threading.RLock,
        send: Callable[[Message], None],
        on_close: Callable[[int], None],
    ) -> None:
        """Make the pipe of a program that the agent is asked to start."""
        self.number = number
        self._lock, self._send, self._on_close = lock, send, on_close
        #: The descriptor that wakes the user of the pipe.
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        #: The stdout of the program that has arrived, and that `recv` has not returned yet.
        self._output = bytearray()
        #: Whether no more of it will come.
        self._output_ended = False
        #: How many bytes for stdin the agent accepts now.
        self._unused_credit = CREDIT_BYTES
        #: Why the link has ended, for messages. Empty while it has not.
        self._loss_reason = ""
        #: The stderr of the program. Empty until the program has exited.
        self._stderr = ""
        #: The exit status of the program. None until it has exited, or if nobody knows it.
        self._status: int | None = None
        #: It is set when the program has exited or the link has ended, for `wait`.
        self._ended = threading.Event()

    def handle_message(self, message: CommandData | CommandCredit | CommandEnded) -> None:
        """React to a message of the agent about this program. The caller holds the lock of the link.

        Raises:
            ProtocolError: The agent sent, or acknowledged, more bytes than it may.
        """
        if isinstance(message, CommandCredit):  # The program has read `size` bytes of what was sent to it.
            self._unused_credit += message.size
        elif isinstance(message, CommandData):  # No data means the end of stdout.
            self._output += message.data
            self._output_ended = not message.data
        else:
            self._status, self._stderr, self._output_ended = message.status, message.stderr, True
            self._ended.set()
        if len(self._output) > CREDIT_BYTES or self._unused_credit > CREDIT_BYTES:
            raise ProtocolError("a remote command sends or acknowledges more than there was")
        os.eventfd_write(self._event_fd, 1)

    def on_link_lost(self, why: str) -> None:
        """React to the end of the link: no further message will come. The caller holds the lock of the link.

        Args:
            why: Why the link has ended, for messages. Only the first reason counts.
        """
        self._loss_reason = self._loss_reason or why
        self._ended.set()
        os.eventfd_write(self._event_fd, 1)

    def fileno(self) -> int:
        """Return an event descriptor that is readable when something has happened."""
        return self._event_fd

    def recv(self, size: int) -> bytes | None:
        """Return bytes of the program's stdout, and grant the agent credit for as many more.

        Returns:
            The bytes. ``b""`` at the end of stdout. None if there is nothing yet.

        Raises:
            TransportError: The link is lost, and all bytes that had arrived were returned before.
        """
        with self._lock:
            data = bytes(self._output[:size])
            del self._output[:size]
            if not data and not self._output_ended:
                if self._loss_reason:
                    raise TransportError(self._loss_reason)
                with suppress(BlockingIOError):  # `fileno` is no longer readable until something happens.
                    os.eventfd_read(self._event_fd)
                return None
        if data:
            self._send(CommandCredit(self.number, len(data)))
        return data

    def send(self, data: bytes | memoryview) -> int:
        """Send bytes to the program's stdin, at most as many as the agent granted, and return their number.

        Raises:
            TransportError: The link is lost, or the program has exited.
        """
        with self._lock:
            if self._loss_reason:
                raise TransportError(self._loss_reason)
            if self._status is not None:
                raise TransportError(f"the agent there exited: {last_line(self._stderr)}")
            count = min(len(data), self._unused_credit)
            self._unused_credit -= count
        if count:
            self._send(CommandData(self.number, bytes(data[:count])))
        return count

    def wait(self, seconds: float) -> int | None:
        """Wait for the program to exit, and return its status, or None if it has not exited in time.

        The loop's thread must not call this, because that thread moves the messages.
        """
        self._ended.wait(seconds)
        return self._status

    def stderr(self) -> str:
        """Return the stderr of the program, which is known only after the program has exited."""
        return self._stderr

    def close(self) -> None:
        """Close the pipe, and let the link forget the program."""
        with self._lock:
            self._on_close(self.number)
            os.close(self._event_fd)


class LinkPrograms:
    """The programs of ours that run as children of the agent of one host.

    Args:
        host: The name of the host.
        lock: The lock of the link, which holds it when it calls `deliver` and `lose`.
        send: Sends a message over the link.
    """

    def __init__(self, host: str, lock: threading.RLock, send: Callable[[Message], None]) -> None:
        """Start without programs. `run` starts them."""
        self._host, self._lock, self._send = host, lock, send
        #: The pipes of the programs that run, by their numbers.
        self._pipes: dict[int, LinkPipe] = {}
        #: The number of the program that was started last. The first program gets the number 1.
        self._last_number = 0
        #: Why the link has ended, for messages. Empty while it has not.
        self._loss_reason = ""

    def run(self, entry: str, arguments: object) -> RemoteProgram:
        """Run a program of ours as a child of the agent. Any thread may call this.

        ``entry`` names a function of ours, as ``module:function``, which is called there with the arguments.
        If the link has ended, or ends, the program reports that when it is used.
        """
        with self._lock:
            self._last_number += 1
            number = self._last_number
            pipe = self._pipes[number] = LinkPipe(number, self._lock, self._send, self._close_pipe)
            if self._loss_reason:
                pipe.on_link_lost(self._loss_reason)
            self._send(RunCommand(number, entry, arguments))
        return RemoteProgram(self._host, pipe, is_ready=True)

    def _close_pipe(self, number: int) -> None:
        """Forget the pipe of a program, and let the agent close its end. A second call does nothing."""
        with self._lock:
            if self._pipes.pop(number, None) is not None:
                self._send(CloseCommand(number))

    def deliver(self, message: CommandData | CommandCredit | CommandEnded) -> None:
        """Pass a message of the agent to the pipe that it is about, unless that was closed.

        Raises:
            ProtocolError: The agent sent, or acknowledged, more bytes than it may.
        """
        if message.command in self._pipes:
            self._pipes[message.command].handle_message(message)

    def lose(self, why: str) -> None:
        """Tell all programs that the link has ended.

        Args:
            why: Why, for messages. Empty if the agent ended as it should.
        """
        self._loss_reason = f"{self._host}: {why or 'its agent has exited'}"
        for pipe in self._pipes.values():
            pipe.on_link_lost(self._loss_reason)

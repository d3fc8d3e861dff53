"""A command on a host: its bytes through a socketpair, its stderr, its exit status."""

from __future__ import annotations

import select
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from paramiko import Channel, ChannelException, SSHException

from launcher.errors import ConnectionLost, TransportError

#: Bytes of stderr that are kept: the last ones.
_STDERR_LIMIT = 64 * 1024
#: Bytes of one read, of one packet, and of a whole window of paramiko's.
_PIECE, _PACKET, _WINDOW = 128 * 1024, 32 * 1024 - 64, 2 * 1024 * 1024
#: Seconds between two looks at a channel whose window is full, and at one that waits for its end only: no
#: descriptor becomes ready for either.
_WINDOW_LOOK, _END_LOOK = 0.01, 0.05
#: Seconds in which the host accepts the last bytes of a caller that has closed its end.
_LAST_BYTES = 5.0
#: What a login shell may print before our command runs, in bytes.
_MOST_NOISE = 64 * 1024
MARK = b"\n<tf-launcher command>\n"

#: Runs the command in the first line of its stdin, so that nothing of it depends on the login shell: sh,
#: bash, zsh, csh, tcsh and fish all take this as ``/bin/sh`` and one argument. The argument has no single
#: quote, backslash, newline or ``!``, which csh and fish read in their own ways.
SHELL_COMMAND = (
    'exec /bin/sh -c \'IFS= read -r c; echo; echo "<tf-launcher command>"; eval "exec $(printf %b "$c")"\''
)


def first_line(argv: Sequence[str]) -> bytes:
    """The line that `SHELL_COMMAND` reads: the quoted command with its backslashes and newlines escaped."""
    text = shlex.join(argv).replace("\\", "\\\\").replace("\n", "\\n")
    return text.encode("utf-8", "surrogateescape") + b"\n"


class Completed(NamedTuple):
    """A command that has ended."""

    #: ``None``: it was killed by a signal.
    status: int | None
    stdout: bytes
    stderr: str


class RemoteProcess:
    """A command that runs on a host. A failure to start is seen where its output is read.

    Args:
        host: for messages.
        open_session: opens the channel; called by the thread of this process.
        command: for the login shell.
        why_broken: the message, if the connection has broken.
        first: the first bytes of its stdin.
        mark: what our command prints first; it and what the login shell prints before it are dropped.

    Attributes:
        socket: its stdin and stdout, without blocking. At the end of the output see `failure`, then `wait`.
        failure: why it could not start, or that the connection broke; ``None``: neither.

    Raises:
        OSError, RuntimeError: this machine has no descriptor or thread left.
    """

    def __init__(
        self,
        host: str,
        open_session: Callable[[], Channel],
        command: str,
        why_broken: Callable[[], str],
        first: bytes = b"",
        mark: bytes = b"",
    ) -> None:
        self.failure: TransportError | None = None
        self._host = host
        self._why_broken = why_broken
        self._status: int | None = None
        self._stderr = bytearray()
        self._over, self._let_go = threading.Event(), threading.Event()
        self.socket, other = socket.socketpair()
        self.socket.setblocking(False)

        def work() -> None:
            with other:  # closed when everything else is known
                self._run(open_session, command, other, first, mark)

        try:
            threading.Thread(target=work, name=f"ssh {host} command", daemon=True).start()
        except RuntimeError:
            self.socket.close()
            other.close()
            raise

    def _run(
        self,
        open_session: Callable[[], Channel],
        command: str,
        other: socket.socket,
        first: bytes,
        mark: bytes,
    ) -> None:
        try:
            channel = open_session()
            try:
                channel.exec_command(command)
                complete = Pump(channel, other, self._keep_stderr, self._let_go, first, mark).run()
                self._status = channel.exit_status if channel.exit_status >= 0 else None
            finally:
                close_channel(channel)
            if not complete:
                self.failure = ConnectionLost(self._why_broken())
        except ChannelException:
            self.failure = TransportError(
                f"{self._host}: its ssh server gives no further session on this connection "
                "(is MaxSessions very low, or does it only forward?)"
            )
        except Noise:
            self.failure = TransportError(f"{self._host}: {noise(_MOST_NOISE)}")
        except (SSHException, EOFError, OSError):
            self.failure = ConnectionLost(self._why_broken())
        finally:
            self._over.set()

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr += data
        del self._stderr[:-_STDERR_LIMIT]

    def wait(self, seconds: float) -> int | None:
        """The exit status; ``None``: it has not ended in time, was killed, or the connection broke."""
        return self._status if self._over.wait(seconds) else None

    def stderr(self) -> str:
        """The last 64 KiB of its stderr."""
        return self._stderr.decode("utf-8", "replace")

    def communicate(self, stdin: bytes, seconds: float, most: int) -> Completed:
        """Write all of stdin, read all of stdout, wait for the end, and close.

        Args:
            stdin: for the command.
            seconds: the limit.
            most: bytes of stdout, at most.

        Raises:
            TransportError: it could not be started, took too long, printed too much, or the connection broke.
        """
        deadline = time.monotonic() + seconds
        rest, stdout, poll = memoryview(stdin), bytearray(), select.poll()
        with self.socket:
            while True:
                poll.register(self.socket, select.POLLIN | select.POLLOUT * bool(rest))
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TransportError(f"{self._host}: the command took longer than {seconds:g} s there")
                rest = rest[_send(self.socket, rest) :]
                if not rest:
                    _shut(self.socket)
                try:
                    data = self.socket.recv(_PIECE)
                except BlockingIOError:
                    continue
                stdout += data
                if len(stdout) > most:
                    raise TransportError(f"{self._host}: the command printed more than {most} bytes there")
                if not data:
                    break
            self._over.wait(max(0.0, deadline - time.monotonic()))
        if self.failure is not None:
            raise self.failure
        return Completed(self._status, bytes(stdout), self.stderr())

    def close(self) -> None:
        """Let go: the command sees the end of its stdin."""
        self._let_go.set()
        self.socket.close()


class Noise(Exception):
    """The login shell prints without end."""


def noise(most: int) -> str:
    """What to tell the user about it."""
    return (
        f"its login shell printed more than {most // 1024} KiB before our program could start; its start-up "
        "files must be quiet when a command is run"
    )


class Pump:
    """Moves bytes both ways between a channel and a socket until one of them is closed.

    It keeps one piece in each direction; the rest waits in the channel's window (2 MiB) or in the socket.

    Args:
        channel: open.
        here: one end of a socketpair, or a connection to a local socket.
        stderr: gets what the command prints there.
        let_go: set when nobody waits for the exit status.
        first: sent before the bytes of the socket.
        mark: output up to and including it is dropped; empty: none is.
    """

    def __init__(
        self,
        channel: Channel,
        here: socket.socket,
        stderr: Callable[[bytes], None],
        let_go: threading.Event,
        first: bytes = b"",
        mark: bytes = b"",
    ) -> None:
        self._channel = channel
        self._here = here
        self._stderr = stderr
        self._let_go = let_go
        self._mark = mark
        self._noise = b""
        self._inward, self._outward = memoryview(b""), memoryview(first)
        self._host_ended = self._caller_ended = False
        #: When the caller closed its end (monotonic).
        self._hung_up_at: float | None = None
        channel.settimeout(0.0)
        here.setblocking(False)

    def run(self) -> bool:
        """Move everything.

        Returns:
            Whether the output of the host came to its end, or its reader is gone; ``False``: the channel was
            closed without an end-of-file, because the connection broke.

        Raises:
            SSHException, EOFError, OSError: the connection broke.
            Noise: there is no mark in the first 64 KiB.
        """
        while True:
            closed = self._channel.closed  # asked before what is left: nothing comes after it
            self._from_host()
            self._from_caller()
            moved = not self._inward and not self._channel.recv_ready()
            if closed and moved and (self._host_ended or not self._channel.eof_received):
                return self._host_ended
            if self._caller_ended and not self._outward and (self._hung_up_at or self._let_go.is_set()):
                return True
            if self._hung_up_at is not None and time.monotonic() >= self._hung_up_at + _LAST_BYTES:
                return True
            self._wait()

    def _from_host(self) -> None:
        channel = self._channel
        ended = channel.eof_received
        if channel.recv_stderr_ready():
            self._stderr(channel.recv_stderr(_WINDOW))
        if not self._inward and channel.recv_ready():
            self._inward = memoryview(self._without_noise(channel.recv(_PIECE)))
        elif not self._inward and ended and not self._host_ended:
            self._inward, self._noise = memoryview(self._noise), b""  # no mark: the login shell says why
            self._host_ended = True
        if self._inward:
            self._inward = self._inward[_send(self._here, self._inward) :]
        if self._host_ended and not self._inward:
            _shut(self._here)

    def _without_noise(self, data: bytes) -> bytes:
        if not self._mark:
            return data
        self._noise += data
        before, mark, after = self._noise.partition(self._mark)
        if len(before) > _MOST_NOISE:
            raise Noise
        if not mark:
            return b""
        self._mark = self._noise = b""
        return after

    def _from_caller(self) -> None:
        channel = self._channel
        if not self._outward and not self._caller_ended:
            try:
                self._outward = memoryview(self._here.recv(_PIECE))
                self._caller_ended = not self._outward
            except BlockingIOError:
                pass
            except OSError:  # closed with unread output
                self._caller_ended = True
        try:
            while self._outward and channel.send_ready() and not channel.closed:
                self._outward = self._outward[channel.send(self._outward[:_PACKET].tobytes()) :]
        except OSError:
            if not channel.closed:
                raise
        if channel.closed:
            self._outward = memoryview(b"")
        elif self._caller_ended and not self._outward:
            channel.shutdown_write()

    def _wait(self) -> None:
        """Until something can be moved. A full window and the close of a channel have no descriptor."""
        poll, channel, here = select.poll(), self._channel, self._here
        if not self._inward and not self._host_ended:
            poll.register(channel.fileno(), select.POLLIN)
        reads = not self._outward and not self._caller_ended
        if self._hung_up_at is None and (reads or self._inward or not self._host_ended):
            poll.register(here, select.POLLIN * reads | select.POLLOUT * bool(self._inward))
        looks = [_WINDOW_LOOK] * bool(self._outward) + [_END_LOOK] * self._host_ended
        for fd, event in poll.poll(min(looks) * 1000 if looks else None):
            if fd == here.fileno() and event & (select.POLLHUP | select.POLLERR) and not self._host_ended:
                self._hung_up_at = time.monotonic()


def close_channel(channel: Channel) -> None:
    """Close a channel, and its descriptor, also where its connection has broken."""
    try:
        channel.close()
    except (SSHException, EOFError, OSError):
        pass


def _send(here: socket.socket, data: memoryview) -> int:
    """How many bytes were taken; all of them where the reader is gone."""
    try:
        return here.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def _shut(here: socket.socket) -> None:
    """The reader sees the end."""
    try:
        here.shutdown(socket.SHUT_WR)
    except OSError:  # it is gone
        pass

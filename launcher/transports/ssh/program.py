"""A program of ours on a host: its bytes through a socketpair, its stderr, its exit status."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from paramiko import Channel, ChannelException, SSHException

from launcher.errors import ConnectionLost, TransportError
from launcher.transports import bootstrap
from launcher.transports.ssh.connection import Connection
from launcher.transports.ssh.options import unexpected

#: Bytes of stderr that are kept: the last ones.
_STDERR_LIMIT = 64 * 1024
#: Bytes of one read, of one packet, and of a whole window of paramiko's.
_PIECE, _PACKET, _WINDOW = 128 * 1024, 32 * 1024 - 64, 2 * 1024 * 1024
#: Seconds between two looks at a channel whose window is full, and at one that waits for its end only: no
#: descriptor becomes ready for either.
_WINDOW_LOOK, _END_LOOK = 0.01, 0.05
#: Seconds in which the host accepts the last bytes of a caller that has closed its end.
_LAST_BYTES = 5.0
#: Seconds for the exit status of a login shell.
_STATUS_LIMIT = 1.0


class SshProgram:
    """A program that runs on a host; see `launcher.transports.base.RemoteCommand`. One thread uses it.

    A thread of its own opens the channel, starts the program and moves its bytes. A failure to start is seen
    where the output is read.

    Args:
        connection: to the host.
        python: what runs the program, for messages.
        startup: see `bootstrap.startup`.

    Raises:
        TransportError: this machine has no descriptor or thread left.
    """

    def __init__(self, connection: Connection, python: str, startup: bytes) -> None:
        self._connection, self._python = connection, python
        self._ready = False
        self._early = b""
        #: Why it could not start, or that the connection broke; set before the end of the output is seen.
        self._failure: TransportError | None = None
        self._status: int | None = None
        self._stderr = b""
        self._over, self._let_go = threading.Event(), threading.Event()
        name = f"ssh {connection.host} program"
        pair: tuple[socket.socket, ...] = ()
        try:
            pair = self._socket, other = socket.socketpair()
            self._socket.setblocking(False)
            threading.Thread(target=self._run, args=(other, startup), name=name, daemon=True).start()
        except (OSError, RuntimeError) as error:
            for sock in pair:
                sock.close()
            raise self._fault(unexpected(error)) from error

    # ------------------------------------------------------------------ its own thread

    def _run(self, other: socket.socket, startup: bytes) -> None:
        with other:  # closed when everything else is known
            try:
                channel = self._connection.transport.open_session()
                try:
                    channel.exec_command(bootstrap.COMMAND)
                    if not Pump(channel, other, self._keep_stderr, self._let_go, startup).run():
                        self._failure = ConnectionLost(self._connection.why_broken())
                    self._status = channel.exit_status if channel.exit_status >= 0 else None
                finally:
                    close_channel(channel)
            except ChannelException:
                self._failure = self._fault(
                    "its ssh server gives no further session on this connection "
                    "(is MaxSessions very low, or does it only forward?)"
                )
            except (SSHException, EOFError, OSError):
                self._failure = ConnectionLost(self._connection.why_broken())
            finally:
                self._over.set()

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-_STDERR_LIMIT:]

    # ------------------------------------------------------------------ the caller's

    def fileno(self) -> int:
        """See `RemoteCommand.fileno`; writable when `send` takes something."""
        return self._socket.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `RemoteCommand.recv`."""
        while not self._ready:
            data = self._receive(_PIECE)
            if data is None:
                return None
            self._await_mark(data)
        data, self._early = self._early[:size], self._early[size:]
        return data or self._receive(size)

    def _receive(self, size: int) -> bytes | None:
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it ended, and has not read all of its stdin
            data = b""
        except OSError as error:
            raise self._fault("this program was closed") from error
        if not data and self._failure is not None:
            raise self._failure
        return data

    def _await_mark(self, data: bytes) -> None:
        """Drop what the login shell prints before our program is up."""
        self._early += data
        found = bootstrap.find_mark(self._early)
        if found is not None:
            word, end = found
            if word != bootstrap.READY:
                raise self._fault(bootstrap.explain(word, self._python))
            self._early, self._ready = self._early[end:], True
        elif bootstrap.echoes(self._early):
            raise self._fault(bootstrap.explain(bootstrap.EATEN, self._python))
        elif len(self._early) > bootstrap.MAX_NOISE:
            raise self._fault(
                f"its login shell printed more than {bootstrap.MAX_NOISE // 1024} KiB before our program "
                "could start; its start-up files must be quiet when a command is run"
            )
        elif not data:
            status = self.wait(_STATUS_LIMIT)
            text = (self.stderr() or self._early.decode("utf-8", "replace")).strip()
            ended = "its login shell ended" if status is None else f"its login shell ended with {status}"
            printed = f" and printed: {text.splitlines()[-1].strip()}" if text else ""
            raise self._fault(f"our program could not be started there: {ended}{printed}")

    def _fault(self, text: str) -> TransportError:
        return TransportError(f"{self._connection.host}: {text}")

    def send(self, data: bytes | memoryview) -> int:
        """See `RemoteCommand.send`; takes nothing before the program is up."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._socket.send(data) if self._ready else 0
        except OSError:  # it takes nothing now, has ended, or was closed: `recv` says which
            return 0

    def wait(self, seconds: float) -> int | None:
        """See `RemoteCommand.wait`. A program that was killed has no exit status."""
        return self._status if self._over.wait(seconds) else None

    def stderr(self) -> str:
        """See `RemoteCommand.stderr`."""
        return self._stderr.decode("utf-8", "replace")

    def close(self) -> None:
        """See `RemoteCommand.close`."""
        self._let_go.set()
        self._socket.close()


class Pump:
    """Moves bytes both ways between a channel and a socket until one of them is closed.

    It keeps one piece in each direction; the rest waits in the channel's window (2 MiB) or in the socket.

    Args:
        channel: open.
        here: one end of a socketpair, or a connection to a local socket.
        stderr: gets what the command prints there.
        let_go: set when nothing waits for the exit status.
        first: sent before the bytes of the socket.
    """

    def __init__(
        self,
        channel: Channel,
        here: socket.socket,
        stderr: Callable[[bytes], None],
        let_go: threading.Event,
        first: bytes = b"",
    ) -> None:
        self._channel = channel
        self._here = here
        self._stderr = stderr
        self._let_go = let_go
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
            self._inward = memoryview(channel.recv(_PIECE))
        elif not self._inward and ended and not self._host_ended:
            self._host_ended = True
        if self._inward:
            self._inward = self._inward[_send(self._here, self._inward) :]
        if self._host_ended and not self._inward:
            _shut(self._here)

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
        if reads and self._hung_up_at is not None:
            return  # the caller may have sent more before it closed its end; reading does not block
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

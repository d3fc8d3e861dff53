"""Programs of ours started by a command line of this machine: a child process, or one that reaches a host."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from launcher.backends import bootstrap
from launcher.common.errors import TransportError
from launcher.common.text import last_line, nothing_started, signal_name, why_not_started

_READ_BYTES = 128 * 1024
#: Bytes of stderr that are kept: the last ones.
STDERR_LIMIT_BYTES = 64 * 1024
#: Seconds for a command to read our program; to end after its output or stdin has ended. Then it is killed.
_ARRIVAL_SECONDS = 60.0
_END_TIMEOUT_SECONDS = 5.0


class PipedProgram:
    """A program of ours behind a pipe; see `launcher.backends.connections.RemoteProgram`.

    It drops output before the mark of `bootstrap`. One thread uses it at a time.

    Args:
        host: for messages.
        python: the Python that runs the program, for messages.
        starter: the command that starts it, for messages: ``its login shell``.
        patience: seconds for it to start; a login shell may wait for ever, an ``srun`` for its turn.
    """

    def __init__(self, host: str, python: str, starter: str, patience: float = math.inf) -> None:
        self._host, self._python, self._starter = host, python, starter
        self._patience, self._begun_at = patience, time.monotonic()
        self._ready, self._early = False, b""

    def recv(self, size: int) -> bytes | None:
        """See `RemoteProgram.recv`."""
        while not self._ready:
            data = self._receive(_READ_BYTES)
            if data:
                self._await_mark(data)
            elif data is None and time.monotonic() > self._begun_at + self._patience:
                raise self._fault(nothing_started(self._patience))
            else:
                return data
        data, self._early = self._early[:size], self._early[size:]
        return data or self._receive(size)

    def _receive(self, size: int) -> bytes | None:
        """As `recv`, before the mark, too."""
        raise NotImplementedError

    def _await_mark(self, data: bytes) -> None:
        self._early += data
        found = bootstrap.find_mark(self._early)
        if found is not None:
            state, end = found
            if state != bootstrap.READY:
                raise self._fault(bootstrap.explain(state, self._python))
            self._early, self._ready = self._early[end:], True
        elif bootstrap.is_echoed(self._early):
            raise self._fault(bootstrap.explain(bootstrap.EATEN, self._python))
        elif len(self._early) > bootstrap.MAX_NOISE_BYTES:
            raise self._fault(
                f"{self._starter} printed more than {bootstrap.MAX_NOISE_BYTES // 1024} KiB before the agent "
                "started; its start-up files must print nothing when a command is run"
            )

    def start_error(self) -> TransportError | None:
        """See `RemoteProgram.start_error`."""
        if self._ready:
            return None
        status = self.wait(_END_TIMEOUT_SECONDS)
        if why := bootstrap.explain_status(status):
            return self._fault(why)
        ended = f"{self._starter} {self._how_ended(status)}"
        text = last_line(self.stderr() or self._early.decode("utf-8", "replace"))
        printed = f" and printed: {text}" if text else ""
        return self._fault(f"the agent could not be started there: {ended}{printed}")

    def _how_ended(self, status: int | None) -> str:
        return "exited" if status is None else f"exited with {status}"

    def exit_reason(self, why: str) -> str:
        """See `RemoteProgram.exit_reason`."""
        return why

    def _fault(self, text: str) -> TransportError:
        return TransportError(f"{self._host}: {text}")

    def send(self, data: bytes | memoryview) -> int:
        """See `RemoteProgram.send`; takes no bytes before the program runs."""
        return self._send(data) if self._ready else 0

    def _send(self, data: bytes | memoryview) -> int:
        """As `send`, before the mark, too."""
        raise NotImplementedError

    def wait(self, seconds: float) -> int | None:
        """See `RemoteProgram.wait`."""
        raise NotImplementedError

    def stderr(self) -> str:
        """See `RemoteProgram.stderr`."""
        raise NotImplementedError


class CommandPipe(PipedProgram):
    """A command whose stdin and stdout are those of a program of ours.

    Args:
        host: for messages.
        argv: the command.
        startup: the bytes that it reads first, see `bootstrap.startup`.
        python: the Python that runs the program, for messages.
        environ: the variables of the command; ``None``: those of this process.
        started: called when the command runs, before it has read the program.

    Raises:
        TransportError: the command can't be started.
    """

    def __init__(
        self,
        host: str,
        argv: Sequence[str],
        startup: bytes,
        python: str,
        environ: Mapping[str, str] | None = None,
        started: Callable[[CommandPipe], object] = lambda _: None,
    ) -> None:
        super().__init__(host, python, argv[0])
        self._socket, theirs = socket.socketpair()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._stderr,
                    env=environ,
                    start_new_session=True,
                )
        except OSError as error:
            self._socket.close()
            self._stderr.close()
            raise self._fault(f"{argv[0]} can't be started: {why_not_started(error)}") from error
        started(self)
        self._socket.settimeout(_ARRIVAL_SECONDS)
        try:
            self._socket.sendall(startup)
        except TimeoutError:  # it has read a part of the program only
            self._process.kill()
        except OSError:  # it has ended already: `recv` reports why
            pass
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """See `RemoteProgram.fileno`."""
        return self._socket.fileno()

    def _receive(self, size: int) -> bytes | None:
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it ended, and has not read all of its stdin
            return b""
        except OSError as error:
            raise self._fault("this program was closed") from error

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except OSError:  # it takes nothing now, has ended, or was closed: `recv` reports which
            return 0

    def wait(self, seconds: float) -> int | None:
        """See `RemoteProgram.wait`."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else None

    def _how_ended(self, status: int | None) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            return f"was killed by {signal_name(-code)}"
        return super()._how_ended(status)

    def stderr(self) -> str:
        """See `RemoteProgram.stderr`."""
        fd = self._stderr.fileno()
        start = max(0, os.fstat(fd).st_size - STDERR_LIMIT_BYTES)
        return os.pread(fd, STDERR_LIMIT_BYTES, start).decode("utf-8", "replace")

    def close(self) -> None:
        """See `RemoteProgram.close`; a program that does not end by itself is killed."""
        self._socket.close()
        if self._process.returncode is None and self.wait(_END_TIMEOUT_SECONDS) is None:
            self._process.kill()
            self._process.wait()
        self._stderr.close()


def run_here(host: str, entry: str, arguments: object) -> CommandPipe:
    """Run a program of ours in a child process here; see `ProgramRunner.run`."""
    return CommandPipe(
        host, bootstrap.loader(sys.executable), bootstrap.program(entry, arguments), sys.executable
    )

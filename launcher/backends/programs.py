"""Programs of ours on hosts: `RemoteProgram` over the `Pipe` of whatever reaches the host.

Links, copies of files, engines and checks use a program by `RemoteProgram` alone. A backend that starts its
programs by a command line of this machine uses `start_program`.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Protocol

from launcher.backends import bootstrap
from launcher.common.errors import TransportError
from launcher.common.text import last_line, nothing_started, signal_name, why_not_started

_READ_BYTES = 128 * 1024
#: Bytes of stderr that are kept: the last ones.
STDERR_LIMIT_BYTES = 64 * 1024
#: Seconds for a command to read our program.
_ARRIVAL_TIMEOUT_SECONDS = 60.0
#: Seconds for a command to exit after its output or its stdin has ended. Then it is killed.
_EXIT_TIMEOUT_SECONDS = 5.0


class Pipe(Protocol):
    """A byte stream each way to a process. Only `wait` and `close` block, for seconds at most."""

    def fileno(self) -> int:
        """For select: readable when `recv` has something; it may become writable when `send` takes more."""

    def recv(self, size: int) -> bytes | None:
        """Return up to ``size`` bytes of its stdout.

        Returns:
            ``b""`` at the end, None when there is nothing yet.

        Raises:
            TransportError: The connection broke.
        """

    def send(self, data: bytes | memoryview) -> int:
        """Write to its stdin without blocking, and return the number of bytes written.

        Raises:
            TransportError: The connection broke. A pipe may leave that to `recv`.
        """

    def wait(self, seconds: float) -> int | None:
        """Wait for the process to exit.

        Returns:
            Its exit status, or -N after signal N. None: it has not exited in time, or nobody knows.
        """

    def stderr(self) -> str:
        """Return the last 64 KiB of its stderr."""

    def close(self) -> None:
        """Close the pipe: the process sees the end of its stdin."""


class RemoteProgram:
    """A program of ours that runs on a host, with a byte pipe each way. One thread uses it at a time.

    What comes on its stdout before the mark of `bootstrap` is not the program's, and is dropped.
    Only `wait`, `start_error`, `exit_reason` and `close` block, for seconds at most.

    Args:
        host: The name of the host.
        pipe: To the process that runs the program.
        python: The Python that runs the program, for messages.
        starter: The command that starts it, for messages: ``its login shell``.
        patience: Seconds for it to start. A login shell may wait for ever, an ``srun`` for its turn.
        is_ready: Whether the program runs already: there is no mark.
    """

    #: What to do about a Python that is missing or too old, for messages.
    python_advice = "name a Python of 3.8 or later with `python` in the hostfile, or install one"

    def __init__(
        self,
        host: str,
        pipe: Pipe,
        *,
        python: str = "",
        starter: str = "",
        patience: float = math.inf,
        is_ready: bool = False,
    ) -> None:
        self.host = host
        self.is_ready = is_ready
        self._pipe = pipe
        self._python, self._starter, self._patience = python, starter, patience
        self._begun_at = time.monotonic()
        self._received_early = b""
        #: Whether its stdout has ended before it ran.
        self._ended_early = False

    def fileno(self) -> int:
        """See `Pipe.fileno`."""
        return self._pipe.fileno()

    def recv(self, size: int) -> bytes | None:
        """Return up to ``size`` bytes of its stdout.

        Returns:
            ``b""`` at the end, None when there is nothing yet.

        Raises:
            TransportError: It could not be started, or the connection broke; the message says which.
        """
        if not self.receive_start():
            return b"" if self._ended_early else None
        data, self._received_early = self._received_early[:size], self._received_early[size:]
        return data or self._pipe.recv(size)

    def receive_start(self) -> bool:
        """Receive until the program runs, or nothing more comes now. Returns whether it runs.

        Raises:
            TransportError: It cannot be started.
        """
        while not self.is_ready and not self._ended_early:
            data = self._pipe.recv(_READ_BYTES)
            if data is None:
                if time.monotonic() > self._begun_at + self._patience:
                    raise self.fault(nothing_started(self._patience))
                break
            self._ended_early = not data
            self._look_for_mark(data)
        return self.is_ready

    def _look_for_mark(self, data: bytes) -> None:
        self._received_early += data
        found = bootstrap.find_mark(self._received_early)
        if found is not None:
            state, end = found
            if state != bootstrap.READY:
                raise self.fault(bootstrap.explain(state, self._python, self.python_advice))
            self._received_early, self.is_ready = self._received_early[end:], True
            self.on_ready()
        elif bootstrap.is_echoed(self._received_early):
            raise self.fault(bootstrap.explain(bootstrap.EATEN, self._python, self.python_advice))
        elif len(self._received_early) > bootstrap.MAX_NOISE_BYTES:
            raise self.fault(
                f"{self._starter} printed more than {bootstrap.MAX_NOISE_BYTES // 1024} KiB before the agent "
                "started; its start-up files must print nothing when a command is run"
            )

    def on_ready(self) -> None:
        """React to the mark: the program runs."""

    def send(self, data: bytes | memoryview) -> int:
        """Write to its stdin without blocking.

        Returns:
            The number of bytes written. 0 before the program runs.

        Raises:
            TransportError: The connection broke.
        """
        return self._pipe.send(data) if self.is_ready else 0

    def start_error(self) -> TransportError | None:
        """Return, after the end of its stdout, why it never ran.

        Returns:
            `HostGoneError` if nothing can connect to its host any more. None: it ran.
        """
        if self.is_ready:
            return None
        status = self.wait(_EXIT_TIMEOUT_SECONDS)
        if why := bootstrap.explain_status(status):
            return self.fault(why)
        text = last_line(self.stderr() or self._received_early.decode("utf-8", "replace"))
        printed = f" and printed: {text}" if text else ""
        ended = f"{self._starter} {self._how_exited()}"
        return self.fault(f"the agent could not be started there: {ended}{printed}")

    def _how_exited(self) -> str:
        status = self._pipe.wait(0.0)
        if status is None:
            return "exited"
        return f"exited with {status}" if status >= 0 else f"was killed by {signal_name(-status)}"

    def exit_reason(self, said: str) -> str:
        """Return why an agent exits without being asked to, for the user.

        Args:
            said: What the agent itself said.

        Raises:
            HostGoneError: The host has gone; the message says why.
        """
        return said

    def wait(self, seconds: float) -> int | None:
        """Wait for its exit status.

        Returns:
            None if it has not exited in time, was killed, or the status is not known.
        """
        status = self._pipe.wait(seconds)
        return status if status is not None and status >= 0 else None

    def stderr(self) -> str:
        """Return the last 64 KiB of its stderr."""
        return self._pipe.stderr()

    def close(self) -> None:
        """Close its pipes: the program sees the end of its stdin."""
        self._pipe.close()

    def fault(self, text: str) -> TransportError:
        """Return an error about the host."""
        return TransportError(f"{self.host}: {text}")


class SubprocessPipe:
    """The stdin and stdout of a command of this machine; see `Pipe`.

    Args:
        host: The name of the host, for messages.
        argv: The command.
        environ: The variables of the command. None: those of this process.

    Raises:
        TransportError: The command cannot be started.
    """

    def __init__(self, host: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._host = host
        #: Our end of its stdin and stdout.
        self.socket, theirs = socket.socketpair()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        try:
            with theirs:
                fd = theirs.fileno()
                self.process = subprocess.Popen(
                    argv, stdin=fd, stdout=fd, stderr=self._stderr, env=environ, start_new_session=True
                )
        except OSError as error:
            self.socket.close()
            self._stderr.close()
            why = why_not_started(error)
            raise TransportError(f"{host}: {argv[0]} cannot be started: {why}") from error
        self.socket.setblocking(False)

    def deliver(self, startup: bytes) -> None:
        """Send the program that the command runs. Blocks until the command has read most of it.

        Args:
            startup: See `bootstrap.startup`.
        """
        self.socket.settimeout(_ARRIVAL_TIMEOUT_SECONDS)
        try:
            self.socket.sendall(startup)
        except TimeoutError:  # it has read a part of the program only
            self.process.kill()
        except OSError:  # it has ended already: `recv` reports why
            pass
        self.socket.setblocking(False)

    def fileno(self) -> int:
        """See `Pipe.fileno`."""
        return self.socket.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `Pipe.recv`."""
        try:
            return self.socket.recv(size)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it ended, and has not read all of its stdin
            return b""
        except OSError as error:
            raise TransportError(f"{self._host}: this program was closed") from error

    def send(self, data: bytes | memoryview) -> int:
        """See `Pipe.send`."""
        try:
            return self.socket.send(data)
        except OSError:  # it takes nothing now, has ended, or was closed: `recv` reports which
            return 0

    def wait(self, seconds: float) -> int | None:
        """See `Pipe.wait`."""
        try:
            return self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return None

    def stderr(self) -> str:
        """See `Pipe.stderr`."""
        fd = self._stderr.fileno()
        start = max(0, os.fstat(fd).st_size - STDERR_LIMIT_BYTES)
        return os.pread(fd, STDERR_LIMIT_BYTES, start).decode("utf-8", "replace")

    def end_input(self) -> None:
        """Close the stdin of the command; its output can still be read."""
        with suppress(OSError):  # its other end is closed
            self.socket.shutdown(socket.SHUT_WR)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the command and its children, unless it has exited."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """See `Pipe.close`. A command that does not exit by itself is killed."""
        self.socket.close()
        if self.process.returncode is None and self.wait(_EXIT_TIMEOUT_SECONDS) is None:
            self.process.kill()
            self.process.wait()
        self._stderr.close()


def start_program(host: str, argv: Sequence[str], startup: bytes, python: str) -> RemoteProgram:
    """Run a program of ours by a command line of this machine.

    Args:
        host: The name of the host.
        argv: The command, whose stdin and stdout are those of the program.
        startup: The bytes that it reads first, see `bootstrap.startup`.
        python: The Python that runs the program, for messages.

    Raises:
        TransportError: The command cannot be started.
    """
    pipe = SubprocessPipe(host, argv)
    pipe.deliver(startup)
    return RemoteProgram(host, pipe, python=python, starter=argv[0])


def run_here(host: str, entry: str, arguments: object) -> RemoteProgram:
    """Run a program of ours in a child process here; see `ProgramRunner.run`."""
    program = bootstrap.program(entry, arguments)
    return start_program(host, bootstrap.loader(sys.executable), program, sys.executable)

"""Our own programs on hosts: a `RemoteProgram` over the `Pipe` of whatever reaches the host.

Links, copies of files, engines and checks use a program through `RemoteProgram` alone, and must not depend on
how the host is reached. A backend that starts programs by a command line of this machine calls
`start_program`.
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
#: How many of the last bytes of stderr are kept.
STDERR_LIMIT_BYTES = 64 * 1024
#: The time for a command to read our program.
_ARRIVAL_TIMEOUT_SECONDS = 60.0
#: The time for a command to exit after its output or its stdin has ended. After it the command is killed.
_EXIT_TIMEOUT_SECONDS = 5.0


class Pipe(Protocol):
    """A byte stream each way to a process. Only `wait` and `close` block, and for seconds at most."""

    def fileno(self) -> int:
        """Return a descriptor to poll. It is readable when `recv` has something.

        Not every pipe lets it become writable when `send` would accept more.
        """

    def recv(self, size: int) -> bytes | None:
        """Return up to ``size`` bytes of the stdout of the process.

        Returns:
            The bytes. ``b""`` at the end of stdout. None if there is nothing yet.

        Raises:
            TransportError: The connection broke.
        """

    def send(self, data: bytes | memoryview) -> int:
        """Write to the stdin of the process without blocking, and return the number of bytes written.

        Raises:
            TransportError: The connection broke. A pipe may leave it to `recv` to report that.
        """

    def wait(self, seconds: float) -> int | None:
        """Wait for the process to exit.

        Returns:
            The exit status, or -N after signal N. None if it has not exited in time, or nobody knows the
            status.
        """

    def stderr(self) -> str:
        """Return the last 64 KiB of the stderr of the process."""

    def close(self) -> None:
        """Close the pipe, so that the process sees the end of its stdin."""


class RemoteProgram:
    """A program of ours that runs on a host, with a byte pipe each way. One thread uses it at a time.

    When the program starts, it first writes the start mark to its stdout, a line that `bootstrap` defines.
    Whatever arrives before the mark comes from a login shell, and is dropped. What follows is the output.
    Only `wait`, `start_error`, `exit_reason` and `close` block, and for seconds at most.

    Args:
        host: The name of the host.
        pipe: The pipe to the process that runs the program.
        python: The Python that runs the program, for messages.
        starter: The command that starts the program, for messages, as in ``its login shell``.
        patience: The seconds after which the program should have started. A login shell may hang, but an
            ``srun`` may wait for its turn.
        is_ready: Whether the program runs already, so no start mark comes.
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
        """Use a pipe to a process that runs, or is about to start, a program of ours."""
        self.host = host
        #: Whether the program runs, so all bytes of the pipe belong to it.
        self.is_ready = is_ready
        self._pipe = pipe
        self._python, self._starter, self._start_seconds = python, starter, patience
        #: When the process of the pipe was started, or soon after that (monotonic).
        self._started_at = time.monotonic()
        #: What has arrived before the program runs, which ends with the start mark.
        self._bytes_before_start = b""
        #: Output of the program that arrived together with the start mark.
        self._early_output = b""
        #: Whether the stdout ended before the start mark. Then `start_error` finds out why.
        self._ended_before_start = False

    def fileno(self) -> int:
        """Return a descriptor to poll, which is readable when `recv` has something."""
        return self._pipe.fileno()

    def recv(self, size: int) -> bytes | None:
        """Return up to ``size`` bytes of the program's stdout.

        Returns:
            The bytes. None if there is nothing yet. ``b""`` at the end of stdout, even if the program never
            ran: `start_error` says then why.

        Raises:
            TransportError: The host has reported why the program cannot run, nothing has arrived in time, or
                the connection broke. The message says which.
        """
        # This consumes all that arrives up to the start mark.
        if not self.receive_start():
            return b"" if self._ended_before_start else None
        # Output of the program may have arrived together with the start mark.
        data, self._early_output = self._early_output[:size], self._early_output[size:]
        return data or self._pipe.recv(size)

    def receive_start(self) -> bool:
        """Receive until the start mark has arrived, or nothing more for now. Return whether the program runs.

        Raises:
            TransportError: The host has reported why the program cannot run, nothing has arrived in time, or
                the connection broke.
        """
        while not self.is_ready and not self._ended_before_start:
            data = self._pipe.recv(_READ_BYTES)
            if data is None:
                if time.monotonic() > self._started_at + self._start_seconds:
                    raise self.fault(nothing_started(self._start_seconds))
                break
            self._ended_before_start = not data
            self._look_for_mark(data)
        return self.is_ready

    def _look_for_mark(self, data: bytes) -> None:
        """Search what has arrived for the start mark, which says whether the program runs, or why it cannot.

        Args:
            data: The bytes that have just arrived. Those before them are kept.

        Raises:
            TransportError: The program cannot run, or its login shell prints too much.
        """
        self._bytes_before_start += data
        mark = bootstrap.find_mark(self._bytes_before_start)
        if mark is not None:
            state, end = mark
            if state != bootstrap.READY:
                raise self.fault(bootstrap.explain(state, self._python, self.python_advice))
            self._early_output, self.is_ready = self._bytes_before_start[end:], True
            self.on_ready()
        elif bootstrap.is_echoed(self._bytes_before_start):  # Something else has read our code.
            raise self.fault(bootstrap.explain(bootstrap.EATEN, self._python, self.python_advice))
        elif len(self._bytes_before_start) > bootstrap.MAX_NOISE_BYTES:
            raise self.fault(
                f"{self._starter} printed more than {bootstrap.MAX_NOISE_BYTES // 1024} KiB before the agent "
                "started; its start-up files must print nothing when a command is run"
            )

    def on_ready(self) -> None:
        """React to the start mark, which says that the program runs. By default this does nothing."""

    def send(self, data: bytes | memoryview) -> int:
        """Write to the program's stdin without blocking.

        Returns:
            The number of bytes written. It is 0 until the program runs.

        Raises:
            TransportError: The connection broke.
        """
        return self._pipe.send(data) if self.is_ready else 0

    def start_error(self) -> TransportError | None:
        """Return, after the end of the program's stdout, why it never ran.

        Returns:
            The error, which is a `HostGoneError` if the host can never be reached again. None if the program
            ran.
        """
        if self.is_ready:  # The program has reported that it runs.
            return None
        if reason := bootstrap.explain_status(self.wait(_EXIT_TIMEOUT_SECONDS)):
            return self.fault(reason)
        text = last_line(self.stderr() or self._bytes_before_start.decode("utf-8", "replace"))
        printed = f" and printed: {text}" if text else ""
        return self.fault(f"the agent could not be started there: {self._starter_end()}{printed}")

    def _starter_end(self) -> str:
        """Return how the command that starts the program exited, for messages: ``ssh exited with 255``."""
        status = self._pipe.wait(0.0)
        if status is None:  # Nobody knows.
            return f"{self._starter} exited"
        how = f"exited with {status}" if status >= 0 else f"was killed by {signal_name(-status)}"
        return f"{self._starter} {how}"

    def exit_reason(self, said: str) -> str:
        """Return why an agent exits without being asked to, for messages.

        By default only the agent knows. A subclass may ask the cluster, and block for seconds.

        Args:
            said: The reason that the agent itself sent.

        Raises:
            HostGoneError: The host is gone. The message says why.
        """
        return said

    def wait(self, seconds: float) -> int | None:
        """Wait for the program to exit.

        Returns:
            The exit status. None if it has not exited in time, was killed, or nobody knows the status.
        """
        status = self._pipe.wait(seconds)  # It is below 0 after a signal.
        return status if status is not None and status >= 0 else None

    def stderr(self) -> str:
        """Return the last 64 KiB of the program's stderr."""
        return self._pipe.stderr()

    def close(self) -> None:
        """Close the pipe, so that the program sees the end of its stdin."""
        self._pipe.close()

    def fault(self, text: str) -> TransportError:
        """Return an error whose message names the host."""
        return TransportError(f"{self.host}: {text}")


class SubprocessPipe:
    """The `Pipe` to a command of this machine, over its stdin and stdout.

    Args:
        host: The name of the host, for messages.
        argv: The command line.
        environ: The environment of the command. None means that of this process.

    Raises:
        TransportError: The command cannot be started.
    """

    def __init__(self, host: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start the command. One socket is its stdin and stdout, and a temporary file its stderr."""
        self._host = host
        #: Our end of the command's stdin and stdout.
        self.socket, theirs = socket.socketpair()
        #: What the command writes to its stderr.
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
        """Send the program that the command is to run. This blocks until the command has read most of it.

        If the command does not read it in time, it is killed. `recv` reports every failure.

        Args:
            startup: The result of `bootstrap.startup`.
        """
        self.socket.settimeout(_ARRIVAL_TIMEOUT_SECONDS)
        try:
            self.socket.sendall(startup)
        except TimeoutError:  # The command has read only a part of the program.
            self.process.kill()
        except OSError:  # The command has ended already, and `recv` reports why.
            pass
        self.socket.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor of our end of the command's stdin and stdout."""
        return self.socket.fileno()

    def recv(self, size: int) -> bytes | None:
        """Return bytes of the command's stdout, None if there are none yet, ``b""`` at the end."""
        try:
            return self.socket.recv(size)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # The command ended before it had read all of its stdin.
            return b""
        except OSError as error:
            raise TransportError(f"{self._host}: this program was closed") from error

    def send(self, data: bytes | memoryview) -> int:
        """Write to the command's stdin, and return the number of bytes written. Errors are left to `recv`."""
        try:
            return self.socket.send(data)
        except OSError:  # The pipe is full, or the command has ended, or the pipe was closed.
            return 0

    def wait(self, seconds: float) -> int | None:
        """Wait for the command to exit. Return its status, -N after signal N, or None if it runs on."""
        try:
            return self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return None

    def stderr(self) -> str:
        """Return the last 64 KiB that the command wrote to its stderr, which is a temporary file."""
        fd = self._stderr.fileno()
        start = max(0, os.fstat(fd).st_size - STDERR_LIMIT_BYTES)
        return os.pread(fd, STDERR_LIMIT_BYTES, start).decode("utf-8", "replace")

    def end_input(self) -> None:
        """Close the stdin of the command. Its output can still be read."""
        with suppress(OSError):  # The other end is closed.
            self.socket.shutdown(socket.SHUT_WR)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process group of the command, unless the command has exited."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Close the pipe, and kill the command if it does not exit by itself within seconds."""
        self.socket.close()
        if self.process.returncode is None and self.wait(_EXIT_TIMEOUT_SECONDS) is None:
            self.process.kill()
            self.process.wait()
        self._stderr.close()


def start_program(host: str, argv: Sequence[str], startup: bytes, python: str) -> RemoteProgram:
    """Run a program of ours on a host by a command line of this machine.

    Args:
        host: The name of the host.
        argv: The command line. The stdin and stdout of the command are those of the program.
        startup: The bytes that the command reads first, from `bootstrap.startup`.
        python: The Python that runs the program, for messages.

    Raises:
        TransportError: The command cannot be started.
    """
    pipe = SubprocessPipe(host, argv)
    pipe.deliver(startup)
    return RemoteProgram(host, pipe, python=python, starter=argv[0])


def run_here(host: str, entry: str, arguments: object) -> RemoteProgram:
    """Run a program of ours as a child of this process, as `ProgramRunner.run` does on another host.

    So callers need not distinguish this machine from other hosts.

    Args:
        host: What messages call this machine.
        entry: The function that the program calls, ``module:function``.
        arguments: The argument of that function: anything that JSON can express.
    """
    program = bootstrap.program(entry, arguments)
    return start_program(host, bootstrap.loader_command(sys.executable), program, sys.executable)

"""The launcher of a test's cluster: a process of its own, that ends with the tests at the latest."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.testing import leash
from launcher.testing.processes import look_at
from launcher.testing.trouble import ClusterError

#: A signal, and the seconds until the next: twice means "at once", for launchers.
_LADDER = ((signal.SIGTERM, 0.3), (signal.SIGTERM, 15.0), (signal.SIGKILL, 10.0))
#: Seconds that the leash may take to see that it is not needed any more.
_LEASH_WAIT = 10.0
#: What is added to the number of a signal that ended it, for its exit code.
_BY_SIGNAL = 128


class LauncherProcess:
    """Starts ``python -m launcher`` and watches it.

    It starts with the kernel's own way of dealing with signals, also where the tests run in the background
    of a script and ignore Ctrl-C; and in a session of its own: a Ctrl-C at the tests' terminal is theirs.

    Args:
        words: its arguments.
        environment: all of it.
        output: the file for its stdout and stderr; must not exist.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self._output = output
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "launcher", *words],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((nothing, out, out))
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE),
            )
        finally:
            os.close(out)
            os.close(nothing)
        self._handle = os.pidfd_open(self.pid)
        started = look_at(self.pid)  # a zombie at the least: nobody but us takes its end
        #: Its pid and when it started, as the labels of what it makes begin.
        self.identity = f"{self.pid}:{started.start if started else ''}"
        #: Set when it has ended: its exit code, 128 + n if signal n ended it.
        self._code: int | None = None
        try:
            self._leash = _Leash(self._handle)
        except OSError:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._handle)
            raise

    @property
    def exit_code(self) -> int | None:
        """Its exit code, 128 + n if signal n ended it; ``None``: it runs.

        Raises:
            ClusterError: somebody else has taken its end from us.
        """
        if self._code is None and self._wait(0.0):
            try:
                _, status = os.waitpid(self.pid, 0)
            except ChildProcessError as error:
                raise ClusterError(
                    f"the end of the launcher (pid {self.pid}) was waited for by others"
                ) from error
            code = os.waitstatus_to_exitcode(status)
            self._code = code if code >= 0 else _BY_SIGNAL - code
            os.close(self._handle)
            self._leash.release()
        return self._code

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it, rather than itself."""
        return (self.exit_code or 0) > _BY_SIGNAL

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text("utf-8", "replace")

    def send(self, number: int) -> None:
        """Signal it, if it runs; wake it, should it be suspended."""
        if self.exit_code is None:
            signal.pidfd_send_signal(self._handle, number)
            signal.pidfd_send_signal(self._handle, signal.SIGCONT)

    def end(self) -> None:
        """See to it that it is over, its tasks too: at once."""
        for number, seconds in _LADDER:
            self.send(number)
            if self.exit_code is not None or self._wait(seconds):
                break
        if self.exit_code is None:
            raise ClusterError(f"the launcher (pid {self.pid}) survived SIGKILL")

    def _wait(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


class _Leash:
    """The process that ends the launcher when ours is gone.

    Args:
        handle: a pidfd of the launcher.
    """

    def __init__(self, handle: int) -> None:
        reading, self._holding = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, str(handle)],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[handle],
                start_new_session=True,
            )
        finally:
            os.close(reading)

    def release(self) -> None:
        """The launcher is over."""
        os.close(self._holding)
        try:
            self._process.wait(_LEASH_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

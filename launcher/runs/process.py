"""A launcher that another program runs: a process of its own, that ends with that program at the latest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from launcher.errors import LaunchError
from launcher.runs import leash

#: Seconds that the leash may take to see that it is not needed any more.
_LEASH_WAIT = 10.0


class LauncherProcess:
    """Starts ``python -m launcher`` and watches it.

    It starts with the kernel's own way of dealing with signals, also where the program runs in the background
    of a script and ignores Ctrl-C; and in a session of its own: a Ctrl-C at the program's terminal is the
    program's.

    Args:
        words: its arguments.
        environment: all of it.
        out, err: descriptors for its stdout and stderr; they stay the caller's.
        folder: of the program, with files only: to be removed if the program is gone before the launcher.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        out: int,
        err: int,
        folder: str | None = None,
    ) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "launcher", *words],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((nothing, out, err))
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE),
            )
        finally:
            os.close(nothing)
        #: Polls readable when it has ended; closed once that is known.
        self.handle = os.pidfd_open(self.pid)
        #: Set when it has ended: its exit code, 128 + n if signal n ended it.
        self._code: int | None = None
        try:
            self._leash = _Leash(self.handle, folder)
        except OSError:
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.handle)
            raise

    @property
    def exit_code(self) -> int | None:
        """Its exit code, 128 + n if signal n ended it; ``None``: it runs.

        Raises:
            LaunchError: somebody else has taken its end from us.
        """
        if self._code is None and leash.wait([self.handle], 0.0):
            try:
                _, status = os.waitpid(self.pid, 0)
            except ChildProcessError as error:
                raise LaunchError(
                    f"the end of the launcher (pid {self.pid}) was waited for by others"
                ) from error
            code = os.waitstatus_to_exitcode(status)
            self._code = code if code >= 0 else 128 - code
            os.close(self.handle)
            self._leash.release()
        return self._code

    def send(self, number: int) -> None:
        """Signal it, if it runs; wake it, should it be suspended."""
        if self.exit_code is None:
            signal.pidfd_send_signal(self.handle, number)
            signal.pidfd_send_signal(self.handle, signal.SIGCONT)

    def end(self) -> None:
        """See to it that it is over, its tasks too: at once."""
        if self.exit_code is None:
            leash.end(self.handle)
        if self.exit_code is None:
            raise LaunchError(f"the launcher (pid {self.pid}) survived SIGKILL")


class _Leash:
    """The process that ends the launcher when ours is gone.

    Args:
        handle: a pidfd of the launcher.
        folder: to be removed then.
    """

    def __init__(self, handle: int, folder: str | None) -> None:
        reading, self._holding = os.pipe()
        ours = os.pidfd_open(os.getpid())
        more = [] if folder is None else [folder]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, str(handle), str(ours), *more],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[handle, ours],
                start_new_session=True,
            )
        finally:
            os.close(reading)
            os.close(ours)

    def release(self) -> None:
        """The launcher is over."""
        os.close(self._holding)
        try:
            self._process.wait(_LEASH_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

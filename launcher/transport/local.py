"""This machine: the agent is a child process, the link a pair of pipes."""

from __future__ import annotations

import fcntl
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

from launcher.errors import TransportError
from launcher.model.host import Host
from launcher.model.watermark import agent_number

#: What the agent's Python runs. ``-I -S``: no environment, no site packages, so it starts in 10 ms and
#: can only use the standard library; the folder that holds our package is put before its path.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from launcher.agent.__main__ import main; main(*sys.argv[2:])"
)
#: Started by name: nobody imports the agent.
_SWEEP = "launcher.agent.sweep"
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: Bytes a pipe of the link holds: output comes in big pieces.
_PIPE_SIZE = 1024 * 1024
_F_SETPIPE_SZ = 1031
_ERRORS_LIMIT = 64 * 1024


class LocalTransport:
    """Starts agents as child processes, each with a Python of its own."""

    def open(self, host: Host) -> LocalLink:
        """Start the agent of ``host``; see `Transport.open`."""
        number = agent_number(int.from_bytes(os.urandom(8), "little"))
        fds: list[int] = []
        try:
            for _ in range(3):
                fds.extend(os.pipe())
            orders_out, orders_in, facts_out, facts_in, errors_out, errors_in = fds
            pid = self._start(host.name, number, (orders_out, facts_in, errors_in))
        except OSError as error:
            for fd in fds:
                os.close(fd)
            raise TransportError(f"{host.name}: the agent can't be started: {error.strerror}") from error
        for fd in (orders_out, facts_in, errors_in):
            os.close(fd)
        return LocalLink(pid, number, facts_out, orders_in, errors_out)

    def _start(self, host: str, number: int, streams: Sequence[int]) -> int:
        """The pid of a new agent whose stdin, stdout and stderr are ``streams``.

        Raises:
            OSError: it can't be started.
        """
        argv = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGE_FOLDER, host, str(number)]
        return _spawn(argv, streams)


def _spawn(argv: list[str], streams: Sequence[int]) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    defaults = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return os.posix_spawn(
        argv[0], argv, os.environ, file_actions=actions, setsid=True, setsigmask=(), setsigdef=defaults
    )


class LocalLink:
    """The pipes to one agent; see `launcher.transport.base.Link`.

    Args:
        pid: the guardian.
        number: what tells the agent's watermarks from those of others.
        reading, writing, errors: our ends of its stdout, stdin and stderr.
    """

    same_clock = True

    def __init__(self, pid: int, number: int, reading: int, writing: int, errors: int) -> None:
        self.pid = pid
        self.number = number
        self.reading = reading
        self.writing = writing
        self._errors = errors
        self._said = b""
        self._silent = False
        self._status: int | None = None
        for fd in (reading, writing, errors):
            os.set_blocking(fd, False)
        for fd in (reading, writing):
            _enlarge(fd)

    def read(self, size: int) -> bytes | None:
        """See `Link.read`."""
        try:
            return os.read(self.reading, size)
        except BlockingIOError:
            return None

    def write(self, data: bytes | memoryview) -> int:
        """See `Link.write`."""
        try:
            return os.write(self.writing, data)
        except (BlockingIOError, BrokenPipeError):
            return 0

    def wait(self, seconds: float) -> str | None:
        """See `Link.wait`; what guardian and agent left because both were killed is ended here."""
        deadline = time.monotonic() + seconds
        while not self._over():
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # Guardian and agent, and nobody else, hold the other end of this pipe: its end wakes us. What
            # remains then is the moment until the kernel has made a zombie of the guardian.
            heard = [] if self._silent else [self._errors]
            select.select(heard, [], [], min(left, 0.05 if heard else 0.0005))
        if os.WIFSIGNALED(self._status or 0) and self._sweep(deadline):
            return None
        return _describe(self._status or 0, self._said.decode("utf-8", "replace").strip())

    def _sweep(self, deadline: float) -> list[int]:
        """End what they left; pids that are still there."""
        left: list[int] = importlib.import_module(_SWEEP).sweep(self.number, deadline - time.monotonic())
        return left

    def kill(self, seconds: float) -> str | None:
        """See `Link.kill`; guardian and agent are one group, what they started carries the watermark."""
        if not self._over():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:  # it ended in this moment
                pass
        return self.wait(seconds)

    def _over(self) -> bool:
        """Whether both guardian (our child) and agent (not ours to reap) are gone."""
        self._read_errors()
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._silent and self._status is not None

    def _read_errors(self) -> None:
        while not self._silent:
            try:
                data = os.read(self._errors, _ERRORS_LIMIT)
            except BlockingIOError:
                return
            self._said = (self._said + data)[-_ERRORS_LIMIT:]
            self._silent = not data

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        """See `Link.close`."""
        self.hang_up()
        self._silent = True
        for fd in (self.reading, self._errors):
            if fd >= 0:
                os.close(fd)
        self.reading = self._errors = -1


def _enlarge(fd: int) -> None:
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:  # above what this user may have: it works with 64 KiB too
        return


def _describe(status: int, said: str) -> str:
    if status == 0 and not said:
        return ""
    if os.WIFSIGNALED(status):
        return f"its guardian was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    last = said.splitlines()[-1] if said else "it was killed"
    return f"the agent ended: {last}"

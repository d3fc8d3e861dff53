"""The link to an agent on this machine: a pair of pipes, and a process of ours at the other end."""

from __future__ import annotations

import os
import select
import signal
import time

from launcher.text import signal_name
from launcher.transport.pipelink import PipeLink, enlarge

_ERRORS_LIMIT = 64 * 1024


class LocalLink(PipeLink):
    """The pipes to one agent; see `launcher.transport.base.Link`.

    Args:
        pid: the guardian.
        number: what tells the agent's watermarks from those of others.
        reading, writing, errors: our ends of its stdout, stdin and stderr.
    """

    same_clock = True

    def __init__(self, pid: int, number: int, reading: int, writing: int, errors: int) -> None:
        super().__init__(reading, writing)
        self.pid = pid
        self.number = number
        self._errors = errors
        self._said = b""
        self._silent = False
        self._status: int | None = None
        for fd in (reading, writing, errors):
            os.set_blocking(fd, False)
        for fd in (reading, writing):
            enlarge(fd)

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
        from launcher.processes.sweep import sweep

        return sweep(self.number, deadline - time.monotonic())

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

    def close(self) -> None:
        """See `Link.close`."""
        self.hang_up()
        self._silent = True
        for fd in (self.reading, self._errors):
            if fd >= 0:
                os.close(fd)
        self.reading = self._errors = -1


def _describe(status: int, said: str) -> str:
    if status == 0 and not said:
        return ""
    if os.WIFSIGNALED(status):
        return f"its guardian was killed by {signal_name(os.WTERMSIG(status))}"
    last = said.splitlines()[-1] if said else "it was killed"
    return f"the agent ended: {last}"

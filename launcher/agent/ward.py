"""A porter's ward: the agent, under its guardian, with plain pipes, as on the launcher's own machine."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TYPE_CHECKING

from launcher.agent.__main__ import main as agent_main
from launcher.agent.lease import Lease
from launcher.processes import kernel
from launcher.text import signal_name

if TYPE_CHECKING:
    from typing import NoReturn, Optional, Sequence

#: Bytes a pipe holds, so that output comes in big pieces.
_PIPE_SIZE = 1024 * 1024
_F_SETPIPE_SZ = 1031
_ERRORS_LIMIT = 64 * 1024
#: Seconds to kill what does not end.
_KILL_SECONDS = 5.0


class Ward:
    """Starts it.

    Args:
        host: the host's name in the plan.
        number: of the agent, for watermarks.

    Raises:
        OSError: it can't be started.
    """

    def __init__(self, host: str, number: int) -> None:
        orders_out, self.orders = os.pipe()
        self.facts, facts_in = os.pipe()
        self.errors, errors_in = os.pipe()
        streams = (orders_out, facts_in, errors_in)
        for fd in (self.orders, self.facts):
            _enlarge(fd)
        for fd in (self.orders, self.facts, self.errors):
            os.set_blocking(fd, False)
        #: To be held by whoever has the ward, or else that is ended.
        self.lease = Lease()
        self._said = b""
        self._status: Optional[int] = None
        self._pid = os.fork()
        if self._pid == 0:
            self._become(host, number, streams)
        for fd in streams:
            os.close(fd)

    def _become(self, host: str, number: int, streams: Sequence[int]) -> NoReturn:
        """In the child: be the agent, with these as stdin, stdout and stderr."""
        try:
            set_up(streams)
            agent_main(host, str(number), lease=self.lease)
        finally:  # an agent does not return: something went wrong
            try:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)

    def read_facts(self, size: int) -> Optional[bytes]:
        """What it says; ``b""`` at the end; ``None``: nothing yet."""
        try:
            data = os.read(self.facts, size)
        except BlockingIOError:
            return None
        if not data:
            os.close(self.facts)
            self.facts = -1
        return data

    def read_errors(self) -> None:
        """Keep what it prints to stderr; only guardian and agent hold that, so its end is their end."""
        try:
            data = os.read(self.errors, _ERRORS_LIMIT)
        except BlockingIOError:
            return
        self._said = (self._said + data)[-_ERRORS_LIMIT:]
        if not data:
            os.close(self.errors)
            self.errors = -1

    def close_orders(self) -> None:
        """It sees the end of its orders: it ends all tasks, then itself."""
        if self.orders >= 0:
            os.close(self.orders)
            self.orders = -1

    def over(self) -> bool:
        """Whether guardian and agent are gone."""
        self._reap()
        return self._status is not None and self.errors < 0

    def said(self) -> str:
        """What it printed to stderr, the last 64 KiB."""
        return self._said.decode("utf-8", "replace").strip()

    def kill(self) -> Sequence[int]:
        """End all that is left of it and of what it started, by force; the guardian too.

        Returns:
            Pids that are still there.
        """
        left = kernel.kill_descendants(_KILL_SECONDS, self._reap)
        return kernel.children_of(os.getpid()) if left else []

    def remark(self, now: float) -> bytes:
        """What is to be passed on to the launcher besides what it says; empty: nothing."""
        return b""

    def is_deaf(self, now: float, ending: bool) -> bool:
        """Whether it is to be ended by force: nothing gets to it any more, and nobody waits for a change.

        Args:
            now: the time (monotonic).
            ending: it was to end by itself.
        """
        return False

    def last_words(self, forced: bool = False) -> str:
        """What is to be said about its end; empty if all is well. ``forced``: it did not end by itself."""
        if forced:
            return "it did not end, so it and all it had started were killed"
        said = self.said()
        status = self._status or 0
        if status == 0 and not said:
            return ""
        if os.WIFSIGNALED(status):
            return f"its guardian was killed by {signal_name(os.WTERMSIG(status))}"
        return f"the agent ended: {said.splitlines()[-1] if said else 'it was killed'}"

    def _reap(self) -> None:
        """Take the status of every child that is over; a subreaper has more than it started."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self._pid:
                    self._status = status
                if not pid:
                    return
        except ChildProcessError:
            return


def set_up(streams: Sequence[int]) -> None:
    """In the child: a session of its own, and these as stdin, stdout and stderr."""
    os.setsid()
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)


def _enlarge(fd: int) -> None:
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:  # above what this user may have: it works with 64 KiB too
        return

"""In which order tasks exited.

``wait4(-1)`` gives ended children in the order of their birth, so of two tasks that end within a
millisecond it can't say which was first. A pidfd becomes readable when its process ends, and epoll's list
of what is ready is a queue: it gives them in the order in which they ended.
"""

from __future__ import annotations

import os
import select
from typing import Callable, Dict, List


class Exits:
    """Watches processes for their end. Where the kernel or Python (3.8) knows no pidfd, it sees none.

    Args:
        keep: where to keep a descriptor; see `launcher.agent.spawn.Limits.keep`.
    """

    def __init__(self, keep: Callable[[int], int] = lambda fd: fd) -> None:
        self._keep = keep
        self._epoll = select.epoll()
        self._pidfds: Dict[int, int] = {}
        self._pids: Dict[int, int] = {}

    def fileno(self) -> int:
        """Readable while a watched process has ended and was not reaped."""
        return self._epoll.fileno()

    def watch(self, pid: int) -> None:
        """Watch for the end of ``pid``, a child of ours that was not reaped."""
        if not hasattr(os, "pidfd_open"):
            return
        try:
            pidfd = self._keep(os.pidfd_open(pid))
        except OSError:  # an old kernel, or no descriptor left for it
            return
        self._epoll.register(pidfd, select.EPOLLIN)
        self._pidfds[pid], self._pids[pidfd] = pidfd, pid

    def in_order(self) -> List[int]:
        """Those that have ended, the first one first."""
        if not self._pids:
            return []
        return [self._pids[pidfd] for pidfd, _ in self._epoll.poll(0, len(self._pids))]

    def forget(self, pid: int) -> None:
        """``pid`` was reaped, or a debugger holds it: don't look at it any more."""
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            del self._pids[pidfd]
            self._epoll.unregister(pidfd)
            os.close(pidfd)

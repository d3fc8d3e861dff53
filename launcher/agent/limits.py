"""Resource limits: room for our own file descriptors, and what tasks start with.

A task takes two or three descriptors of ours, and the usual limit is 1024; programs that use
select(2) rely on it, so they must not inherit ours. Limits are lent for the moment of the start,
rather than changed afterwards: what a task forks at once has the right ones too.
"""

from __future__ import annotations

import fcntl
import os
import resource

from launcher.model.watermark import watermark

_PER_TASK = 4
_OWN = 64


class Limits:
    """Our own limits and those of what we start.

    Args:
        agent: the agent's number, for watermarks.
    """

    def __init__(self, agent: int) -> None:
        self._agent = agent
        self._files = self._raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        #: There are enough for what makes things better, but is not needed.
        self.roomy = True
        self._realtime = resource.getrlimit(resource.RLIMIT_RTTIME)

    def make_room(self, tasks: int) -> None:
        """Raise our soft limit of open files, as far as the hard one allows, to what so many tasks need."""
        _, hard = self._files
        needed = tasks * _PER_TASK + _OWN
        if hard != resource.RLIM_INFINITY:
            self.roomy = needed <= hard
            needed = min(needed, hard)
        if needed > self._raised[0] != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
            self._raised = (needed, hard)

    def keep(self, fd: int) -> int:
        """Where to keep a descriptor that stays open as long as a task: out of the way of the next start.

        A start needs numbers below the limit that it lends.
        """
        soft, _ = self._files
        if self._raised is self._files or fd < soft // 2:
            return fd
        try:
            kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, soft)
        except OSError:  # there are not so many
            return fd
        os.close(fd)
        return kept

    def lend(self, ordinal: int) -> int:
        """Take on the limits that the ``ordinal``-th process we start shall have.

        Returns:
            Its watermark; 0 if this user may not set one.
        """
        number = watermark(self._agent, ordinal)
        if self._raised is not self._files:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
        try:
            resource.setrlimit(resource.RLIMIT_RTTIME, (number, self._realtime[1]))
        except (OSError, ValueError):  # the hard limit is below it
            return 0
        return number

    def take_back(self) -> None:
        """Back to our own limits."""
        resource.setrlimit(resource.RLIMIT_RTTIME, self._realtime)
        if self._raised is not self._files:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._raised)

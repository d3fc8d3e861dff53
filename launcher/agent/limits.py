"""Room for file descriptors: a task takes two or three, and the usual limit is 1024."""

from __future__ import annotations

import resource

_PER_TASK = 4
_OWN = 64


class FileLimit:
    """Raises our own limit where many tasks need it; tasks still start with the limit they would have had."""

    def __init__(self) -> None:
        self._soft, self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._raised = False

    def make_room(self, tasks: int) -> None:
        """Raise the soft limit, as far as the hard one allows, to what so many tasks need."""
        needed = min(tasks * _PER_TASK + _OWN, self._hard)
        if needed > self._soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, self._hard))
            self._raised = True

    def restore(self, pid: int) -> None:
        """Give a task that was just started the limit we had (programs that use select(2) rely on it)."""
        if not self._raised:
            return
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (self._soft, self._hard))
        except OSError:  # it is over already
            return

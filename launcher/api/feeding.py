"""The feeder of a cluster: made when the first row or the first node asks for it, and told what has become of
the job by then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.api.remarks import remark
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from launcher.api.ends import End
    from launcher.feed.feeder import Feeder
    from launcher.feed.listener import Peer

#: Names of TensorFlowOnSpark that no rows come by.
_OTHER_QUEUES = ("output", "error", "control")


class Feeding:
    """See the module; any thread may call it.

    Args:
        tasks: those that are fed, in their order.
        queues: names of the feeds; with those that no rows come by among them, as they used to be.
        exactly_once: rows of a task that is lost are not fed again.
        last_lines: of a task, for messages.
        say: is told who is waited for.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        queues: Sequence[str],
        exactly_once: bool,
        last_lines: Callable[[str], Sequence[str]],
        say: Callable[[str], None],
    ) -> None:
        self._tasks = tasks
        self._feeds = [name for name in queues if name not in _OTHER_QUEUES] or ["input"]
        self._exactly_once = exactly_once
        self._last_lines = last_lines
        self._say = say
        self._lock = threading.Lock()
        self._feeder: Feeder | None = None
        #: What has become of tasks, and of the job, while there was no feeder to be told.
        self._gone: list[End] = []
        self._failure: LaunchError | None = None

    @property
    def feeder(self) -> Feeder:
        """Made now if there is none yet."""
        with self._lock:
            if self._feeder is None:
                self._feeder = self._made()
                for end in self._gone:
                    self._feeder.lost(end.task, end.attempt, end.text)
                if self._failure is not None:
                    self._feeder.fail(self._failure)
            return self._feeder

    def come(self, guest: Peer) -> None:
        """A task has opened a feed."""
        self.feeder.add(guest)

    def ended(self, end: End) -> None:
        """A task is over; perhaps one that is not fed."""
        if end.task not in self._tasks:
            return
        with self._lock:
            if self._feeder is None:
                self._gone.append(end)
                return
        self._feeder.lost(end.task, end.attempt, end.text)

    def failed(self, error: LaunchError) -> None:
        """The job has failed."""
        with self._lock:
            self._failure = self._failure or error
        if self._feeder is not None:
            self._feeder.fail(error)

    def finish(self) -> None:
        """Nothing more will be fed."""
        if self._feeder is not None:
            self._feeder.finish()

    def close(self) -> None:
        """Nothing is left of it."""
        if self._feeder is not None:
            self._feeder.close()

    def _made(self) -> Feeder:
        from launcher.feed.feeder import Feeder

        return Feeder(
            self._tasks,
            self._feeds,
            exactly_once=self._exactly_once,
            last_lines=self._last_lines,
            say=self._say,
            warn=remark,
        )

"""Which tasks are fed, which of them are there, and whose connections are let in; pure.

All of it is called by who holds the lock of the feeder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class Roll:
    """See the module.

    Args:
        tasks: in their order.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self.known = list(tasks)
        #: Those that are there, or are to come; names only.
        self.alive: dict[str, None] = dict.fromkeys(tasks)
        #: Of those that have ended: which start of them that was, and how it ended.
        self._ended: dict[str, tuple[int, str]] = {}
        self._given_up: dict[str, str] = {}

    @property
    def missing(self) -> list[str]:
        """Those that have ended, and were not started again."""
        return [name for name in self.known if name not in self.alive]

    @property
    def losses(self) -> str:
        """How they have ended, for a message."""
        return listed([f"{name} {self._ended[name][1]}" for name in self.missing])

    def ended(self, task: str, attempt: int, why: str, again: bool) -> None:
        """A task has ended.

        Args:
            attempt: which start of it.
            why: in words.
            again: whether it is to come again.
        """
        self._ended[task] = attempt, why
        if not again:
            self.alive.pop(task, None)

    def give_up(self, session: str, why: str) -> None:
        """Whoever this is: it has been away for too long, has begun anew, or can't be understood."""
        self._given_up[session] = why

    def admit(self, task: str, attempt: int, session: str) -> str:
        """Let a task's connection in; a task that has ended is there again if it was started once more.

        Returns:
            Why it is not let in; empty: it is.
        """
        if task not in self.known:
            return f"{task} is not fed; fed are {', '.join(self.known)}"
        if task in self._ended and attempt <= self._ended[task][0]:
            return f"{task} has ended, as far as the driver knows"
        if session in self._given_up:
            return self._given_up[session]
        self.alive[task] = None
        return ""

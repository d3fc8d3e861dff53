"""What the job's exit code says: the first failure by time, and what came too late to be one."""

from __future__ import annotations

from launcher.report import Failure


class Blame:
    """Follows what went wrong, and when all was done."""

    def __init__(self) -> None:
        #: The first failure so far.
        self.failure: Failure | None = None
        self.exit_code = 0
        self._last_decision: float | None = None
        self._done_at: float | None = None

    def fail(self, failure: Failure, exit_code: int) -> bool:
        """Something went wrong. Whether it is the first by time that did.

        Facts of several hosts cross on their way. A task's end is dated when it happened, everything
        else when it was noticed, which is now: so only a task can turn out to have been the first.
        """
        first = self.failure
        if first is not None and (failure.task is None or failure.at >= first.at):
            return False
        self.failure, self.exit_code = failure, exit_code
        return True

    def decided(self, at: float) -> None:
        """A task ended on which the job's end hangs."""
        self._last_decision = at if self._last_decision is None else max(at, self._last_decision)

    def done(self) -> None:
        """The last of them has ended: from then on an end is no failure."""
        self._done_at = self._last_decision

    @property
    def was_done(self) -> bool:
        """Whether the job's end came because it was done, and well."""
        return self._done_at is not None and self.failure is None

    def too_late(self, at: float) -> bool:
        """Whether the job was done by then."""
        return self._done_at is not None and at >= self._done_at

"""Whether output is brought to its reader, or left where it is because he is slow."""

from __future__ import annotations

import time

from launcher.output.base import Audience

#: Seconds that a job that is done waits for a slow reader before lines are skipped: less than any agent has
#: to end its tasks and to close.
PATIENT = 10.0


class Flow:
    """Looks at the audience after every turn of the loop.

    Args:
        audience: who reads; ``None``: nobody that has to be heeded.
    """

    def __init__(self, audience: Audience | None) -> None:
        self._audience = audience
        self._ending_since: float | None = None
        #: Output is to be left where it is for now.
        self.held = False

    def has_turned(self, ending: bool, failed: bool) -> bool:
        """Whether ``held`` is another than at the last look.

        Args:
            ending: the job is being ended.
            failed: and not because it is done: nobody should wait for its output.
        """
        if self._audience is None:
            return False
        if ending:
            now = time.monotonic()
            self._ending_since = self._ending_since or now
            if failed or now - self._ending_since > PATIENT:
                self._audience.hurry()
        before, self.held = self.held, self._audience.full()
        return self.held is not before

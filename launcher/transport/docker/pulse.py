"""Whether the engine answers while a job runs: one that hangs says nothing, and closes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from launcher.transport.docker.engine import Engine

#: Seconds between two questions, for an answer before the user is told, and for one after that.
EVERY, PATIENCE, LONGER = 5.0, 3.0, 5.0
#: Seconds that the tasks outlive an engine that does not answer, as with a host that is cut off.
LIMIT = 60.0
#: Seconds between two questions while there is no answer.
_AGAIN = 0.5


class Pulse(threading.Thread):
    """Asks the engine something now and then.

    Args:
        engine: which.
        tell: gets a line for the user when it does not answer, and when it does again; called by this thread.
        lost: called when it has not answered for `LIMIT`; by this thread.
    """

    def __init__(self, engine: Engine, tell: Callable[[str], None], lost: Callable[[], None]) -> None:
        super().__init__(name="docker-pulse", daemon=True)
        self._engine = engine
        self._tell = tell
        self._lost = lost
        self._closed = threading.Event()
        #: Since when there is no answer (monotonic); 0: it answers.
        self._since = 0.0

    def run(self) -> None:
        """See `threading.Thread.run`."""
        while not self._closed.wait(EVERY):
            if self._engine.is_silent(PATIENCE):
                self._since = time.monotonic() - PATIENCE
                self._bear()

    def _bear(self) -> None:
        """Wait for it to answer again."""
        at = f"the Docker engine at {self._engine.where.address}"
        self._engine.stuck = True
        self._say(f"{at} does not answer; the tasks go on, unseen; waiting for {LIMIT:.0f} s")
        while not self._closed.wait(_AGAIN):
            if not self._engine.is_silent(LONGER):
                self._engine.stuck = False
                self._say(f"{at} answers again after {self.silent_for():.0f} s")
                self._since = 0.0
                return
            if self.silent_for() >= LIMIT:
                self._engine.give_up()
                self._lost()
                self._closed.set()

    def silent_for(self) -> float:
        """Seconds without an answer; 0: it answers, as far as is known."""
        since = self._since
        return time.monotonic() - since if since else 0.0

    def _say(self, text: str) -> None:
        if not self._closed.is_set():
            self._tell(text)

    def close(self) -> None:
        """Ask no more; a question that has no answer yet is not waited for."""
        self._closed.set()
        if self.is_alive():
            self.join(_AGAIN)

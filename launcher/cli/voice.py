"""What other threads have to say while a job runs, for the one that talks to the user."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

#: Remarks that may wait; more than that nobody reads.
_MOST = 1000


class Voice:
    """A bounded queue of remarks that wakes a selector; see `launcher.orchestrator.Voice`."""

    def __init__(self) -> None:
        self._said: deque[str] = deque(maxlen=_MOST)
        self.fd, self._wake = os.pipe()
        for fd in (self.fd, self._wake):
            os.set_blocking(fd, False)

    def tell(self, text: str) -> None:
        """Say something; from any thread."""
        self._said.append(text)
        try:
            os.write(self._wake, b".")
        except OSError:  # it is awake already, or nobody listens any more
            return

    def take(self) -> Sequence[str]:
        """What nobody has taken yet."""
        try:
            os.read(self.fd, 65536)
        except BlockingIOError:
            pass
        said = []
        while self._said:
            said.append(self._said.popleft())
        return said

    def __enter__(self) -> Voice:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.close(self._wake)

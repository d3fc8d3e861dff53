"""Whether a host's Docker engine answers, while a container of ours runs there.

An engine that is stopped, or stuck, keeps all connections open and says nothing: then ``docker run`` waits
for ever, and nobody hears what the container does, or that it has ended. So the watcher asks the engine
something now and then (`Pulse`), and the porter sees in memory that both share since when there is no answer
(`Silence`).
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from subprocess import DEVNULL
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Mapping, Optional

#: Seconds until the first question, from an answer to the next question, and for an answer before it counts
#: as none.
FIRST, EVERY, PATIENCE = 2.0, 5.0, 3.0
#: Seconds between two looks at a question that waits; its end wakes the watcher.
_LOOK = 60.0
#: Answered by the engine without a look at any container.
_QUESTION = ("docker", "version", "--format", "{{.Server.Version}}")
_MOMENT = struct.Struct("d")


class Silence:
    """Since when the engine has not answered; made by the porter before it has children."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _MOMENT.size)

    def note(self, since: float) -> None:
        """By the watcher: no answer to what was asked then (monotonic); 0: it answers."""
        _MOMENT.pack_into(self._memory, 0, since)

    def since(self) -> float:
        """By the porter: see `note`."""
        found: float = _MOMENT.unpack_from(self._memory, 0)[0]
        return found


class Pulse:
    """Asks the engine, one question at a time: one that is not answered waits until it is.

    An engine that refuses to answer is no silent one: whoever waits for it hears of that.

    Args:
        env: of the ``docker`` command: says where the engine is.
        silence: where its silence is noted.
        now: the time (monotonic).
    """

    def __init__(self, env: Mapping[str, str], silence: Silence, now: float) -> None:
        self._env = env
        self._silence = silence
        self._due = now + FIRST
        self._asked_at = now
        self._question: Optional[subprocess.Popen[bytes]] = None

    def step(self, now: float) -> float:
        """Ask, or see whether there is an answer.

        Returns:
            When to look again (monotonic); sooner when a child has ended.
        """
        if self._question is not None and self._question.poll() is not None:
            self._question = None
            self._silence.note(0.0)
            self._due = now + EVERY
        if self._question is None:
            if now < self._due:
                return self._due
            self._ask(now)
        late = self._asked_at + PATIENCE
        if now < late:
            return late
        self._silence.note(self._asked_at)
        return now + _LOOK

    def _ask(self, now: float) -> None:
        self._asked_at, self._due = now, now + EVERY
        try:
            self._question = subprocess.Popen(
                _QUESTION, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=self._env, cwd="/"
            )
        except OSError:  # nobody was asked: that says nothing of the engine
            return

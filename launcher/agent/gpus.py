"""Asking ``nvidia-smi``, where there is one, without waiting for it."""

from __future__ import annotations

import os
import signal
import time

from launcher.agent.spawn import CannotStart, Spawner
from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Optional, Tuple

_COMMAND = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader")
#: Seconds it may take (it loads the driver where nothing else has), and bytes it may say.
PATIENCE = 15.0
_LIMIT = 64 * 1024


class GpuProbe:
    """One run of ``nvidia-smi``; ``output`` is ``None`` when there is none or it has said all.

    Args:
        spawner: starts it.
    """

    def __init__(self, spawner: Spawner) -> None:
        self.output: Optional[int] = None
        #: Its process, until that is reaped.
        self.pid: Optional[int] = None
        self._said = b""
        self._until = time.monotonic() + PATIENCE
        try:
            self.pid, self.output, _ = spawner.spawn(_COMMAND, {})
        except CannotStart:
            return

    def read(self) -> bool:
        """Take what it printed; whether that was the last of it."""
        if self.output is None:
            return False
        try:
            data = os.read(self.output, _LIMIT)
        except BlockingIOError:
            return False
        self._said = (self._said + data)[:_LIMIT]
        return not data

    def next_end(self) -> Optional[float]:
        """When to `close` at the latest (monotonic); ``None``: it is closed."""
        return None if self.output is None else self._until

    def reaped(self, pid: int) -> None:
        """This child of ours is over: its number may be somebody else's from now on."""
        if pid == self.pid:
            self.pid = None

    def close(self) -> Tuple[str, ...]:
        """It has said all, or its time is up: what it said, a line a GPU."""
        if self.output is not None:
            os.close(self.output)
            self.output = None
        if self.pid is not None and time.monotonic() >= self._until:
            os.kill(self.pid, signal.SIGKILL)  # ours and not reaped: nobody else has this pid
        lines = self._said.decode("utf-8", "replace").splitlines()
        return tuple(line.strip() for line in lines if line[:1].isdigit())

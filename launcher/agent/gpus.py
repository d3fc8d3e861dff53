"""Asking ``nvidia-smi``, where there is one, without waiting for it."""

from __future__ import annotations

import os
import time
from typing import Optional, Tuple

from launcher.agent import spawn

_COMMAND = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader")
#: Seconds it may take (it loads the driver where nothing else has), and bytes it may say.
PATIENCE = 15.0
_LIMIT = 64 * 1024


class GpuProbe:
    """One run of ``nvidia-smi``; ``output`` is ``None`` when there is none or it is over."""

    def __init__(self) -> None:
        self.output: Optional[int] = None
        self.pid: Optional[int] = None
        self._said = b""
        self.until = time.monotonic() + PATIENCE
        try:
            self.pid, self.output = spawn.spawn(_COMMAND, {}, None)
        except spawn.CannotStart:
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

    def close(self) -> Tuple[str, ...]:
        """It is over: what it said, a line a GPU."""
        if self.output is not None:
            os.close(self.output)
            self.output = None
        lines = self._said.decode("utf-8", "replace").splitlines()
        return tuple(line.strip() for line in lines if line[:1].isdigit())

"""Shows what the launcher prints where the program's own output goes: a terminal, a file, a notebook."""

from __future__ import annotations

import codecs
import os
import selectors
import sys
import threading
from collections import deque
from typing import Any

#: Characters of the launcher's own words that are kept for messages.
_KEPT = 64 * 1024
_PIECE = 64 * 1024
#: Seconds that are left for what is still on its way when the launcher has ended.
_LATE = 2.0


class Relay:
    """Two pipes for a launcher, and the thread that empties them."""

    def __init__(self) -> None:
        self._ends = {name: os.pipe() for name in ("stdout", "stderr")}
        self._kept: deque[str] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="launch-output", daemon=True)

    @property
    def out(self) -> int:
        """For the launcher's stdout."""
        return self._ends["stdout"][1]

    @property
    def err(self) -> int:
        """For the launcher's stderr."""
        return self._ends["stderr"][1]

    def start(self) -> None:
        """The launcher has its ends, ours are not needed any more."""
        os.close(self.out)
        os.close(self.err)
        self._thread.start()

    def abandon(self) -> None:
        """There is no launcher."""
        for reading, writing in self._ends.values():
            os.close(reading)
            os.close(writing)

    def finish(self) -> None:
        """Wait until all is shown; the launcher has ended."""
        self._thread.join(_LATE)

    @property
    def said(self) -> str:
        """The last of what the launcher has printed on stderr."""
        return "".join(self._kept)

    def _run(self) -> None:
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._ends}
        with selectors.DefaultSelector() as selector:
            for name, (reading, _) in self._ends.items():
                selector.register(reading, selectors.EVENT_READ, name)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, _PIECE)
                    self._show(key.data, decoders[key.data].decode(data, final=not data))
                    if not data:
                        selector.unregister(key.fd)
                        os.close(key.fd)

    def _show(self, name: str, text: str) -> None:
        if name == "stderr":
            self._keep(text)
        stream: Any = getattr(sys, name)
        try:
            stream.write(text)
            stream.flush()
        except (AttributeError, OSError, ValueError):  # it is closed, or there is none: the logs have it all
            return

    def _keep(self, text: str) -> None:
        self._kept.append(text)
        self._size += len(text)
        while self._size > _KEPT and len(self._kept) > 1:
            self._size -= len(self._kept.popleft())

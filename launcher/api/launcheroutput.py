"""Shows what the launcher prints where the program's own output goes: a terminal, a file, a notebook."""

from __future__ import annotations

import codecs
import os
import selectors
import sys
import threading
from typing import Any

#: Characters of the launcher's own words, and of the nodes' output, that are kept.
_KEPT, _KEPT_OUTPUT = 64 * 1024, 16 * 1024
_PIECE = 64 * 1024
#: Seconds that are left for what is still on its way when the launcher has ended.
_LATE = 2.0


class LauncherOutput:
    """Two pipes for a launcher, and the thread that empties them, and shows what came.

    What the launcher says on stderr is held until `show`: if there is no job at all it is why, and an
    exception says it. Whoever sees to the job never prints: a terminal may take nothing for hours.

    Args:
        quiet: `show` waits for the end.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._ends = {name: os.pipe() for name in ("stdout", "stderr")}
        self._waking, self._wake = os.pipe()
        self._lock = threading.Lock()
        self._is_shown = False
        self._held = ""
        self._said = self._shown = ""
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
        os.close(self._waking)
        os.close(self._wake)

    def show(self) -> None:
        """There is a job: what the launcher says is shown from now on, unless all is to be quiet."""
        if not (self._quiet or self._is_shown):
            self._show_from_now()

    def finish(self) -> None:
        """Wait until all has come, and was shown; not for ever. The launcher has ended."""
        self._thread.join(_LATE)

    def settle(self, told: bool, raised: bool) -> None:
        """Show what is still held, unless an exception makes it superfluous.

        Args:
            told: one has every word of it.
            raised: there is one: enough, if all is to be quiet.
        """
        if not (told or (raised and self._quiet) or self._show_from_now()):
            last = threading.Thread(target=self._show_held, name="launch-output", daemon=True)
            last.start()
            last.join(_LATE)

    @property
    def said(self) -> str:
        """The last of what the launcher has printed on stderr."""
        return self._said

    @property
    def shown(self) -> str:
        """The last of what was shown of the tasks' output."""
        return self._shown

    def _show_from_now(self) -> bool:
        """Whether the thread does it; it may have ended."""
        self._is_shown = True
        with self._lock:
            if self._wake >= 0:
                os.write(self._wake, b".")
            return self._wake >= 0

    # ------------------------------------------------------------------ in its thread

    def _show_held(self) -> None:
        with self._lock:
            held, self._held = self._held, ""
        if held:
            _print("stderr", held)

    def _run(self) -> None:
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._ends}
        try:
            with selectors.DefaultSelector() as selector:
                for name, (reading, _) in self._ends.items():
                    selector.register(reading, selectors.EVENT_READ, name)
                selector.register(self._waking, selectors.EVENT_READ)
                while len(selector.get_map()) > 1:
                    for key, _ in selector.select():
                        data = os.read(key.fd, _PIECE)
                        if key.data is not None:
                            self._take(key.data, decoders[key.data].decode(data, final=not data))
                        if not data:
                            selector.unregister(key.fd)
                            os.close(key.fd)
                    if self._is_shown:
                        self._show_held()
        finally:
            self._sleep_for_good()

    def _sleep_for_good(self) -> None:
        """Nobody wakes it any more."""
        with self._lock:
            os.close(self._waking)
            os.close(self._wake)
            self._wake = -1
        if self._is_shown:
            self._show_held()

    def _take(self, name: str, text: str) -> None:
        if name == "stdout":
            if _print(name, text):
                self._shown = (self._shown + text)[-_KEPT_OUTPUT:]
            return
        self._said = (self._said + text)[-_KEPT:]
        self._held = (self._held + text)[-_KEPT:]


def _print(name: str, text: str) -> bool:
    """Whether there is somebody to show it to; if not: the logs have it all."""
    stream: Any = getattr(sys, name)
    try:
        stream.write(text)
        stream.flush()
    except (AttributeError, OSError, ValueError):  # it is closed, or there is none
        return False
    return True

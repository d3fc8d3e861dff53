"""Sends what changes on the page to all that look at it, by server-sent events.

One thread publishes what the page shows, whenever that has changed. Each viewer waits for a change, and gets
the difference to what it got before. Nothing waits for a slow viewer: it gets only the latest state.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

#: What the page shows, see `launcher.page.content.page_content`.
Content = Mapping[str, Any]
#: The content that a new viewer has.
_NOTHING: Content = {}
MAX_VIEWERS = 100
#: The pause after which something is sent even without a change, so that lost connections are noticed.
_ALIVE_SECONDS = 15.0
#: How long a request waits until the run was looked at again, and the pause between two checks of that.
_REFRESH_SECONDS = 1.0
_POLL_SECONDS = 0.02


class Viewers:
    """The present content of the page, and the browsers that show it."""

    def __init__(self) -> None:
        """Start without viewers and without content."""
        #: Set while a browser shows the page, or has just asked for it.
        self.wanted = threading.Event()
        #: How often the content was looked at, also when it had not changed.
        self._looks = 0
        #: How many viewers are connected.
        self.count = 0
        #: What the page shows now.
        self.content = _NOTHING
        #: Which loop serves the viewers. None before the first one.
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Set, and replaced, at each change.
        self._changed = asyncio.Event()
        #: Whether nothing will change any longer, because the server ends.
        self._is_closed = False
        #: The last event and the contents that it leads from and to, as most viewers need the same.
        self._last_event: tuple[Content, Content, bytes] = (_NOTHING, _NOTHING, b"")

    def publish(self, content: Content) -> None:
        """Show new content to all viewers. Any thread may call this, but only one does."""
        self._looks += 1
        # The time of the look alone is no change.
        if any(self.content.get(key) != value for key, value in content.items() if key != "seen_at"):
            self.content = content
            self._wake()

    async def refresh(self) -> None:
        """Wait until the run was looked at again, so that the content is new, but only for a short time."""
        looks, pauses = self._looks, 0
        # While there are viewers, the run is looked at all the time anyway.
        while not self.count and self._looks == looks and pauses * _POLL_SECONDS < _REFRESH_SECONDS:
            self.wanted.set()
            await asyncio.sleep(_POLL_SECONDS)
            pauses += 1

    def close(self) -> None:
        """End all connections after what they have not got yet. Any thread may call this."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._notify)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the content and then its changes, as server-sent events, until viewer or server end."""
        known = _NOTHING
        if self.count >= MAX_VIEWERS:  # Others have come since this one asked.
            return
        self._loop = asyncio.get_running_loop()
        self.count += 1
        self.wanted.set()
        try:
            while True:
                changed, newest = self._changed, self.content
                if newest is not known:
                    yield self._event(known, newest)
                    known = newest
                elif self._is_closed:
                    return
                else:
                    try:
                        await asyncio.wait_for(changed.wait(), _ALIVE_SECONDS)
                    except asyncio.TimeoutError:
                        yield b":\n\n"  # A comment in the stream, which browsers ignore.
        finally:
            self.count -= 1

    def _event(self, old: Content, new: Content) -> bytes:
        """Return the event that leads from one content to another."""
        last_old, last_new, event = self._last_event
        if old is not last_old or new is not last_new:
            data = json.dumps(difference(old, new), separators=(",", ":"), allow_nan=False)
            event = f"data: {data}\n\n".encode()
            self._last_event = (old, new, event)
        return event


def difference(old: Content, new: Content) -> dict[str, Any]:
    """Return the values that have changed, by their keys.

    Of the tasks these are only the rows that have changed, and in ``gone`` the names without a row now.

    Args:
        old: The content that a viewer has. Empty if it has none.
        new: The content that it shall get.
    """
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    if "tasks" in changed:
        before = {row["task"]: row for row in old.get("tasks", ())}
        changed["tasks"] = [row for row in new["tasks"] if before.pop(row["task"], None) != row]
        changed["gone"] = [*before]
    return changed

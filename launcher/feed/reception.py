"""Connections that tasks have opened for feeds: heard, answered, and then heard on; each has a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from launcher.feed.hearing import hear
from launcher.feed.remote.connect import keep_alive
from launcher.feed.remote.frames import Kind, hang_up, recv_frame, send_frame
from launcher.feed.remote.messages import Opening, number, only

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from launcher.feed.link import Link

    class Guest(Protocol):
        """A connection that a task has opened for a feed; see `launcher.feed.listener`."""

        @property
        def task(self) -> str:
            """``worker/0``."""

        @property
        def attempt(self) -> int:
            """Which start of it."""

        @property
        def feed(self) -> str:
            """The name of the feed."""

        @property
        def sock(self) -> socket.socket:
            """Blocking, authenticated."""


#: Seconds that a task may take to say which feed it opens, and bytes.
_OPENING, _MOST_OPENING = 10.0, 1 << 20


class Reception:
    """See the module.

    Args:
        lock: the feeder's.
        link_of: the link of a connection; or why it gets none. Called with the lock.
    """

    def __init__(self, lock: threading.RLock, link_of: Callable[[Guest, Opening], Link | str]) -> None:
        self._lock = lock
        self._link_of = link_of
        self._hearing: list[tuple[threading.Thread, socket.socket]] = []

    def add(self, guest: Guest) -> None:
        """Take over a connection."""
        name = f"feed from {guest.task}"
        thread = threading.Thread(target=self._welcome, args=[guest], name=name, daemon=True)
        with self._lock:
            self._hearing = [(one, sock) for one, sock in self._hearing if one.is_alive()]
            self._hearing.append((thread, guest.sock))
            thread.start()

    def close(self, patience: float) -> None:
        """End all connections, and their threads; without the lock."""
        with self._lock:
            hearing = list(self._hearing)
        for thread, sock in hearing:
            hang_up(sock)
            thread.join(patience)

    def _welcome(self, guest: Guest) -> None:
        """Hear which feed is opened, answer, and go on hearing; a thread's."""
        sock = guest.sock
        try:
            sock.settimeout(_OPENING)
            keep_alive(sock)
            frame = recv_frame(sock, _MOST_OPENING)
            if frame is None or frame[0] != Kind.OPEN:
                raise ConnectionError("it opened no feed")
            opening = Opening.unpack(only(frame[1]))
            with self._lock:
                link = self._link_of(guest, opening)
                had = 0 if isinstance(link, str) else link.detach()
            if isinstance(link, str):
                send_frame(sock, Kind.GONE, [link.encode()])
                sock.close()
                return
            send_frame(sock, Kind.WELCOME, [number(had)])
            sock.settimeout(None)
        except OSError:  # it will come again, or be lost
            sock.close()
            return
        with self._lock:
            link.attach(sock, opening)
        hear(link, sock)

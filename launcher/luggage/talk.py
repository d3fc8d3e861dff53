"""The launcher's end of the conversation with what runs on a host."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from launcher.errors import ConnectionLost, TransportError
from launcher.luggage.base import Errand, Errands
from launcher.model.luggage import PRESENT, TELL, Frames, LuggageError, understood
from launcher.text import nothing_started

#: Seconds without a sign that the work there goes on, after which it counts as stuck.
_SILENCE = 60.0
#: Seconds without anything from a program that says every second that it is there, after which the connection
#: counts as lost; and for its first word, as it must get there and start.
_LOST, _FIRST_WORD = 10.0, 20.0
_NOTHING = f"no answer for {_LOST:.0f} s"
#: Seconds between two tries to send, at least and at most: an errand does not say when it takes more.
_SHORTEST, _LONGEST = 0.001, 0.02
#: Seconds between two looks whether anybody still wants it.
_LOOK = 0.2
_PIECE = 256 * 1024


class Cancelled(Exception):
    """Nobody wants the rest any more."""


class Conversation:
    """Frames to and from an errand. A context manager.

    Args:
        errands: who runs it.
        host: where.
        entry: what.
        arguments: for it.
        wanted: asked now and then; false ends it with `Cancelled`.
    """

    def __init__(
        self, errands: Errands, host: str, entry: str, arguments: object, wanted: Callable[[], bool]
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._frames = Frames()
        self._heard: deque[tuple[int, bytes]] = deque()
        self._moved_at = time.monotonic()
        #: When the connection counts as lost if nothing comes.
        self._lost_at = self._moved_at + _FIRST_WORD
        self._errand: Errand = errands.errand(host, entry, arguments)
        #: Bytes sent and received so far.
        self.sent = 0
        self.received = 0

    def send(self, data: bytes) -> None:
        """Send all of it. What the host says meanwhile is kept; that it failed is raised at once.

        Raises:
            ConnectionLost: the connection broke, or is silent; names the host.
            TransportError: the host failed, or is stuck; names it.
            Cancelled: nobody wants it.
        """
        view = memoryview(data)
        pause = _SHORTEST
        self._check_wanted()
        while view:
            took = self._errand.send(view)
            view = view[took:]
            self.sent += took
            if took:
                self._moved_at = time.monotonic()
            if self._receive() or took:
                pause = _SHORTEST
            else:
                self._pause(pause)
                pause = min(pause * 2, _LONGEST)

    def hear(self) -> tuple[int, bytes]:
        """The next frame, but signs of life.

        Raises:
            TransportError: as `send`.
            Cancelled: nobody wants it.
        """
        self._check_wanted()
        while not self._heard:
            if not self._receive():
                self._pause(_LOOK)
        return self._heard.popleft()

    def answer(self) -> dict[str, Any]:
        """What the host says next.

        Raises:
            TransportError: as `send`; or it is nothing that can be understood.
        """
        kind, payload = self.hear()
        if kind != TELL:
            raise self.broken(f"{len(payload)} bytes that nobody asked for")
        return self._understood(payload)

    def broken(self, why: object) -> TransportError:
        """The error for a host that does not keep to what was agreed."""
        return TransportError(f"{self._host}: the two ends do not understand each other: {why}")

    def _understood(self, payload: bytes) -> dict[str, Any]:
        try:
            said: dict[str, Any] = understood(payload)
        except LuggageError as error:
            raise self.broken(error) from error
        return said

    def _receive(self) -> bool:
        """Take what is there.

        Returns:
            Whether there was anything.
        """
        data = self._errand.recv(_PIECE)
        if data is None:
            return False
        if not data:
            raise self._ended()
        self.received += len(data)
        now = time.monotonic()
        self._lost_at = now + _LOST
        try:
            frames = self._frames.feed(data)
        except LuggageError as error:
            raise self.broken(error) from error
        for frame in frames:
            if not self._is_presence(*frame):
                self._moved_at = now
                if not self._is_aside(*frame):
                    self._heard.append(frame)
        if not frames:  # part of a big one
            self._moved_at = now
        return True

    def _is_presence(self, kind: int, payload: bytes) -> bool:
        """Whether it says that the program and the connection are there, and nothing of the work."""
        return kind == TELL and payload == PRESENT

    def _is_aside(self, kind: int, payload: bytes) -> bool:
        """Whether this is a mere sign of life."""
        if kind != TELL or len(payload) > _PIECE:
            return False
        said = self._understood(payload)
        if "failed" in said:
            raise TransportError(f"{self._host}: {said['failed']}")
        return "alive" in said

    def _ended(self) -> TransportError:
        status = self._errand.wait(2.0)
        lines = self._errand.said().strip().splitlines()
        if status is None and not lines:
            return ConnectionLost(f"{self._host}: the connection broke")
        how = "it was killed" if status is None else f"it ended with {status}"
        last = f"; it said: {lines[-1]}" if lines else ""
        return TransportError(f"{self._host}: the copying there ended too early: {how}{last}")

    def _check_wanted(self) -> None:
        if not self._wanted():
            raise Cancelled

    def _pause(self, seconds: float) -> None:
        """Wait until the host says something, but not long."""
        self._check_wanted()
        now = time.monotonic()
        if now >= self._lost_at:
            why = _NOTHING if self.received else nothing_started(_FIRST_WORD)
            raise ConnectionLost(f"{self._host}: {why}")
        if now - self._moved_at > _SILENCE:
            raise TransportError(f"{self._host}: silent for {_SILENCE:.0f} s while files were copied")
        poll = select.poll()
        poll.register(self._errand.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._errand.close()

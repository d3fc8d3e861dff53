"""The host's end of the conversation with the launcher: frames over stdin and stdout."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING

from launcher.agent.store.home import Failed, worded
from launcher.model.luggage import CHUNK, PRESENT, TELL, Frames, LuggageError, framed, tell
from launcher.model.shrinking import packed, unpacked

if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Iterator, Tuple

    from launcher.model.luggage import Data

    Errand = Callable[["Talk", Any], None]

from collections import deque

#: Seconds without a byte from the launcher, or without it taking one, after which nobody is there any more.
_SILENCE = 120.0
#: Seconds to notice that the connection is closed, and to clear up.
_FAREWELL = 4.0
#: Seconds between two signs of life.
_PULSE = 1.0
_PIECE = 256 * 1024


class Hung(Exception):
    """The launcher is gone: there is nobody to tell anything."""


class Talk:
    """Says things to the launcher, and hears what it sends.

    Args:
        reading: file descriptor of what comes.
        writing: of what goes; made non-blocking, so that nobody waits for ever.
    """

    def __init__(self, reading: int = 0, writing: int = 1) -> None:
        self._reading = reading
        self._writing = writing
        self._frames = Frames()
        self._heard: Deque[Tuple[int, bytes]] = deque()
        self._pending = bytearray()
        #: Whether what is put may be squeezed: both ends can.
        self.squeezes = False
        #: What came of the stream, and nobody has taken yet.
        self._rest = memoryview(b"")
        self._said_at = time.monotonic()
        self._saying = threading.Lock()
        os.set_blocking(writing, False)

    def tell(self, **what: Any) -> None:
        """Say something."""
        self._write(tell(**what))

    def alive(self) -> None:
        """Show that work goes on, now and then: call it as often as you like."""
        if time.monotonic() - self._said_at > _PULSE:
            self.tell(alive=True)

    def pulse(self) -> None:
        """As `alive`, but goes on when nobody is there any more: for clearing up."""
        try:
            self.alive()
        except Hung:
            return

    def be_present(self) -> None:
        """Say that we are there, if that can be said now: for another thread, every second."""
        poll = select.poll()
        poll.register(self._writing, select.POLLOUT)
        if not self._saying.acquire(blocking=False):
            return
        try:
            if poll.poll(0):  # there is room for so few bytes: they go all at once
                os.write(self._writing, framed(TELL, PRESENT))
        except OSError:  # the end of the connection is noticed elsewhere
            return
        finally:
            self._saying.release()

    def put(self, data: Data) -> None:
        """Add to the stream of bytes that goes to the launcher."""
        self._pending += data
        while len(self._pending) >= CHUNK:
            self._write(packed(bytes(memoryview(self._pending)[:CHUNK]), self.squeezes))
            del self._pending[:CHUNK]
        self.alive()

    def flush(self) -> None:
        """Send what of the stream was put together so far."""
        if self._pending:
            self._write(packed(bytes(self._pending), self.squeezes))
            self._pending.clear()

    def stream(self, size: int) -> Iterator[memoryview]:
        """The next ``size`` bytes of the stream that comes from the launcher, in pieces."""
        while size:
            data = self._rest or memoryview(unpacked(*self._hear()))
            self._rest = data[size:]
            size -= len(data) - len(self._rest)
            yield data[: len(data) - len(self._rest)]

    def _hear(self) -> Tuple[int, bytes]:
        while not self._heard:
            self._wait(self._reading, select.POLLIN)
            data = os.read(self._reading, _PIECE)
            if not data:
                raise Hung
            self._heard.extend(self._frames.feed(data))
        return self._heard.popleft()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._saying:
            while view:
                self._wait(self._writing, select.POLLOUT)
                try:
                    view = view[os.write(self._writing, view) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError as error:
                    raise Hung from error
        self._said_at = time.monotonic()

    def _wait(self, fd: int, event: int) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if not poll.poll(_SILENCE * 1000):
            raise Hung


def speak(errand: Errand, arguments: Any) -> int:
    """Run an errand; whatever keeps it from being done is told to the launcher.

    Returns:
        Its exit status.
    """
    talk = Talk()
    threading.Thread(target=_stay_with_launcher, args=(talk,), name="launcher", daemon=True).start()
    try:
        errand(talk, arguments)
        return 0
    except Failed as error:
        return _fail(talk, str(error))
    except LuggageError as error:
        return _fail(talk, f"the two ends do not understand each other: {error}")
    except OSError as error:
        return _fail(talk, worded(error))
    except Hung:
        return 1


def _stay_with_launcher(talk: Talk) -> None:
    """Whoever is busy says nothing, and misses the end of the launcher: then it has some seconds."""
    poll = select.poll()
    poll.register(0, 0)  # nothing but the end of the connection
    while not poll.poll(_PULSE * 1000):
        talk.be_present()
    time.sleep(_FAREWELL)
    os._exit(1)


def _fail(talk: Talk, why: str) -> int:
    try:
        talk.tell(failed=why)
    except (Hung, OSError):
        return 1
    return 0

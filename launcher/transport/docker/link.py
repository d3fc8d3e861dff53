"""The link to the agent in a container: its attached stdin, stdout and stderr, which are one socket here."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

from launcher.model.records import Protocol
from launcher.transport.docker.frames import Demultiplexer
from launcher.transport.docker.settings import Container, size
from launcher.transport.docker.watch import End
from launcher.transport.ssh import bootstrap

#: How much of stderr is kept, in bytes.
_SAID_LIMIT = 64 * 1024
#: Seconds for our modules, as source, to be taken by a Python that asks for them.
_SOURCE = 10.0


class Hands(Protocol):
    """What a link has done by whoever made the container."""

    def ended(self, seconds: float) -> End | None:
        """How it ended; ``None``: it did not, in time."""

    def why_unknown(self) -> str:
        """Why nobody can say how it ended; empty: it runs, as far as is known."""

    def remove(self) -> None:
        """End it by force, and remove it."""


class DockerLink:
    """One link; see `launcher.transport.base.Link`.

    Args:
        container: what it is.
        line: attached to it, with all on its way that starts the agent.
        source: makes the modules as source, if they are asked for.
        hands: end it, and know its end.
        same_clock: its facts are dated by this machine's clock.
    """

    def __init__(
        self,
        container: Container,
        line: socket.socket,
        source: Callable[[], bytes],
        hands: Hands,
        same_clock: bool,
    ) -> None:
        self.same_clock = same_clock
        self._container = container
        self._line = line
        self._source = source
        self._hands = hands
        self._demultiplexer = Demultiplexer()
        self._early = b""
        self._ready = False
        self._fault = ""
        self._said = b""
        line.setblocking(False)
        self.reading = line.fileno()
        # A number of its own: whoever waits for both may know only one by the same.
        self.writing = os.dup(self.reading)

    def read(self, size: int) -> bytes | None:
        """See `Link.read`; what comes before the agent itself is not for the reader."""
        try:
            data = self._line.recv(size)
        except BlockingIOError:
            return None
        except OSError:  # reset: the engine is gone
            return b""
        if not data or self._fault:
            return b""
        out, errors = self._demultiplexer.feed(data)
        self._said = (self._said + errors)[-_SAID_LIMIT:]
        if not self._ready:
            out = self._greeted(out)
        return b"" if self._fault else out or None

    def _greeted(self, out: bytes) -> bytes:
        """Look for the mark of the first code in what came; what the agent said after it."""
        self._early += out
        found = bootstrap.find_mark(self._early)
        if found is None:
            if len(self._early) > bootstrap.MAX_NOISE:
                self._fault = f"its {self._container.python} printed what no Python of ours does"
            return b""
        word, end = found
        self._early, rest = b"", self._early[end:]
        if word == bootstrap.READY:
            self._ready = True
            return rest
        if word == bootstrap.NEEDS_SOURCE:
            self._send_source()
            return self._greeted(rest)
        self._fault = _explained(word, self._container)
        return b""

    def _send_source(self) -> None:
        """It waits for nothing else, and has read all that came before, so this is soon done."""
        self._line.settimeout(_SOURCE)
        try:
            self._line.sendall(bootstrap.frame(self._source()))
        except OSError as error:
            self._fault = f"the agent could not be brought into its container: {error}"
        finally:
            self._line.setblocking(False)

    def write(self, data: bytes | memoryview) -> int:
        """See `Link.write`."""
        try:
            return self._line.send(data)
        except OSError:  # it takes nothing now, or never again
            return 0

    def wait(self, seconds: float) -> str | None:
        """See `Link.wait`."""
        end = self._hands.ended(seconds)
        if end is None:
            return self._hands.why_unknown() or None
        self._hear_last()
        return self._fault or self._described(end)

    def _hear_last(self) -> None:
        """Its last words on stderr may not have been read."""
        while True:
            try:
                data = self._line.recv(_SAID_LIMIT)
            except OSError:
                return
            if not data:
                return
            self._said = (self._said + self._demultiplexer.feed(data)[1])[-_SAID_LIMIT:]

    def _described(self, end: End) -> str:
        container = self._container
        if end.out_of_memory and end.code:
            limit = "" if container.memory is None else f" (its limit is {size(container.memory)})"
            return f"its container ran out of memory{limit}"
        said = self._said.decode("utf-8", "replace").strip().splitlines()
        if end.code == 0 and self._ready and not said:
            return ""
        if end.code is None:
            return "its container was removed by somebody else"
        if end.code - 128 in signal.valid_signals():
            return f"its container was killed by {_signal(end.code - 128)}"
        if not self._ready:
            return self._never_began(end.code, said)
        return f"the agent ended: {said[-1] if said else 'it was killed'}"

    def _never_began(self, code: int, said: list[str]) -> str:
        python, image = self._container.python, self._container.image
        last = f": {said[-1]}" if said else ""
        return f"{python} of the image {image} does not run our agent, and ended with {code}{last}"

    def kill(self, seconds: float) -> str | None:
        """See `Link.kill`: nothing outlives its container."""
        self._hands.remove()
        return self.wait(seconds)

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1
            try:
                self._line.shutdown(socket.SHUT_WR)
            except OSError:  # the other end is gone
                return

    def close(self) -> None:
        """See `Link.close`."""
        self.hang_up()
        self._line.close()
        self.reading = -1


def _explained(word: str, container: Container) -> str:
    """Why the image can't run agents, from its mark."""
    if word.startswith(bootstrap.TOO_OLD):
        version = word[len(bootstrap.TOO_OLD) :].strip()
        return (
            f"{container.python} of the image {container.image} is Python {version}, which is too old: "
            "it must have a Python of 3.8 or later; --python names another one of the image"
        )
    return f"the image {container.image} answered {word!r}, which this version does not know"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

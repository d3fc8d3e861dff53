"""How an agent comes into its container: what the launcher sends, and what the first code there answers."""

from __future__ import annotations

import os
from collections.abc import Callable

from launcher.errors import TransportError
from launcher.model.watermark import agent_number
from launcher.transport import bootstrap
from launcher.transport.bundle import bundle
from launcher.transport.docker.settings import Container

#: The agent's way in.
AGENT = "launcher.agent.inside:main"
#: What the image's Python is told on its command line.
WORDS = ("-E", "-s", "-S", "-c", bootstrap.LOADER)


def new_mark() -> int:
    """A number for the processes of one container, by which their host can tell them from all others."""
    return agent_number(int.from_bytes(os.urandom(8), "little"))


def luggage(host: str, mark: int) -> bytes:
    """All that goes down the pipe before the first order."""
    return bootstrap.loaded(bundle(AGENT).compiled, AGENT, {"host": host, "mark": mark})


def source() -> bytes:
    """What follows for a Python that can't run what ours has compiled."""
    return bootstrap.frame(bundle(AGENT).source())


class Arrival:
    """Looks for the marks in what a container says, until its agent is there.

    Args:
        container: what it is.
        send: takes the source, if that is asked for.

    ``ready``: what comes now is the agent's. ``fault``: why there will be none; empty as far as is known.
    """

    def __init__(self, container: Container, send: Callable[[], None]) -> None:
        self._container = container
        self._send = send
        self._early = b""
        self.ready = False
        self.fault = ""

    def feed(self, out: bytes) -> bytes:
        """What the agent said in these bytes."""
        if self.ready:
            return out
        self._early += out
        found = bootstrap.find_mark(self._early)
        if found is None:
            if len(self._early) > bootstrap.MAX_NOISE:
                self.fault = f"its {self._container.python} printed what no Python of ours does"
            return b""
        word, end = found
        self._early, rest = b"", self._early[end:]
        return self._obey(word, rest)

    def _obey(self, word: str, rest: bytes) -> bytes:
        if word == bootstrap.READY:
            self.ready = True
            return rest
        if word == bootstrap.NEEDS_SOURCE:
            return self.feed(rest) if self._sent() else b""
        self.fault = _explained(word, self._container)
        return b""

    def _sent(self) -> bool:
        try:
            self._send()
        except (OSError, TransportError) as error:
            self.fault = f"the agent could not be brought into its container: {error}"
        return not self.fault


def _explained(word: str, container: Container) -> str:
    """Why the image can't run agents, from its mark."""
    if word.startswith(bootstrap.TOO_OLD):
        version = word[len(bootstrap.TOO_OLD) :].strip()
        return (
            f"{container.python} of the image {container.image} is Python {version}, which is too old: "
            "it must have a Python of 3.8 or later; --python names another one of the image"
        )
    return f"the image {container.image} answered {word!r}, which this version does not know"

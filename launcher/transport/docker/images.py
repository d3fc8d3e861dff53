"""Having an image: looked for, pulled if it must be, and told how far that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from docker.errors import ImageNotFound

from launcher.errors import TransportError
from launcher.transport.docker.engine import Engine
from launcher.transport.docker.settings import size

#: When to pull; ``docker run --pull`` has the same words.
MISSING, ALWAYS, NEVER = "missing", "always", "never"
POLICIES = (MISSING, ALWAYS, NEVER)
#: Seconds between two words on how far a pull is.
_EVERY = 5.0


def provide(engine: Engine, name: str, policy: str, tell: Callable[[str], None]) -> Mapping[str, Any]:
    """The image, as ``docker image inspect`` has it.

    Args:
        engine: where it must be.
        name: as the user wrote it.
        policy: one of `POLICIES`.
        tell: gets a line for the user now and then.

    Raises:
        TransportError: it can't be had.
    """
    found = None if policy == ALWAYS else _inspected(engine, name)
    if found is None and policy == NEVER:
        raise TransportError(f"there is no image {name} at the engine, and --pull never forbids to fetch it")
    if found is None:
        _pull(engine, name, tell)
        found = _inspected(engine, name)
    if found is None:
        raise TransportError(f"the image {name} was pulled, and is not there")
    return found


def _inspected(engine: Engine, name: str) -> Mapping[str, Any] | None:
    def inspect() -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = engine.client.inspect_image(name)
        except ImageNotFound:
            return None
        return found

    return engine.asked(f"the image {name} can't be looked for", inspect)


def _pull(engine: Engine, name: str, tell: Callable[[str], None]) -> None:
    tell(f"pulling the image {name}")
    progress = _Progress(name, tell)

    def pull() -> str:
        # Without a tag the SDK would fetch all there are.
        tagged = name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"
        for news in engine.client.pull(tagged, stream=True, decode=True):
            if "error" in news:
                return str(news["error"])
            progress.heard(news)
        return ""

    error = engine.asked(f"the image {name} can't be pulled", pull)
    if error:
        raise TransportError(f"the image {name} can't be pulled: {error}")
    tell(f"pulled the image {name} in {progress.seconds():.0f} s")


class _Progress:
    """Adds up the layers of a pull, and tells of it now and then."""

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._began = self._told = time.monotonic()
        self._layers: dict[str, tuple[int, int]] = {}

    def heard(self, news: Mapping[str, Any]) -> None:
        """One line of the engine's."""
        detail = news.get("progressDetail") or {}
        if news.get("status") == "Downloading" and detail.get("total"):
            self._layers[news.get("id", "")] = (detail.get("current", 0), detail["total"])
        if time.monotonic() - self._told >= _EVERY and self._layers:
            self._told = time.monotonic()
            done, total = (sum(counts) for counts in zip(*self._layers.values(), strict=True))
            self._tell(f"pulling the image {self._name}: {size(done)} of {size(total)}")

    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self._began

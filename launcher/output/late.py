"""Renderers that are made when there is something to show: they are imported while the tasks start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.events import AgentReady, PortsHeld, Tell
from launcher.output.base import Opening, Renderer, Shown
from launcher.report import Report

#: Seconds that a remark may wait while there is nothing else.
_PATIENCE = 0.2


class Late:
    """Stands for renderers until they are needed: when the tasks are on their way, or something else happens.

    Args:
        make: imports and builds them.
    """

    def __init__(self, make: Callable[[], Sequence[Renderer]]) -> None:
        self._make = make
        self._renderers: Sequence[Renderer] | None = None
        self._opening: Opening | None = None
        self._kept: list[Shown] = []
        self._until: float | None = None
        self._due = False

    def begin(self, opening: Opening) -> None:
        """See `Renderer.begin`."""
        self._opening = opening

    def on(self, event: Shown) -> None:
        """Keep the first few; anything unusual is shown at once."""
        if self._renderers is None:
            self._kept.append(event)
            self._due = self._due or isinstance(event, PortsHeld)
            if not _usual(event):
                self._made()
            return
        for renderer in self._renderers:
            renderer.on(event)

    def tick(self, now: float) -> float | None:
        """See `Renderer.tick`. Ports are held: by the time of this call the tasks are on their way."""
        if self._until is None:
            self._until = now + _PATIENCE
        if self._renderers is None and not self._due and now < self._until:
            return self._until - now
        wishes = [wish for renderer in self._made() if (wish := renderer.tick(now)) is not None]
        return min(wishes) if wishes else None

    def close(self, report: Report) -> None:
        """See `Renderer.close`."""
        for renderer in self._made():
            renderer.close(report)

    def _made(self) -> Sequence[Renderer]:
        if self._renderers is None:
            self._renderers = self._make()
            kept, self._kept = self._kept, []
            for renderer in self._renderers:
                if self._opening is not None:
                    renderer.begin(self._opening)
            for event in kept:
                self.on(event)
        return self._renderers


def _usual(event: Shown) -> bool:
    """Whether every launch begins with it."""
    return not event.urgent if isinstance(event, Tell) else isinstance(event, (AgentReady, PortsHeld))

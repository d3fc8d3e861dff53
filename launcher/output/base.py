"""The interface of renderers."""

from typing import NamedTuple, Protocol

from launcher.events import Event, Tell
from launcher.job import Placement, RunPaths
from launcher.report import Report

#: What a renderer shows.
Shown = Event | Tell


class Opening(NamedTuple):
    """What is known before the first event."""

    job: str
    placement: Placement
    #: The run's files.
    paths: RunPaths
    #: Seconds since the epoch.
    started_at: float


class Renderer(Protocol):
    """Called from one thread only: `begin` once, then `on` and `tick`, `close` once.

    No method raises because an output fails: a full disk or a closed pipe never ends a job.
    """

    def begin(self, opening: Opening) -> None:
        """The run begins."""

    def on(self, event: Shown) -> None:
        """Something happened."""

    def tick(self, now: float) -> float | None:
        """Time passes (``now`` by ``time.monotonic``).

        Returns:
            Seconds until the next call is needed; ``None``: no time limit.
        """

    def close(self, report: Report) -> None:
        """The run is over: all is written, or queued for the reader, when this returns."""

"""The interface of renderers, and of the reader they write for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from launcher.events import Event, Tell
from launcher.job import Placement, RunPaths
from launcher.report import Report

#: What a renderer is shown.
Shown = Event | Tell


class Opening(NamedTuple):
    """What is known before the first event."""

    job: str
    placement: Placement
    #: The run's files; ``None``: it has none.
    paths: RunPaths | None
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


class Audience(Protocol):
    """The reader of our stdout and stderr. May be slow or blocked: only `flush` waits for it."""

    def full(self) -> bool:
        """Whether so much waits for the reader that no more output should be brought for now."""

    def hurry(self) -> None:
        """The job is being stopped: rather drop lines than wait from now on."""

    def flush(self, asked: Callable[[], bool]) -> None:
        """Wait a bounded time until all is read, or until ``asked`` says that the user wants the end."""

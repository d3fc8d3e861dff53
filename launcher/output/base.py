"""What every renderer is: told how the run opens, each fact and remark, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from launcher.events import Event, Tell
from launcher.job import Placement, RunPaths
from launcher.report import Report

#: What a renderer is told of.
Shown = Event | Tell


class Opening(NamedTuple):
    """What is known before the first fact."""

    job: str
    placement: Placement
    #: Where the run's files go; ``None``: nowhere.
    paths: RunPaths | None
    #: Seconds since the epoch.
    started_at: float


class Renderer(Protocol):
    """Called from one thread only: ``begin`` once, then ``on`` and ``tick``, ``close`` once.

    No method raises because an output fails: a full disk or a closed pipe never ends a job.
    """

    def begin(self, opening: Opening) -> None:
        """The run begins."""

    def on(self, event: Shown) -> None:
        """Something happened."""

    def tick(self, now: float) -> float | None:
        """Time passes (``now`` by ``time.monotonic``): the seconds until the next tick is wanted, if any."""

    def close(self, report: Report) -> None:
        """The run is over: everything is written, or on its way to who reads it, when this returns."""


class Audience(Protocol):
    """Whoever reads what the renderers show. He may be slow, or have stopped: only `flush` waits for him."""

    def full(self) -> bool:
        """Whether so much waits for him that no output should be brought for now."""

    def hurry(self) -> None:
        """The job is being stopped: rather skip lines than wait from now on."""

    def flush(self, asked: Callable[[], bool]) -> None:
        """Wait a bounded time until he has read all; until ``asked`` says that somebody wants us to end."""

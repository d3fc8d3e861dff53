"""A clock for tests."""

from __future__ import annotations


class FakeClock:
    """A clock that goes when it is told to.

    Args:
        now: what it shows first, in seconds.
        step: how far it goes by itself after each look.
    """

    def __init__(self, now: float = 0.0, step: float = 0.0) -> None:
        self.now = now
        self.step = step

    def __call__(self) -> float:
        """Look at it."""
        now = self.now
        self.now += self.step
        return now

    def advance(self, seconds: float) -> float:
        """Let ``seconds`` pass; what it shows then."""
        self.now += seconds
        return self.now

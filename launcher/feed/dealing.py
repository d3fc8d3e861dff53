"""Rounds of batches as partitions: one for each task, which all draw on the same rounds."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from launcher.feed.remote.blocks import Block

#: Rounds that the fastest task may be ahead of the slowest.
_AHEAD = 32


class Dealer:
    """Deals rounds out. What is not needed yet waits, so that one task can't be far ahead of another.

    Args:
        rounds: of as many blocks as there are players.
        players: how many.
    """

    def __init__(self, rounds: Iterator[tuple[Block, ...]], players: int) -> None:
        self._rounds = rounds
        self._hands: list[deque[Block]] = [deque() for _ in range(players)]
        self._changed = threading.Condition()
        self._dealing = self._over = self._ended = False

    def partitions(self) -> Iterator[Dealt]:
        """One for each player."""
        return (Dealt(place, self) for place in range(len(self._hands)))

    def hand(self, place: int) -> Iterator[Block]:
        """The blocks of one player."""
        while (block := self._next(place)) is not None:
            yield block

    def end(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next(self, place: int) -> Block | None:
        hand = self._hands[place]
        with self._changed:
            self._changed.wait_for(lambda: hand or self._ended or self._over or self._may_deal())
            if hand:
                self._changed.notify_all()
                return hand.popleft()
            if self._ended or self._over:
                return None
            self._dealing = True
        return self._deal(place)

    def _may_deal(self) -> bool:
        return not self._dealing and max(map(len, self._hands)) < _AHEAD

    def _deal(self, place: int) -> Block | None:
        """One round for all; without the lock, as it runs the user's code."""
        dealt: tuple[Block, ...] | None = None
        try:
            dealt = next(self._rounds, None)
        finally:
            with self._changed:
                self._dealing = False
                self._over = dealt is None
                for hand, block in zip(self._hands, dealt or (), strict=False):
                    hand.append(block)
                self._changed.notify_all()
        return self._hands[place].popleft() if dealt is not None else None


class Dealt(NamedTuple):
    """The blocks of one player, as a partition."""

    number: int
    dealer: Dealer
    repeatable: bool = False
    remote: Callable[[], Iterable[Any]] | None = None

    def blocks(self, rows: int) -> Iterator[Block]:
        """Its blocks, one a round, whatever their size."""
        return self.dealer.hand(self.number)

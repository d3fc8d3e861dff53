"""Equal numbers of batches for all workers, for strategies that train in step.

Rows are dealt out in rounds: in each, every worker gets one batch of exactly ``batch_size`` rows. The rows
left at the end make no whole round: ``drop`` leaves them out, ``pad`` repeats the last row until the round is
full, ``repeat`` takes the first rows again. All rows are read in the driver, arrays stay arrays.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from functools import partial

from launcher.feed.remote.blocks import Block, join, part, parts, refused, size
from launcher.feed.sources import Piece

WAYS = ("drop", "pad", "repeat")
#: Rounds that the fastest task may be ahead of the slowest.
_AHEAD = 32


def rounds(
    pieces: Iterable[Piece], workers: int, batch_size: int, equal: str
) -> Generator[tuple[Block, ...]]:
    """Rounds of one block of exactly ``batch_size`` rows for each worker.

    Args:
        pieces: of one epoch or of several; epochs follow each other without a gap.
        workers: blocks of a round.
        batch_size: rows of each block.
        equal: ``drop``, ``pad`` or ``repeat``.

    Raises:
        InputError: another ``equal``, or no batch size; later: fewer rows than ``drop`` needs for a round.
    """
    if equal not in WAYS:
        raise refused(f"equal={equal!r}", ", ".join(map(repr, WAYS)))
    if not isinstance(batch_size, int) or batch_size < 1:
        raise refused(f"equal={equal!r} with batch_size={batch_size!r}", "a batch size from 1")
    return _rounds(pieces, workers, batch_size, equal)


def _rounds(
    pieces: Iterable[Piece], workers: int, batch_size: int, equal: str
) -> Generator[tuple[Block, ...]]:
    whole, first = workers * batch_size, None
    blocks = (block for piece in pieces for block in piece.blocks(whole))
    for block in _exactly(blocks, whole):
        first = block if first is None else first
        if size(block) < whole and equal == "drop":
            if block is first:
                raise refused(
                    f"{size(block)} rows for {workers} batches of {batch_size}", "more, or 'pad' or 'repeat'"
                )
            return
        source = part(block, size(block) - 1, size(block)) if equal == "pad" else first
        filled = [block]
        while (missing := whole - sum(map(size, filled))) > 0:
            filled.append(part(source, 0, missing))
        yield tuple(parts(join(filled), batch_size))


def _exactly(blocks: Iterable[Block], rows: int) -> Iterator[Block]:
    """The same rows in blocks of exactly so many; the last one may be shorter."""
    waiting: list[Block] = []
    count = 0
    for block in blocks:
        waiting.append(block)
        count += size(block)
        while count >= rows:
            joined = join(waiting)
            yield part(joined, 0, rows)
            count -= rows
            waiting = [part(joined, rows, rows + count)] if count else []
    if count:
        yield join(waiting)


class Dealer:
    """Deals rounds out to the tasks, each of which has one piece; the fastest waits for the slowest.

    Args:
        pieces: a generator; `Dealer.end` closes it.
        tasks: their number.
        batch_size, equal: see `rounds`.

    Raises:
        InputError: see `rounds`.
    """

    def __init__(self, pieces: Generator[Piece], tasks: int, batch_size: int, equal: str) -> None:
        self._pieces = pieces
        self._rounds = rounds(pieces, tasks, batch_size, equal)
        self._hands: list[deque[Block]] = [deque() for _ in range(tasks)]
        self._changed = threading.Condition()
        self._dealing = self._over = False

    def pieces(self) -> Generator[Piece]:
        """One for each task, in their order."""
        return (Piece(partial(self._blocks, hand), repeatable=False) for hand in self._hands)

    def end(self) -> None:
        """Let no task wait any more, and close the pieces."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            if not self._dealing:
                self._close()

    def _close(self) -> None:
        self._rounds.close()
        self._pieces.close()

    def _blocks(self, hand: deque[Block], rows: int) -> Iterator[Block]:
        """The blocks of a task, one for each round, whatever their size."""
        return iter(lambda: self._next(hand), None)

    def _next(self, hand: deque[Block]) -> Block | None:
        """The next block of a task; ``None``: there are no more rounds."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: hand or self._over or self._may_deal())
                if hand:
                    self._changed.notify_all()
                    return hand.popleft()
                if self._over:
                    return None
                self._dealing = True
            dealt: tuple[Block, ...] | None = None
            try:
                dealt = next(self._rounds, None)  # the user's code: without the lock
            finally:
                with self._changed:
                    self._dealing = False
                    self._over = self._over or dealt is None
                    if self._over:
                        self._close()
                    for other, block in zip(self._hands, dealt or (), strict=False):
                        other.append(block)
                    self._changed.notify_all()

    def _may_deal(self) -> bool:
        return not self._dealing and max(map(len, self._hands)) < _AHEAD

"""Equal numbers of batches for all workers, for strategies that train in step.

Rows are dealt out in rounds: in each, every worker gets one batch of exactly ``batch_size`` rows. The rows
left at the end make no whole round: ``drop`` leaves them out, ``pad`` repeats the last row until the round is
full, ``repeat`` takes the first rows again. All rows are read in the driver, arrays stay arrays.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial

from launcher.feed.remote.blocks import Block, join, part, refused, size
from launcher.feed.sources import Piece

WAYS = ("drop", "pad", "repeat")
#: Rounds that the fastest task may be ahead of the slowest; seconds between two looks at that.
_AHEAD, _LOOK = 32, 0.1


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
    blocks = (block for piece in pieces for block in piece.blocks(lambda: whole))
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
        found = join(filled)
        yield tuple(part(found, at, at + batch_size) for at in range(0, whole, batch_size))


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
        pieces: a generator; it is closed at the end.
        tasks: their number.
        batch_size, equal: see `rounds`.

    Raises:
        InputError: see `rounds`.
    """

    def __init__(self, pieces: Generator[Piece], tasks: int, batch_size: int, equal: str) -> None:
        self._pieces = pieces
        self._rounds = rounds(pieces, tasks, batch_size, equal)
        self._hands: list[deque[Block]] = [deque() for _ in range(tasks)]
        self._dealing = threading.Condition()
        self._over = False

    def pieces(self) -> Generator[Piece]:
        """One for each task, in their order."""
        return (Piece(partial(self._blocks, hand), repeatable=False) for hand in self._hands)

    def end(self) -> None:
        """Let no task wait any more, and close the pieces unless a task reads them now."""
        self._over = True
        if self._dealing.acquire(blocking=False):
            self._close()
            self._dealing.release()

    def _close(self) -> None:
        self._rounds.close()
        self._pieces.close()

    def _blocks(self, hand: deque[Block], rows: Callable[[], int]) -> Iterator[Block]:
        """The batches of a task; those that are there already in blocks of about so many rows."""
        while hand or self._deal(hand):
            blocks = [hand.popleft()]
            while hand and sum(map(size, blocks)) + size(hand[0]) <= rows():
                blocks.append(hand.popleft())
            yield join(blocks)

    def _deal(self, hand: deque[Block]) -> bool:
        """Deal until the hand has a batch; ``False``: there are no more rounds.

        The user's code runs with the lock: meanwhile other tasks take what is in their hands.
        """
        with self._dealing:
            while not hand and not self._over:
                if max(map(len, self._hands)) >= _AHEAD:
                    self._dealing.wait(_LOOK)
                    continue
                dealt = next(self._rounds, None)
                if dealt is None or self._over:
                    self._over = True
                    self._close()
                    break
                for other, block in zip(self._hands, dealt, strict=True):
                    other.append(block)
        return bool(hand)

"""A partition -> chunks of about a mebibyte, however big its rows are and however fast they come."""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING

from launcher.feed.remote.blocks import join, part, size
from launcher.feed.remote.codec import Encoded, encode
from launcher.feed.remote.frames import check_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.feed.partitions import Partition
    from launcher.feed.remote.blocks import Block

#: Bytes and rows that a chunk should have at most; rows that are asked for when their size is not known yet.
CHUNK, MOST_ROWS, FIRST_ROWS = 1 << 20, 16384, 64
#: Bytes of a chunk that is cut once more: its rows were much bigger than those before.
FAR_TOO_BIG = 64 << 20
#: How many times as many rows the next chunk may have: the first rows may have been small ones.
_GROWTH = 8
#: How much more or less than that a chunk may have if this saves cutting or joining.
_ROUGHLY = 1.25
#: Seconds that rows wait for others to travel with.
_PATIENCE = 0.02


class Cutter:
    """Knows how many rows make a chunk, and learns it from every chunk. May be used by several threads."""

    def __init__(self) -> None:
        self.rows = 1  # the first one may be as big as it likes

    def cut(self, partition: Partition) -> Iterator[Encoded]:
        """The rows of a partition, encoded.

        Raises:
            FeedError: they can't be sent. Whatever the partition raises.
        """
        for block in self._gathered(partition.blocks(max(self.rows, FIRST_ROWS))):
            at, total = 0, size(block)
            while at < total:
                stop = total if total - at <= self.rows * _ROUGHLY else at + self.rows
                yield from self._encoded(block if stop - at == total else part(block, at, stop), stop - at)
                at = stop

    def _encoded(self, block: Block, rows: int) -> Iterator[Encoded]:
        encoded = Encoded(rows, encode(block))
        self._learn(rows, encoded)
        if rows > 1 and encoded.size > FAR_TOO_BIG:
            del encoded
            half = rows // 2
            yield from self._encoded(part(block, 0, half), half)
            yield from self._encoded(part(block, half, rows), rows - half)
            return
        check_size(encoded.buffers, "a row" if rows == 1 else f"{rows} rows")
        yield encoded

    def _learn(self, rows: int, encoded: Encoded) -> None:
        fitting = rows * CHUNK // max(1, encoded.size)
        self.rows = max(1, min(fitting, rows * _GROWTH, MOST_ROWS))

    def _gathered(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Small blocks together, unless they come so slowly that their rows would wait."""
        waiting: list[Block] = []
        rows, since = 0, 0.0
        for block in blocks:
            if not waiting:
                since = time.monotonic()
            waiting.append(block)
            rows += size(block)
            if rows * _ROUGHLY >= self.rows or time.monotonic() - since > _PATIENCE:
                yield _together(waiting)
                waiting, rows = [], 0
        if waiting:
            yield _together(waiting)


def _together(blocks: list[Block]) -> Block:
    """`join`, fast for lists."""
    if len(blocks) == 1 or not all(isinstance(block, list) for block in blocks):
        return join(blocks)
    return list(chain.from_iterable(blocks))

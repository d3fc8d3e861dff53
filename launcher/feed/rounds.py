"""Equal numbers of batches for all workers, as strategies in step need them: one that runs dry stops all.

The rows are taken in order and dealt out in rounds: in each, every worker gets one batch of exactly
``batch_size`` rows. What is left at the end makes no whole round:

``drop``    it is left out
``pad``     the last row is repeated until the round is full
``repeat``  the first rows of the data are taken again until it is

Arrays stay arrays. Partitions whose rows are read beside the worker are read here: only who sees all rows can
deal them out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from launcher.feed.partitions import Partition
from launcher.feed.pieces import refused
from launcher.feed.remote.blocks import Block, join, part, parts, size

WAYS = ("drop", "pad", "repeat")


def rounds(
    partitions: Iterable[Partition], workers: int, batch_size: int, how: str
) -> Iterator[tuple[Block, ...]]:
    """Rounds of one block of exactly ``batch_size`` rows for each worker.

    Args:
        partitions: of one epoch or of several; epochs follow each other without a gap.
        workers: how many blocks a round has.
        batch_size: rows of each block.
        how: what is done with the rows that make no whole round: ``drop``, ``pad`` or ``repeat``.

    Raises:
        InputError: at once: another word, no batch size; later: fewer rows than ``drop`` needs for one round.
    """
    if how not in WAYS:
        raise refused(f"equal={how!r}", ", ".join(map(repr, WAYS)))
    if not isinstance(batch_size, int) or batch_size < 1:
        raise refused(f"equal={how!r} with batch_size={batch_size!r}", "a batch size from 1")
    return _rounds(partitions, workers, batch_size, how)


def _rounds(
    partitions: Iterable[Partition], workers: int, batch_size: int, how: str
) -> Iterator[tuple[Block, ...]]:
    whole, first = workers * batch_size, None
    blocks = (block for partition in partitions for block in partition.blocks(whole))
    for block in _exactly(blocks, whole):
        first = block if first is None else first
        full = block if size(block) == whole else _filled(block, first, whole, how)
        if full is not None:
            yield tuple(parts(full, batch_size))
        elif block is first:
            raise refused(
                f"{size(block)} rows for {workers} batches of {batch_size}", "more, or 'pad' or 'repeat'"
            )


def _exactly(blocks: Iterable[Block], rows: int) -> Iterator[Block]:
    """The same rows in blocks of exactly so many; the last one may be shorter."""
    waiting, count = deque[Block](), 0
    for block in blocks:
        waiting.append(block)
        count += size(block)
        while count >= rows:
            joined = join(list(waiting))
            yield part(joined, 0, rows)
            count -= rows
            waiting = deque([part(joined, rows, rows + count)] if count else ())
    if count:
        yield join(list(waiting))


def _filled(block: Block, first: Block, rows: int, how: str) -> Block | None:
    """A last block with so many rows; ``None``: it is left out."""
    if how == "drop":
        return None
    source = part(block, size(block) - 1, size(block)) if how == "pad" else first
    missing, more = rows - size(block), [block]
    while missing > 0:
        more.append(part(source, 0, missing))
        missing -= size(more[-1])
    return join(more)

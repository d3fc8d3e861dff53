"""Data of any kind -> numbered partitions, for the feeder.

`launcher.feed.sources` says what is taken as what. The two words here say it where the types can't::

    cluster.train(rows([[0.1, 0.2], [0.3, 0.4]]))              # each inner list is a row
    cluster.train(partitions([[1, 2, 3], [4, 5]]))             # each inner list is a partition of numbers
    cluster.train(rows(parsed(line) for line in log))          # rows, one by one, whatever they are
    cluster.train([partial(read, name) for name in names])     # callables: read(name) is run beside a worker
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from launcher.feed.pieces import Piece, Rows, refused
from launcher.feed.remote.blocks import Block
from launcher.feed.sources import Partitions, is_many, source_of

__all__ = ["Partition", "partitions", "partitions_of", "rows"]


class Partition(Protocol):
    """Some rows that one task gets, all or, if it dies, again by another."""

    @property
    def number(self) -> int:
        """0, 1, 2 ... over all epochs."""

    @property
    def repeatable(self) -> bool:
        """Whether `blocks` can be called again and gives the same rows."""

    @property
    def remote(self) -> Callable[[], Iterable[Any]] | None:
        """Not ``None``: sent, and called beside the worker; what it returns is for `sources.blocks_of`."""

    def blocks(self, rows: int) -> Iterator[Block]:
        """Its rows, in blocks of at most so many."""


class _Numbered(NamedTuple):
    number: int
    piece: Piece

    @property
    def repeatable(self) -> bool:
        return self.piece.repeatable

    @property
    def remote(self) -> Callable[[], Iterable[Any]] | None:
        return self.piece.remote

    def blocks(self, rows: int) -> Iterator[Block]:
        return self.piece.blocks(rows)


def rows(data: Iterable[Any], per_partition: int | None = None) -> Rows:
    """Each item of this is one row, whatever it is.

    Args:
        data: a list, a generator, anything that is iterated.
        per_partition: how many rows make a partition, which is what is fed again when a worker is lost.
            Default: a list is split into four for each worker; what is iterated is grouped into about 2 MiB,
            or what comes within a second.

    Raises:
        InputError: this is not iterated, or ``per_partition`` is no whole number from 1.
    """
    _check(data, "rows")
    if per_partition is not None and per_partition < 1:
        raise refused(f"per_partition={per_partition}", "a whole number from 1")
    return Rows(data, per_partition)


def partitions(data: Iterable[Any]) -> Partitions:
    """Each item of this is a partition: rows that are iterated, arrays, or a callable that returns them.

    Raises:
        InputError: this is not iterated.
    """
    _check(data, "partitions")
    return Partitions(data)


class Drawn(Iterator[Partition]):
    """Partitions, drawn by one thread at a time, and left by any: what reads ahead for them ends then.

    Args:
        pieces: what they are made of; a generator.
    """

    def __init__(self, pieces: Generator[Piece]) -> None:
        self._pieces = pieces
        self._count = 0
        self._lock = threading.Lock()
        self._busy = self._left = False

    def __next__(self) -> Partition:
        """The next one; runs the user's code."""
        with self._lock:
            self._busy = not self._left
            if self._left:
                raise StopIteration
        try:
            found = _Numbered(self._count, next(self._pieces))
        finally:
            self._drawn()
        self._count += 1
        return found

    def _drawn(self) -> None:
        with self._lock:
            self._busy, left = False, self._left
        if left:
            self._pieces.close()

    def leave(self) -> None:
        """No more are wanted. If a thread is about to draw one, that thread ends what reads ahead."""
        with self._lock:
            self._left, busy = True, self._busy
        if not busy:
            self._pieces.close()


def partitions_of(data: Any, workers: int, epochs: int = 1) -> Drawn:
    """The partitions of some data, as often as there are epochs; nothing is read before it is asked for.

    Args:
        data: see `launcher.feed.sources`.
        workers: how many tasks will take them; what can be cut anywhere is cut for so many.
        epochs: how often, at least 1.

    Raises:
        InputError: at once if it is no data, or can't be read so often; what can only be known later (that
            an iterator gives texts as partitions) when it is met.
    """
    if epochs < 1:
        raise refused(f"{epochs} epochs", "a whole number from 1")
    source = source_of(data)
    if source.once and epochs > 1:
        raise refused(
            f"what can be read only once (an iterator) for {epochs} epochs",
            "a list, arrays, files, or callables that read it; or one epoch",
        )
    return Drawn(piece for _ in range(epochs) for piece in source.pieces(workers))


def _check(data: Any, word: str) -> None:
    if not is_many(data):
        raise refused(
            f"{word}() of a {type(data).__name__}", "a list, a generator, anything that is iterated"
        )

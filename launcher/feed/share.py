"""One partition on its way to a task: its chunks, which of them are still out, and what came back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import FeedError
from launcher.feed.remote.codec import Encoded, by_value, encode
from launcher.feed.remote.frames import check_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from launcher.feed.cutting import Cutter
    from launcher.feed.partitions import Partition

#: What a chunk of code counts, in bytes: it will make many rows.
REMOTE_WEIGHT = 2 << 20


class Made(NamedTuple):
    """A chunk, made but not numbered yet."""

    rows: int
    buffers: Any
    weight: int
    last: bool = False
    remote: bool = False


class Share:
    """See the module. All but `make` is called by who holds the lock of the feeder.

    Args:
        number: of the partition, from 0.
        partition: gives its rows.
        cutter: makes chunks of them.
        inference: whether a result is expected for each row.
        keep: whether what was sent is kept until all is consumed, where the partition can't give it again.
    """

    def __init__(
        self, number: int, partition: Partition, cutter: Cutter, inference: bool, keep: bool
    ) -> None:
        self.number = number
        self.inference = inference
        self._partition = partition
        self._cutter = cutter
        self._keep = keep and not partition.repeatable and partition.remote is None
        self._kept: list[Made] = []
        self._fresh: Iterator[Made] | None = None
        self._chunks: Iterator[Made] = self._begin()
        #: Bytes kept for a second time.
        self.kept_bytes = 0
        #: Whether it can't be fed a second time, though it should.
        self.forgotten = False
        #: Whether a thread makes a chunk of it at this moment.
        self.busy = False
        #: Whether all its chunks were made.
        self.complete = False
        #: Chunks that were made for the task that has it now, and those that are not consumed.
        self.made = self.out = 0
        #: Rows sent to that task, and results it gave.
        self.rows = self.answered = 0
        #: Chunks that were code, and have not said how many rows they made.
        self.uncounted = 0
        #: Results that nobody had yet, in order.
        self.results: list[Any] = []
        self.result_bytes = 0
        self._had = 0

    @property
    def finished(self) -> bool:
        """Whether nothing of it is still to come."""
        if not self.inference:
            return self.complete and not self.out
        return self.complete and not self.uncounted and self.answered >= self.rows

    def make(self) -> Made | None:
        """The next chunk; ``None`` after the last. Runs the user's code."""
        return next(self._chunks, None)

    def again(self) -> None:
        """Begin from the beginning, for another task: the one that had it is lost.

        Raises:
            FeedError: that can't be done.
        """
        if self.forgotten:
            raise FeedError(
                f"partition {self.number} can't be fed again: it can be iterated only once, and is too "
                "big to be kept; feed lists, callables that read the data, or smaller partitions"
            )
        self.complete = False
        self.made = self.out = self.rows = self.answered = self.uncounted = 0
        self._chunks = self._begin()

    def sent(self, made: Made) -> None:
        """A chunk goes to the task."""
        self.made += 1
        self.out += 1
        self.rows += made.rows
        self.uncounted += made.remote

    def counted(self, rows: int) -> None:
        """A chunk that was code has made so many rows."""
        self.rows += rows
        self.uncounted -= 1

    def answer(self, results: list[Any]) -> int:
        """Take results that the task gave, of rows in order, less what a task that is lost has given before.

        Returns:
            How many are new.
        """
        known = max(0, self._had - self.answered)
        self.answered += len(results)
        new = results[known:]
        self._had += len(new)
        self.results += new
        return len(new)

    def forget(self) -> None:
        """Keep nothing any more."""
        self._keep, self._kept, self.kept_bytes = False, [], 0
        self.forgotten = True

    def _begin(self) -> Iterator[Made]:
        if self._partition.remote is not None:
            code = by_value(self._partition.remote)
            check_size([code], f"the callable of partition {self.number}")
            yield Made(0, [code], len(code) + REMOTE_WEIGHT, last=True, remote=True)
            return
        yield from list(self._kept)
        if self._fresh is None or not self._keep:
            self._fresh = map(_made, self._cutter.cut(self._partition))
        for made in self._fresh:
            self._remember(made)
            yield made
        if self.inference:
            yield _made(Encoded(0, encode([])))._replace(last=True)

    def _remember(self, made: Made) -> None:
        if self._keep:
            self._kept.append(made)
            self.kept_bytes += made.weight


def _made(encoded: Encoded) -> Made:
    return Made(encoded.rows, encoded.buffers, encoded.size)

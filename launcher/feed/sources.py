"""Turns the data that a user feeds into pieces, which are the partitions that are fed.

`Feeder` calls `pieces_of` and `rounds`. User programs call `rows` and `partitions` where the form of their
data leaves open what a row is. Nothing is read before it is needed, and data that can be understood in two
ways is refused.

====================================================  ====================================================
The user passes                                       It is fed as
====================================================  ====================================================
a numpy array, a tuple or dict of arrays of one       columns, cut into partitions: views without copies
length, a pandas frame or series
`TextFiles`, `CsvFiles`, `TFRecordFiles`              the contents of the files
a list or tuple of rows                               rows, split into partitions
another iterable of rows                              rows, grouped into partitions as they come: about
                                                      2 MiB, or what comes within a second
any iterable of partitions                            those partitions, read one after another
``rows(...)``, ``partitions(...)``                    rows, partitions
====================================================  ====================================================

The first item decides whether items are rows or partitions. Numbers, texts, bytes, tuples and dicts are rows.
Iterators, generators, ranges, sets, frames, files and callables are partitions. A callable is called in the
task, and returns the rows. Lists and arrays are partitions if a generator yields them, or if a list contains
lists of tuples, dicts or lists. A list of lists of numbers or texts, and a list of arrays, are refused::

    cluster.train(rows([[0.1, 0.2], [0.3, 0.4]]))              # each inner list is a row
    cluster.train(partitions([[1, 2, 3], [4, 5]]))             # each inner list is a partition of numbers
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from launcher.common.arguments import Arguments, named_arguments, shown, whole
from launcher.common.errors import FeedError
from launcher.common.record import Record
from launcher.feed.remote.codec import Block, blocks_of, columnar, is_array, join, part, refused, size
from launcher.threads import start_function

Result = TypeVar("Result")

#: Data that can be cut anywhere is cut into this many pieces for each worker, so that a fast one can take
#: more.
PIECES_PER_WORKER = 4
# The size of a group of rows that come one by one.
GROUP_BYTES = 2 << 20
_MAX_GROUP_ROWS = 16384
# Measuring a row costs as much as pickling it. So only the first of up to this many rows is measured.
_MAX_STEP_ROWS = 64
#: What to do with the last rows if they do not make a whole round of equal batches, see `rounds`.
FILLS = ("drop", "pad", "repeat")
# After this time rows that come slowly make a group, even if they are few.
_GROUP_SECONDS = 1.0


class Piece(Record):
    """The rows of one partition, and how to read them."""

    #: Yields the rows in blocks. Its argument is a function that returns how many rows the next block may
    #: contain.
    blocks: Callable[[Callable[[], int]], Iterator[Block]]
    #: Whether ``blocks`` yields the same rows again when it is called again.
    repeatable: bool = True
    #: A picklable function that returns the rows in the task. None if they are read in the program.
    remote: Callable[[], Iterable[Any]] | None = None


#: Yields the pieces of some data for this number of workers.
MakePieces = Callable[[int], Iterator[Piece]]


class FeedSource:
    """Data of any kind, as `Feeder` reads it.

    Args:
        pieces: Yields all pieces of the data for a number of workers.
        once: Whether the data can be read only once.
    """

    def __init__(self, pieces: MakePieces, *, once: bool) -> None:
        self.once = once
        self.pieces = pieces


@named_arguments("rows")
def rows(data: Iterable[Any], per_partition: int | None = None) -> FeedSource:
    """Feed each item of the data as one row, whatever its type.

    ::

        cluster.train(rows([[0.1, 0.2], [0.3, 0.4]]))  # two rows

    Args:
        data: A list, a generator, or any other iterable.
        per_partition: The number of rows in a partition, which is fed again as a whole if its worker is lost.
            By default a list is split into four partitions for each worker, and other iterables are grouped
            into about 2 MiB, or what comes within a second.

    Returns:
        Data for `launcher.TFCluster.train` and `launcher.TFCluster.inference`.

    Raises:
        InputError: ``data`` is not iterable, or ``per_partition`` is less than 1.
    """
    _check(data, "rows")
    found = Arguments("rows")
    per_partition = found.optional("per_partition", per_partition, whole(1))
    found.check()
    return FeedSource(partial(_row_pieces, data, per_partition), once=isinstance(data, Iterator))


@named_arguments("partitions")
def partitions(data: Iterable[Any]) -> FeedSource:
    """Feed each item of the data as a partition, whose rows stay together.

    ::

        cluster.train(partitions([[1, 2, 3], [4, 5]]))  # five rows in two partitions

    Args:
        data: The partitions: a list, a generator, or any other iterable. Each is an iterable of rows, arrays,
            or a callable that returns them and is called in the task.

    Returns:
        Data for `launcher.TFCluster.train` and `launcher.TFCluster.inference`.

    Raises:
        InputError: ``data`` is not iterable.
    """
    _check(data, "partitions")
    items = data if isinstance(data, list | tuple) else [data]
    once = any(isinstance(item, Iterator) for item in [data, *items])
    return FeedSource(partial(_partition_pieces, data), once=once)


def pieces_of(data: Any, workers: int, epochs: int = 1) -> Generator[Piece]:
    """Yield the pieces of the user's data, once for each epoch. Nothing is read before it is asked for.

    Args:
        data: The data, in a form that this module accepts.
        workers: The number of tasks that will take the pieces. Data that can be cut anywhere is cut for them.
        epochs: The number of epochs, at least 1.

    Raises:
        InputError: This is not data, or cannot be read so many times. Some data show that only when they are
            read.
    """
    source = source_of(data)
    if source.once and epochs > 1:
        raise refused(
            f"data that can be read only once (an iterator) for {epochs} epochs",
            "a list, arrays, files, or callables that read it; or one epoch",
        )
    return (piece for _ in range(epochs) for piece in source.pieces(workers))


def source_of(data: Any) -> FeedSource:
    """Return the user's data as a source, which knows whether its items are rows or partitions.

    Raises:
        InputError: The data contains no rows, or can be understood in two ways.
    """
    if isinstance(data, FeedSource):
        return data
    if (block := columnar(data)) is not None:
        return FeedSource(partial(_split, block, size(block), None), once=False)
    if callable(data):
        return partitions([data])
    if not _is_many(data):
        files = "TextFiles(...) or its like for files; "
        expected = (
            f"{files if isinstance(data, str | os.PathLike) else ''}a list, arrays, files, or partitions"
        )
        raise refused(f"{_shown(data)} has no rows", expected)
    if not isinstance(data, list | tuple | range):
        return FeedSource(partial(_iterable_pieces, data), once=isinstance(data, Iterator))
    if not data or is_row(data[0]):
        return rows(data)
    if is_array(data[0]) or (isinstance(data[0], list) and (not data[0] or not _is_structured(data[0][0]))):
        kind = "arrays" if is_array(data[0]) else "lists"
        raise refused(
            f"a list of {kind} can be rows, each a list or array, or partitions, each of many rows",
            "launcher.rows(data) or launcher.partitions(data)",
        )
    return partitions(data)


def _row_pieces(data: Iterable[Any], per_partition: int | None, workers: int) -> Iterator[Piece]:
    """Yield the pieces of an iterable of rows. A list is split evenly, other rows are grouped as they come.

    Args:
        data: The rows.
        per_partition: The number of rows in a piece, or None for the default.
        workers: The number of workers.
    """
    if isinstance(data, list | tuple | range):
        # A tuple of arrays would be columns.
        return _split(list(data) if isinstance(data, tuple) else data, len(data), per_partition, workers)
    iterator = iter(data)
    if per_partition:
        return map(piece_of, iter(lambda: list(islice(iterator, per_partition)), []))
    return map(piece_of, groups_in_time(iterator))


def _partition_pieces(data: Iterable[Any], workers: int) -> Iterator[Piece]:
    """Yield the pieces of an iterable of partitions. An item such as `TextFiles` may yield several."""
    for item in data:
        yield from (item.pieces(workers) if isinstance(item, FeedSource) else [piece_of(item)])


def _iterable_pieces(data: Iterable[Any], workers: int) -> Iterator[Piece]:
    """Yield the pieces of an iterable, whose first item shows whether its items are rows or partitions."""
    iterator = iter(data)
    for first in iterator:
        again = chain([first], iterator)
        yield from _row_pieces(again, None, workers) if is_row(first) else _partition_pieces(again, workers)


def _split(data: Any, total: int, many: int | None, workers: int) -> Iterator[Piece]:
    """Yield pieces of a list or of arrays, each with the same number of rows.

    Args:
        data: The list or arrays.
        total: The number of all rows.
        many: The number of rows in a piece. By default each worker receives several pieces.
        workers: The number of workers.
    """
    many = many or max(1, -(-total // (workers * PIECES_PER_WORKER)))
    return (piece_of(part(data, at, at + many)) for at in range(0, total, many))


def piece_of(item: Any) -> Piece:
    """Return one piece with all rows of an iterable, of arrays, or of a callable that returns them.

    Raises:
        InputError: The item has no rows.
    """
    if columnar(item) is None:
        if callable(item):
            return Piece(lambda rows: blocks_of(item(), rows), True, item)
        if not _is_many(item):
            raise refused(f"{_shown(item)} as a partition", "an iterable of rows, arrays, or a callable")
    return Piece(partial(blocks_of, item), not isinstance(item, Iterator))


def is_row(item: Any) -> bool:
    """Return whether an item is a row wherever it comes from. Otherwise it may be a partition."""
    if isinstance(item, str | bytes | tuple | Mapping):
        return True
    return not (_is_iterable(item) or callable(item) or isinstance(item, FeedSource))


def _is_iterable(value: Any) -> bool:
    """Return whether a value can be iterated. An array without dimensions cannot, despite its method."""
    return isinstance(value, Iterable) and getattr(value, "shape", None) != ()


def _is_many(value: Any) -> bool:
    """Return whether a value can contain rows. A text, bytes or a dict is a single row."""
    return _is_iterable(value) and not isinstance(value, str | bytes | Mapping)


def _is_structured(value: Any) -> bool:
    """Return whether the first item of an inner list shows that the items of this list are rows."""
    return _is_iterable(value) and not isinstance(value, str | bytes) and not is_array(value)


def _check(data: Any, name: str) -> None:
    """Check that the argument of the public function of this name can contain rows.

    Raises:
        InputError: It cannot.
    """
    if not _is_many(data):
        raise refused(f"{name}() of a {type(data).__name__}", "a list, a generator, any iterable")


def _shown(value: object) -> str:
    """Return the type and the beginning of a value, for a message."""
    return f"{type(value).__name__} {shown(value, 60)}"


# Rows that come one by one.


def run_user_code(call: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    """Call code of the user in a thread of the feed, so that no exception ends the thread.

    Returns:
        The result and None, or None and the error. The error for SystemExit and the like is a `FeedError`.
    """
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - train() or inference() raises it in the user's thread
        return None, error
    except BaseException as error:  # noqa: BLE001 - SystemExit would end the thread silently
        return None, FeedError(f"reading the rows ended with {type(error).__name__}: {error}")


def groups(rows: Iterator[Any], most: int) -> Iterator[list[Any]]:
    """Yield all rows in lists of about ``most`` bytes. Each list waits until it is full."""
    group: list[Any] = []
    for full in _fill(group, rows, most):
        if full:
            yield group[:]
            group.clear()
    if group:
        yield group


def groups_in_time(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield all rows in lists of about `GROUP_BYTES`, or of those that came within a second.

    A thread iterates, at most one group ahead, because ``next`` of a user's generator cannot be interrupted.

    Raises:
        Exception: Whatever the iterator raises, see `run_user_code`.
    """
    reading = _ReadAhead(rows)
    start_function(reading.run, name="rows of a feed")
    try:
        while True:
            if not (reading.is_ready.wait(_GROUP_SECONDS) or reading.group or reading.has_ended):
                continue
            has_ended = reading.has_ended
            if has_ended and reading.error is not None:
                raise reading.error
            if found := reading.take():
                yield found
            if has_ended:
                return
    finally:
        reading.stop()


class _ReadAhead:
    """Reads rows in a thread of its own, at most one group ahead, while another thread takes them."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._rows = rows
        #: The rows that can be taken. One thread appends to it and another one empties it, without a lock for
        #: speed.
        self.group: deque[Any] = deque()
        #: Set when the group is full, and when no more rows come.
        self.is_ready = threading.Event()
        self._was_taken = threading.Event()
        self._should_stop = threading.Event()
        #: Whether no more rows come.
        self.has_ended = False
        #: The exception that has ended the reading, or None if the rows are simply at their end.
        self.error: Exception | None = None

    def run(self) -> None:
        """Read all rows, in the thread of this object."""
        self.error = run_user_code(self._read)[1]
        self.has_ended = True
        self.is_ready.set()

    def _read(self) -> None:
        """Append rows to the group until no more come. A full group waits until it was taken."""
        for is_full in _fill(self.group, self._rows, GROUP_BYTES):
            if is_full:
                self._was_taken.clear()
                self.is_ready.set()
                self._was_taken.wait()
            if self._should_stop.is_set():
                return

    def take(self) -> list[Any]:
        """Return the rows that have come, and let the thread read on."""
        found = [self.group.popleft() for _ in range(len(self.group))]
        self.is_ready.clear()
        self._was_taken.set()
        return found

    def stop(self) -> None:
        """Let the thread end. It does so when the user's iterator has returned its next row."""
        self._should_stop.set()
        self._was_taken.set()


def _fill(group: list[Any] | deque[Any], rows: Iterator[Any], most: int) -> Iterator[bool]:
    """Append rows to a group, and yield after each step whether the group is full.

    The caller must empty a full group before it continues.

    Args:
        group: The group, which is changed.
        rows: The rows.
        most: About how many bytes a full group contains. A group of `_MAX_GROUP_ROWS` rows is full as well.
    """
    weight, step = 0, 1
    for row in rows:
        group.append(row)
        bytes_each = max(1, _weight(row))
        more = max(0, min(step, (most - weight) // bytes_each) - 1)
        group.extend(islice(rows, more))
        weight, step = weight + (1 + more) * bytes_each, min(2 * step, _MAX_STEP_ROWS)
        full = weight >= most or len(group) >= _MAX_GROUP_ROWS
        yield full
        if full:
            weight, step = 0, 1


def _weight(row: Any) -> int:
    """Return the number of bytes of a row as a pickle, or an estimate if it cannot be pickled plainly."""
    try:
        return len(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))
    except Exception:  # noqa: BLE001 - classes of the user can raise anything
        return GROUP_BYTES // _MAX_STEP_ROWS


# Equal numbers of batches.


def rounds(
    pieces: Generator[Piece], workers: int, batch_size: int, equal: str
) -> Generator[tuple[Block, ...]]:
    """Yield rounds of equal batches: each contains exactly ``batch_size`` rows for each worker.

    The rows left at the end make no whole round. All rows are read in the program.

    Args:
        pieces: The pieces of one epoch, or of several epochs without a gap between them. They are closed at
            the end.
        workers: The number of blocks in a round.
        batch_size: The number of rows in each block.
        equal: What to do with the rows that are left. ``drop`` leaves them out, ``pad`` repeats the last row
            until the round is full, and ``repeat`` adds the first rows of the data again.

    Raises:
        InputError: There are too few rows for a single round with ``drop``.
    """
    whole = workers * batch_size
    first: Block | None = None
    rest: list[Block] = []

    def round_of(block: Block) -> tuple[Block, ...]:
        return tuple(part(block, at, at + batch_size) for at in range(0, whole, batch_size))

    with closing(pieces):
        for block in chain.from_iterable(piece.blocks(lambda: whole) for piece in pieces):
            rest.append(block)
            if (rows := sum(map(size, rest))) >= whole:
                joined = join(rest)
                rest = [part(joined, whole, rows)] if rows > whole else []
                first = joined if first is None else first
                yield round_of(joined)
    rows = sum(map(size, rest))
    if equal == "drop" and rows and first is None:
        raise refused(f"{rows} rows for {workers} batches of {batch_size}", "more, or 'pad' or 'repeat'")
    if equal == "drop" or not rows:
        return
    last = join(rest)
    source = part(last, rows - 1, rows) if equal == "pad" else last if first is None else first
    filled = [last]
    while (missing := whole - sum(map(size, filled))) > 0:
        filled.append(part(source, 0, missing))
    yield round_of(join(filled))

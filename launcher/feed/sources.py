"""Turns the data that a user feeds into pieces, which are the partitions that are fed.

`Feeder` calls `pieces_of` and `rounds`. User programs call `rows` and `partitions` where the form of their
data leaves open what a row is. Nothing is read before it is needed, and data that can be understood in two
ways is refused.

====================================================  ====================================================
The user passes                                       It is fed as
====================================================  ====================================================
a numpy array, a tuple or dict of arrays of one       columns, cut into partitions: views without copies
length, a pandas frame or series
`TextFiles`, `CsvFiles`, `TFRecordFiles`,             the contents of the files
`ParquetFiles`
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

import math
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
        """Describe data of which nothing was read."""
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
    # Wrong data is refused now, and not when the rows are read.
    _check(data, "rows")
    arguments = Arguments("rows")
    per_partition = arguments.optional("per_partition", per_partition, whole(1))
    arguments.check()
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
    # Only the items of a list can be examined now, because nothing else is read before it is needed. The data
    # can be read only once if it is an iterator itself, or if one of its partitions is.
    items = data if isinstance(data, list | tuple) else [data]
    once = any(isinstance(item, Iterator) for item in [data, *items])
    return FeedSource(partial(_partition_pieces, data), once=once)


def pieces_of(data: Any, workers: int, epochs: int = 1) -> Generator[Piece]:
    """Return a generator of the pieces of the user's data, once for each epoch.

    A piece is read only when the generator is asked for it.

    Args:
        data: The data, in a form that this module accepts.
        workers: The number of tasks that will take the pieces. Data that can be cut anywhere is cut for them.
        epochs: The number of epochs, at least 1.

    Raises:
        InputError: This is not data, or it can be read only once for several epochs. For some forms of data
            the generator raises this, because only reading shows it.
    """
    source = source_of(data)
    if source.once and epochs > 1:
        raise refused(
            f"data that can be read only once (an iterator) for {epochs} epochs",
            "a list, arrays, files, or callables that read it; or one epoch",
        )
    # With a ``yield`` in this function, even its check would run only when the first piece is asked for.
    return (piece for _ in range(epochs) for piece in source.pieces(workers))


def source_of(data: Any) -> FeedSource:
    """Return the user's data as a source, which knows whether its items are rows or partitions.

    A partition is a group of rows that one task receives.

    - A `FeedSource`, as `rows`, `partitions` or `TextFiles` make it, says itself what it contains.
    - Arrays, a frame, or a tuple or dict of arrays are columns. Their rows lie along the first dimension.
    - A callable returns the rows of one partition.
    - Of an iterator or another iterable, the first item decides, when it is needed.
    - Of a list, tuple or range, the first item decides now: a row, or the rows of a partition.

    Args:
        data: What the user has passed to ``train`` or ``inference``.

    Raises:
        InputError: The data contains no rows, or can be understood in two ways.
    """
    if isinstance(data, FeedSource):
        return data
    if (block := columnar(data)) is not None:
        # Arrays stay where they are, so each epoch can cut them again. None: pieces of the default size.
        return FeedSource(partial(_split, block, size(block), None), once=False)
    if callable(data):
        return partitions([data])
    if not _is_many(data):
        expected = "a list, arrays, files, or partitions"
        # It may be meant as the name of a file.
        if isinstance(data, str | os.PathLike):
            expected = f"TextFiles(...) or its like for files; {expected}"
        raise refused(f"{_shown(data)} has no rows", expected)
    if not isinstance(data, list | tuple | range):
        # Its first item will show what it contains, and is not read before it is needed. An iterator can be
        # read only once, so it has rows for a single epoch.
        return FeedSource(partial(_iterable_pieces, data), once=isinstance(data, Iterator))
    if not data or is_row(data[0]):
        return rows(data)
    first = data[0]
    # A list of lists of tuples, dicts or lists can only mean partitions. A list of lists of numbers can be
    # rows of numbers, or partitions whose rows are numbers, so the user has to say which.
    is_plain_list = isinstance(first, list) and not (first and _is_structured(first[0]))
    if is_array(first) or is_plain_list:
        kind = "arrays" if is_array(first) else "lists"
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
        # The last call returns an empty list, which ends the iteration.
        return map(piece_of, iter(lambda: list(islice(iterator, per_partition)), []))
    return map(piece_of, groups_in_time(iterator))


def _partition_pieces(data: Iterable[Any], workers: int) -> Iterator[Piece]:
    """Yield the pieces of an iterable of partitions. An item such as `TextFiles` may yield several."""
    for item in data:
        if isinstance(item, FeedSource):
            yield from item.pieces(workers)
        else:
            yield piece_of(item)


def _iterable_pieces(data: Iterable[Any], workers: int) -> Iterator[Piece]:
    """Yield the pieces of an iterable, whose first item shows whether its items are rows or partitions.

    Args:
        data: The iterable. If it is empty, there are no pieces.
        workers: The number of workers.
    """
    iterator = iter(data)
    # The loop runs at most once, because its body reads the whole iterator.
    for first in iterator:
        items = chain([first], iterator)
        yield from _row_pieces(items, None, workers) if is_row(first) else _partition_pieces(items, workers)


def _split(data: Any, total: int, piece_rows: int | None, workers: int) -> Iterator[Piece]:
    """Yield pieces of a list or of arrays, each with the same number of rows. The last one may be shorter.

    Args:
        data: The list or arrays.
        total: The number of all rows.
        piece_rows: The number of rows in a piece. By default each worker receives several pieces.
        workers: The number of workers.
    """
    rows_each = piece_rows or max(1, math.ceil(total / (workers * PIECES_PER_WORKER)))
    return (piece_of(part(data, start, start + rows_each)) for start in range(0, total, rows_each))


def piece_of(item: Any) -> Piece:
    """Return one piece with all rows of an iterable, of arrays, or of a callable that returns them.

    Raises:
        InputError: The item has no rows.
    """
    if columnar(item) is None:
        if callable(item):
            # The task calls it. With equal batches the program does so, in ``blocks``.
            return Piece(lambda rows: blocks_of(item(), rows), repeatable=True, remote=item)
        if not _is_many(item):
            raise refused(f"{_shown(item)} as a partition", "an iterable of rows, arrays, or a callable")
    return Piece(partial(blocks_of, item), repeatable=not isinstance(item, Iterator))


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
    """Return whether the first item of an inner list shows that the items of this list are rows.

    Args:
        value: The first item. A tuple, dict or list is a row. A number, a text or an array may be a row, or
            one value of a row.
    """
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


def groups(rows: Iterator[Any], group_bytes: int) -> Iterator[list[Any]]:
    """Yield all rows in lists of about this many bytes. Each list waits until it is full.

    Args:
        rows: The rows.
        group_bytes: About how many bytes a list contains. The last one may be smaller.
    """
    group: list[Any] = []
    for is_full in _fill(group, rows, group_bytes):
        if is_full:
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
            # After a second without a full group, the rows that have come are enough. Without any row, the
            # wait is repeated.
            if not (reading.is_ready.wait(_GROUP_SECONDS) or reading.group or reading.has_ended):
                continue
            # This is read before the rows are taken, because more may come until then.
            has_ended = reading.has_ended
            # The call fails, so rows that came before the error are of no use.
            if has_ended and reading.error is not None:
                raise reading.error
            if group := reading.take():
                yield group
            if has_ended:
                return
    finally:
        reading.stop()


class _ReadAhead:
    """Reads rows in a thread of its own, at most one group ahead, while another thread takes them.

    Args:
        rows: The rows. Iterating may run code of the user.
    """

    def __init__(self, rows: Iterator[Any]) -> None:
        """Prepare to read rows. Reading starts when `run` is called in a thread of its own."""
        self._rows = rows
        #: The rows that can be taken. One thread appends to it and another one empties it, without a lock for
        #: speed.
        self.group: deque[Any] = deque()
        #: Set when the group is full, and when no more rows come.
        self.is_ready = threading.Event()
        #: Set when a full group was taken, for which the reading thread waits, and when it is to stop.
        self._was_taken = threading.Event()
        #: Set when no more rows are wanted.
        self._should_stop = threading.Event()
        #: Whether no more rows come.
        self.has_ended = False
        #: The exception that has ended the reading, or None if the rows are simply at their end.
        self.error: Exception | None = None

    def run(self) -> None:
        """Read all rows, in the thread of this object."""
        _, self.error = run_user_code(self._read)
        self.has_ended = True
        self.is_ready.set()

    def _read(self) -> None:
        """Append rows to the group until no more come. A full group waits until it was taken."""
        for is_full in _fill(self.group, self._rows, GROUP_BYTES):
            if is_full:
                # In this order no `take` between the two is missed: it comes after `is_ready` is set.
                self._was_taken.clear()
                self.is_ready.set()
                self._was_taken.wait()
            if self._should_stop.is_set():
                return

    def take(self) -> list[Any]:
        """Return the rows that have come, and let the thread read on."""
        # The thread may append further rows at this moment, so the deque must not be copied and cleared.
        rows = [self.group.popleft() for _ in range(len(self.group))]
        self.is_ready.clear()
        self._was_taken.set()
        return rows

    def stop(self) -> None:
        """Let the thread end. It does so when the user's iterator has returned its next row."""
        self._should_stop.set()
        # The thread may wait until a full group is taken.
        self._was_taken.set()


def _fill(group: list[Any] | deque[Any], rows: Iterator[Any], group_bytes: int) -> Iterator[bool]:
    """Append rows to a group, and yield after each step whether the group is full.

    Measuring a row is slow. So only the first row of each step is measured, and steps become longer. The
    caller must empty a full group before it continues.

    Args:
        group: The group, which is changed.
        rows: The rows.
        group_bytes: About how many bytes a full group contains. A group of `_MAX_GROUP_ROWS` rows is full as
            well.
    """
    # The bytes of the group, as far as they are known, and the number of rows in the next step.
    weight, step_rows = 0, 1
    for row in rows:
        group.append(row)
        row_bytes = max(1, _weight(row))
        # The other rows of the step probably have the same size, and must fit into the group.
        more_rows = max(0, min(step_rows, (group_bytes - weight) // row_bytes) - 1)
        group.extend(islice(rows, more_rows))
        weight += (1 + more_rows) * row_bytes
        step_rows = min(2 * step_rows, _MAX_STEP_ROWS)
        is_full = weight >= group_bytes or len(group) >= _MAX_GROUP_ROWS
        yield is_full
        # The caller has emptied the group. The next rows may have another size.
        if is_full:
            weight, step_rows = 0, 1


def _weight(row: Any) -> int:
    """Return the number of bytes of a row as a pickle, or an estimate if it cannot be pickled plainly."""
    try:
        return len(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))
    except Exception:  # noqa: BLE001 - classes of the user can raise anything
        # Its size is unknown. By this estimate `_MAX_STEP_ROWS` such rows make a full group.
        return GROUP_BYTES // _MAX_STEP_ROWS


# Equal numbers of batches.


def rounds(
    pieces: Generator[Piece], workers: int, batch_size: int, equal: str
) -> Generator[tuple[Block, ...]]:
    """Yield rounds of equal batches: each contains exactly ``batch_size`` rows for each worker.

    Workers that reduce gradients together need this: if one of them had a batch less, the others would never
    stop waiting for it. The rows that are left at the end are too few for a round, and ``equal`` decides
    whether they are dropped or the round is filled up. All rows are read in the program, not in the tasks.

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
    round_rows = workers * batch_size
    #: The rows from the beginning of the data, for ``repeat``.
    first: Block | None = None
    #: The rows that have come since the last round.
    rest: list[Block] = []

    def round_of(block: Block) -> tuple[Block, ...]:
        """Return the first rows of a block as one round: a block of ``batch_size`` rows for each worker."""
        return tuple(part(block, start, start + batch_size) for start in range(0, round_rows, batch_size))

    with closing(pieces):
        # No block contains more rows than a round, so each block completes at most one.
        for block in chain.from_iterable(piece.blocks(lambda: round_rows) for piece in pieces):
            rest.append(block)
            if (rows := sum(map(size, rest))) >= round_rows:
                joined = join(rest)
                rest = [part(joined, round_rows, rows)] if rows > round_rows else []
                first = joined if first is None else first
                yield round_of(joined)
    # From here on, `rest` contains the rows left at the end, fewer than a round.
    rows = sum(map(size, rest))
    if equal == "drop" and rows and first is None:
        raise refused(f"{rows} rows for {workers} batches of {batch_size}", "more, or 'pad' or 'repeat'")
    if equal == "drop" or not rows:
        return
    last = join(rest)
    # For ``repeat``, the beginning of the data. All of the data may be shorter than a round.
    filler = last if first is None else first
    if equal == "pad":
        filler = part(last, rows - 1, rows)
    # A filler that is shorter than what is missing is appended several times.
    filled = [last]
    while (missing := round_rows - sum(map(size, filled))) > 0:
        filled.append(part(filler, 0, missing))
    yield round_of(join(filled))

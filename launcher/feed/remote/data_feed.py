"""`DataFeed`, as TensorFlowOnSpark has it: the function of a task reads rows from it, and gives it results.

`dataset` makes a ``tf.data.Dataset`` of the same rows, and only then imports TensorFlow. This module travels
to the tasks. It gets rows by `launcher.feed.remote.frames` only from a driver that has the key of the job.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Callable

from launcher.common import arguments
from launcher.common.arguments import Arguments
from launcher.feed.remote import codec, frames
from launcher.feed.remote.codec import Block
from launcher.feed.remote.columns import columns, named_columns
from launcher.feed.remote.connection import Connect, FeedConnection

# Progress within one chunk is reported so often, and at least when so many bytes were taken.
_REPORT_SECONDS = 1.0
_MAX_UNREPORTED_BYTES = 3 << 19
# The code of a partition is asked for so many rows at a time.
_CODE_ROWS = 1024
#: The feeds that this process has opened, by ``connect`` and name. Two `DataFeed` of one feed share its rows.
_OPENED_FEEDS: dict[tuple[Connect, str], FeedReader] = {}
_OPENING_LOCK = threading.Lock()


class DataFeed:
    """Rows that the driver feeds, in batches.

    ::

        feed = ctx.get_data_feed()
        while not feed.should_stop():
            batch = feed.next_batch(100)

    Rows count as consumed when the next batch is asked for, or `should_stop` has returned that there is none:
    until then they are fed again, to this task or another one, if this one dies.

    Args:
        connect: Connects to the driver.
        train_mode: Has no effect: in an inference a batch ends with its partition in any case.
        qname_in: The name of the feed, as in the driver's ``train(qname=...)``.
        qname_out: Has no effect: results go back on the feed that the rows came from.
        input_mapping: ``{column: name}``: batches are then dicts, ``{name: values}``; see
            `launcher.api.remote.node.TFNodeContext.get_data_feed`.
    """

    def __init__(
        self,
        connect: Callable[[str], socket.socket],
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.train_mode = train_mode
        self.qname_in = qname_in
        self.qname_out = qname_out
        self.input_mapping = None if input_mapping is None else dict(input_mapping)
        self._connect = connect

    def next_batch(self, batch_size: int) -> Any:
        """Return the next rows.

        Waits until there are so many. Fewer come at the end of the feed, when the driver has nothing more to
        feed for the moment, and at the end of a partition of inference; none only at the end of the feed.

        Args:
            batch_size: The number of rows.

        Returns:
            A list of rows. With an ``input_mapping`` a dict of columns: lists, or arrays if arrays were fed.

        Raises:
            FeedError: The driver is gone.
            InputError: ``batch_size`` is not a whole number.
            ValueError: ``batch_size`` is less than 1.
        """
        if type(batch_size) is not int:  # as it is for each of many batches
            found = Arguments("next_batch")
            batch_size = found.read("batch_size", batch_size, arguments.whole(1))
            found.check()
        if batch_size < 1:
            raise ValueError(f"next_batch({batch_size}): a batch has at least one row")
        blocks = self.next_blocks(batch_size)
        if self.input_mapping is not None:
            return named_columns(blocks, self.input_mapping)
        if len(blocks) == 1:
            return codec.as_rows(blocks[0])
        return [row for block in blocks for row in codec.as_rows(block)]

    def next_blocks(self, rows: int) -> list[Block]:
        """Return the next rows in the form in which they came.

        Args:
            rows: How many; waits for them as `next_batch` does.

        Returns:
            Blocks of so many rows together: lists of rows, arrays (rows are their first dimension), tuples or
            dicts of such arrays.

        Raises:
            FeedError: The driver is gone.
        """
        return self._reader().batch(rows)

    def should_stop(self) -> bool:
        """Return whether there is nothing more to ask for.

        Returns:
            ``True``: the feed has ended, or `terminate` was called. ``False``: there may be more rows; the
            next batch can still be empty.
        """
        return self._reader().poll_end()

    def batch_results(self, results: Iterable[Any]) -> None:
        """Give the results of rows, in their order, one for each.

        Args:
            results: An iterable, such as a list or an array with the results in its first dimension.

        Raises:
            InputError: This is not iterable.
            ValueError: There are more than rows were handed out.
            FeedError: The driver is gone, or the results cannot be sent to it.
        """
        if not isinstance(results, Iterable) or getattr(results, "shape", None) == ():
            expected = "a list with one result for each row"
            raise codec.refused(f"batch_results({arguments.shown(results)})", expected)
        self._reader().give(results if isinstance(results, list) else list(results))

    def terminate(self) -> None:
        """End the feed of this task: no more rows are fed to it, and those on the way are dropped."""
        self._reader().terminate()

    def _reader(self) -> FeedReader:
        """Return the reader of this feed, which connects when it is needed first."""
        key = (self._connect, self.qname_in)
        with _OPENING_LOCK:
            if key not in _OPENED_FEEDS:
                _OPENED_FEEDS[key] = FeedReader(*key)
            return _OPENED_FEEDS[key]


def end_all() -> None:
    """End all feeds of this process, when the function of its task has returned."""
    for reader in list(_OPENED_FEEDS.values()):
        reader.terminate(frames.RETURNED)
        reader.close()


class FeedReader:
    """Rows of a feed in its task, from the frames that come.

    After a break all chunks of the broken connection are void: the driver feeds the partitions that are not
    acknowledged again. The methods are called by one thread at a time.

    Args:
        connect: Connects to the driver.
        feed: The name of the feed.
    """

    def __init__(self, connect: Connect, feed: str) -> None:
        self.feed = feed
        self._connection = FeedConnection(connect, feed)
        # The connection of the present chunk, the number of the chunk on it, and that of the last consumed
        # one.
        self._current = self._number = self._consumed = 0
        # The rest of the chunk: a block of ``_size`` rows, of which those before ``_at`` were handed out.
        self._block: Block = []
        self._at = self._size = 0
        # Further blocks of the chunk.
        self._blocks: Iterator[Block] = iter(())
        # When progress was last reported, and how many bytes were taken since.
        self._reported, self._unreported = 0.0, 0
        # How many rows were handed out in all, how many results were given in all, and how many are missing
        # for rows of broken connections.
        self._given = self._returned = self._stale = 0

    def batch(self, rows: int) -> list[Block]:
        """Return blocks of so many rows together.

        There are fewer at the end of the feed, and where the driver ends a batch. All rows handed out before
        count as consumed. This is reported with the next chunk, or once a second.

        Raises:
            FeedError: The driver is gone, or the rows cannot be read.
        """
        self._sync(self._connection.number)
        self._consumed = max(self._consumed, self._number - 1)
        blocks: list[Block] = []
        while rows and self._has_rows(has_begun=bool(blocks)):
            stop = min(self._at + rows, self._size)
            blocks.append(codec.part(self._block, self._at, stop))
            rows -= stop - self._at
            self._given += stop - self._at
            self._at = stop
        if time.monotonic() - self._reported > _REPORT_SECONDS:
            self._report()
        return blocks

    def poll_end(self) -> bool:
        """Return whether there are no more rows, as far as is known without waiting."""
        self._sync(self._connection.number)
        return self._connection.has_ended

    def give(self, results: list[Any]) -> None:
        """Send results of rows, in their order.

        Raises:
            ValueError: There are more than rows were handed out.
            FeedError: The driver is gone, or the results cannot be sent.
        """
        self._sync(self._connection.number)
        if self._returned + len(results) > self._given:
            raise ValueError(
                f"{self._returned + len(results):,} results for {self._given:,} rows of the feed "
                f"{self.feed!r}: batch_results takes one for each row"
            )
        self._returned += len(results)
        stale = min(self._stale, len(results))
        self._stale -= stale
        if results := results[stale:]:
            buffers = codec.encode(results, by_name=True)
            frames.check_size(buffers, f"{len(results):,} results")
            self._connection.send(self._current, frames.Kind.RESULTS, buffers)

    def terminate(self, reason: bytes = frames.UNWANTED) -> None:
        """Drop the rows that are here, and ask for no more. The driver gets the reason."""
        if not self._connection.has_ended:
            self._drop()
            self._connection.terminate(self._current, reason)

    def close(self) -> None:
        """End the connection and its thread."""
        self._connection.close()

    def _sync(self, connection: int) -> None:
        """Drop the rows of any connection but this one, or of a feed that has ended."""
        if self._current != connection:
            self._current = connection
            self._stale = self._given - self._returned
            self._number = self._consumed = 0
            self._drop()
        if self._connection.has_ended:
            self._drop()

    def _drop(self) -> None:
        self._at = self._size = 0
        self._block, self._blocks = [], iter(())

    def _has_rows(self, *, has_begun: bool) -> bool:
        """Wait for rows, unless a batch has begun and ends here. Returns whether there are some."""
        while self._at == self._size:
            if (block := next(self._blocks, None)) is not None:
                self._block, self._at, self._size = block, 0, codec.size(block)
                continue
            if not has_begun:
                self._consumed = self._number
            if not (self._connection.has_frame or self._connection.has_ended):
                self._report(frames.Kind.HUNGRY)
            connection, frame = self._connection.next_frame(self._current)
            self._sync(connection)
            kind, buffers = frame or (0, [])
            if self._connection.has_ended or (has_begun and kind == frames.Kind.FLUSH):
                return False
            if kind in (frames.Kind.ROWS, frames.Kind.CODE):
                self._number += 1
                self._blocks = self._blocks_of(kind, buffers)
                self._unreported += sum([len(buffer) for buffer in buffers])
                if self._unreported > _MAX_UNREPORTED_BYTES or kind == frames.Kind.CODE:
                    self._report()
        return True

    def _blocks_of(self, kind: int, buffers: Sequence[memoryview]) -> Iterator[Block]:
        content = codec.decode(buffers)
        if kind == frames.Kind.ROWS:
            yield content
            return
        rows = 0
        for block in codec.blocks_of(content(), lambda: _CODE_ROWS):
            rows += codec.size(block)
            yield block
        numbers = frames.pack_numbers(self._number, rows)
        self._connection.send(self._current, frames.Kind.COUNTED, [numbers])

    def _report(self, kind: frames.Kind = frames.Kind.PROGRESS) -> None:
        self._reported, self._unreported = time.monotonic(), 0
        self._connection.send(self._current, kind, [frames.pack_numbers(self._number, self._consumed)])


def dataset(feed: DataFeed, output_signature: Any, batch_size: int) -> Any:
    """Make a ``tf.data.Dataset`` of the rows that come from now on, in batches. The last one may be shorter.

    A second iteration goes on where the first one stopped: it finds nothing after the end of the feed. The
    driver repeats epochs.

    Args:
        feed: The feed of this task.
        output_signature: The signature of one row: a ``tf.TensorSpec``, or a tuple or dict of them. A
            dimension of ``None`` may differ between batches, not within one.
        batch_size: The number of rows in a batch.

    Raises:
        InputError: The signature is something else. While iterating, if a row does not fit the signature.
    """
    import tensorflow as tf  # noqa: PLC0415 - the user's, in the task

    batched = tf.nest.map_structure(partial(_batched, tf), output_signature)

    def batches() -> Iterator[Any]:
        while not feed.should_stop():
            if blocks := feed.next_blocks(batch_size):
                yield columns(codec.join(blocks), output_signature)

    return tf.data.Dataset.from_generator(batches, output_signature=batched)


def _batched(tf: Any, spec: Any) -> Any:
    """Return the specification of a batch of values with a specification of TensorFlow."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        raise codec.refused(
            f"output_signature has {spec!r}", "tf.TensorSpec, of known rank, for each value of a row"
        )
    return tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name)

"""``DataFeed``: the function of a task reads rows from it and returns results by it, as in TensorFlowOnSpark.

`dataset` makes a ``tf.data.Dataset`` of the same rows, and only then imports TensorFlow. This module travels
to the tasks. Rows count as consumed only when the function asks for the next ones, so that none is lost with
a task.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Callable

from launcher.common import arguments
from launcher.common.arguments import Arguments
from launcher.feed.remote import codec, frames
from launcher.feed.remote.codec import Block
from launcher.feed.remote.columns import columns, named_columns
from launcher.feed.remote.connection import Connect, FeedConnection
from launcher.feed.remote.outputs import OutputFile, OutputPartition

# How often progress is reported while a function reads one chunk.
_REPORT_SECONDS = 1.0
# Progress is also reported when chunks of this size were taken since the last report.
_MAX_UNREPORTED_BYTES = 3 << 19
# How many rows the code of a partition is asked for at a time.
_CODE_ROWS = 1024
#: The feeds that this process has opened, by ``connect`` and name. Two `DataFeed` objects of one feed share
#: its rows.
_OPENED_FEEDS: dict[tuple[Connect, str], FeedReader] = {}
_OPENING_LOCK = threading.Lock()


class DataFeed:
    """The rows that the program feeds, in batches. ``ctx.get_data_feed()`` returns one.

    ::

        feed = ctx.get_data_feed()
        while not feed.should_stop():
            batch = feed.next_batch(100)

    Rows count as consumed when the next batch is asked for, or when `should_stop` has returned that there is
    none. If the task dies before that, they are fed again, to this task or another one.

    Args:
        connect: Connects to the program.
        train_mode: Has no effect. In an inference a batch ends with its partition in any case.
        qname_in: The name of the feed, as in ``train(qname=...)`` of the program.
        qname_out: Has no effect. Results travel back on the feed of their rows.
        input_mapping: A dict ``{column: name}``. Batches are then dicts ``{name: values}``, see
            `launcher.TFNodeContext.get_data_feed`.
    """

    def __init__(
        self,
        connect: Callable[[str], socket.socket],
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the arguments. The feed is opened when rows are first asked for."""
        self.train_mode = train_mode
        self.qname_in = qname_in
        self.qname_out = qname_out
        self.input_mapping = None if input_mapping is None else dict(input_mapping)
        self._connect = connect

    def next_batch(self, batch_size: int) -> Any:
        """Return the next rows, and wait until there are enough of them.

        A batch is shorter at the end of the feed, when the program has nothing more to feed for the moment,
        and at the end of a partition of inference. It is empty only at the end of the feed.

        Args:
            batch_size: The number of rows, at least 1.

        Returns:
            A list of rows. With an ``input_mapping`` it is a dict of columns, which are lists, or arrays if
            arrays were fed.

        Raises:
            FeedError: The program is gone.
            InputError: ``batch_size`` is not a whole number, or the rows do not have the columns of
                ``input_mapping``.
            ValueError: ``batch_size`` is less than 1.
        """
        if type(batch_size) is not int:  # a plain int is not checked, to save time in each batch
            checked = Arguments("next_batch")
            batch_size = checked.read("batch_size", batch_size, arguments.whole(1))
            checked.check()
        if batch_size < 1:
            raise ValueError(f"next_batch({batch_size}): a batch has at least one row")
        blocks = self.next_blocks(batch_size)
        if self.input_mapping is not None:
            return named_columns(blocks, self.input_mapping)
        # Most batches are one block, whose list need not be copied.
        if len(blocks) == 1:
            return codec.as_rows(blocks[0])
        return [row for block in blocks for row in codec.as_rows(block)]

    def next_blocks(self, rows: int) -> list[Block]:
        """Return the next rows in the form in which they came, without making a Python object of each row.

        Args:
            rows: The number of rows. This waits for them as `next_batch` does.

        Returns:
            Blocks that contain the rows: lists of rows, arrays with the rows along their first dimension, or
                tuples or dicts of such arrays.

        Raises:
            FeedError: The program is gone.
        """
        return self._reader().batch(rows)

    def should_stop(self) -> bool:
        """Return whether there are no more rows to ask for.

        Returns:
            True if the feed has ended, or `terminate` was called. False if there may be more rows, although
            the next batch can still be empty.
        """
        return self._reader().poll_end()

    def batch_results(self, results: Iterable[Any]) -> None:
        """Return the results of rows to the program, one for each row, in the order of the rows.

        ::

            feed.batch_results([row * 2 for row in batch])

        Args:
            results: The results: a list or another iterable, or an array with the results along its first
                dimension.

        Raises:
            InputError: ``results`` is not iterable.
            ValueError: There are more results than rows were read.
            FeedError: The program is gone, or the results cannot be sent to it.
        """
        # An array without dimensions has the methods of an iterable, and cannot be iterated.
        if not isinstance(results, Iterable) or getattr(results, "shape", None) == ():
            expected = "a list with one result for each row"
            raise codec.refused(f"batch_results({arguments.shown(results)})", expected)
        self._reader().give(results if isinstance(results, list) else list(results))

    def terminate(self) -> None:
        """Ask for no more rows of this feed. Those that are on the way to this task are dropped."""
        self._reader().terminate()

    def _reader(self) -> FeedReader:
        """Return the reader of this feed, which connects when it is first needed."""
        key = (self._connect, self.qname_in)
        with _OPENING_LOCK:
            if key not in _OPENED_FEEDS:
                _OPENED_FEEDS[key] = FeedReader(*key)
            return _OPENED_FEEDS[key]


def end_all() -> None:
    """Close all feeds of this process, when the function of its task has returned."""
    for reader in list(_OPENED_FEEDS.values()):
        # The program is told why this task accepts no more rows.
        reader.terminate(frames.RETURNED)
        reader.close()


class FeedReader:
    """Cuts batches from the frames of one feed, and reports which rows the function has read.

    When a connection breaks, its chunks no longer count, because the program feeds their partitions again.
    The methods are called by one thread at a time.

    Args:
        connect: Connects to the program.
        feed: The name of the feed.
    """

    def __init__(self, connect: Connect, feed: str) -> None:
        """Open a feed, of which nothing was read."""
        self.feed = feed
        self._connection = FeedConnection(connect, feed)
        #: The number of the connection of the present chunk.
        self._current = 0
        #: The number of the present chunk on its connection.
        self._number = 0
        #: The number of the last consumed chunk.
        self._consumed = 0
        #: The block from which rows are read. It has `_size` rows, and the function has read the first `_at`.
        self._block: Block = []
        self._at = self._size = 0
        #: Further blocks of the chunk.
        self._blocks: Iterator[Block] = iter(())
        #: When progress was last reported.
        self._reported_at = 0.0
        #: How many bytes of chunks have come since then.
        self._unreported_bytes = 0
        #: How many rows the function has read in all.
        self._rows_read = 0
        #: How many results it has returned in all.
        self._returned = 0
        #: How many of the missing results are not wanted, because their rows are fed again.
        self._stale = 0
        #: The partitions whose results are stored here as files, and are not all there. The oldest is first.
        self._outputs: deque[OutputFile] = deque()

    def batch(self, rows: int) -> list[Block]:
        """Return blocks with the given number of rows together.

        There are fewer rows at the end of the feed, and where the program ends a batch. All rows of earlier
        batches count as consumed. This is reported with the next chunk, or once a second.

        Args:
            rows: The number of rows.

        Raises:
            FeedError: The program is gone, or the rows cannot be read.
        """
        # Rows of a connection that has broken since the last batch must not be in this one.
        self._sync(self._connection.number)
        # The function is done with earlier batches, so with all chunks before the present one.
        self._consumed = max(self._consumed, self._number - 1)
        blocks: list[Block] = []
        while rows and self._has_rows(has_begun=bool(blocks)):
            stop = min(self._at + rows, self._size)
            blocks.append(codec.part(self._block, self._at, stop))
            rows -= stop - self._at
            self._rows_read += stop - self._at
            self._at = stop
        self._report_in_time()
        return blocks

    def poll_end(self) -> bool:
        """Return whether there are no more rows, as far as this is known without waiting."""
        # If the connection has broken or the feed has ended, this drops the rows that were not read.
        self._sync(self._connection.number)
        return self._connection.has_ended

    def give(self, results: list[Any]) -> None:
        """Send results to the program, in the order of their rows.

        Results of rows that came by a broken connection are dropped, because those rows are fed again.

        Args:
            results: The results of the oldest rows that have none.

        Raises:
            ValueError: There are more results than rows were read.
            FeedError: The program is gone, or the results cannot be sent.
        """
        # If the connection has broken since the rows were read, this counts their results as stale.
        self._sync(self._connection.number)
        if self._returned + len(results) > self._rows_read:
            raise ValueError(
                f"{self._returned + len(results):,} results for {self._rows_read:,} rows of the feed "
                f"{self.feed!r}: batch_results takes one for each row"
            )
        self._returned += len(results)
        # The first of them belong to rows of a broken connection, whose results are not wanted.
        stale = min(self._stale, len(results))
        self._stale -= stale
        results = results[stale:]
        while results:
            # The number of rows before that of the first of these results, and before the oldest file.
            before = self._returned - len(results)
            before_file = self._outputs[0].first if self._outputs else self._returned
            if before_file <= before:
                taken = self._outputs[0].add(results)
                # The program waits for the name of the file, and must not give up while its results come.
                self._report_in_time()
                self._store_complete()
            else:
                # Rows of an earlier call may come before those of the file.
                taken = before_file - before
                self._send_results(results[:taken])
            results = results[taken:]

    def _send_results(self, results: list[Any]) -> None:
        """Send results to the program.

        Raises:
            FeedError: They cannot be sent.
        """
        buffers = codec.encode(results, by_name=True)
        frames.check_size(buffers, f"{len(results):,} results")
        self._connection.send(self._current, frames.Kind.RESULTS, buffers)

    def _store_complete(self) -> None:
        """Store the files of which all results are there, and send their names in place of the results.

        Raises:
            StorageError: A file cannot be stored.
        """
        while self._outputs and self._outputs[0].is_complete:
            output = self._outputs[0]
            if output.rows:
                # The function is not waiting for rows meanwhile, which is what the program may believe.
                self._report()
                self._send_results([output.store(lambda size: self._report_in_time())])
            self._outputs.popleft().close()

    def terminate(self, reason: bytes = frames.UNWANTED) -> None:
        """Drop the rows that are here, and ask for no more.

        Args:
            reason: The reason for the program, `frames.UNWANTED` or `frames.RETURNED`.
        """
        if not self._connection.has_ended:
            self._drop()
            self._connection.terminate(self._current, reason)

    def close(self) -> None:
        """Close the connection, and end its thread."""
        self._connection.close()

    def _sync(self, connection: int) -> None:
        """Drop the rows of an earlier connection than this one, and all rows if the feed has ended.

        Args:
            connection: The number of the present connection.
        """
        if self._current != connection:
            self._current = connection
            # The results of all rows that were read so far are of no use any longer.
            self._stale = self._rows_read - self._returned
            self._number = self._consumed = 0
            self._drop()
        if self._connection.has_ended:
            self._drop()

    def _drop(self) -> None:
        """Drop the rows of the present chunk that the function has not read, and incomplete files."""
        self._at = self._size = 0
        self._block, self._blocks = [], iter(())
        while self._outputs:
            # Their partitions are done again, by this task or another one.
            self._stale = self._rows_read - self._returned
            self._outputs.pop().close()

    def _has_rows(self, *, has_begun: bool) -> bool:
        """Make the next block with rows the present one, and wait for it if necessary.

        A chunk (the rows of one frame) consists of one or more blocks. If the present block has unread rows,
        nothing happens.

        Args:
            has_begun: Whether the batch already contains rows. In this case a FLUSH of the program ends it.

        Returns:
            Whether there are rows. False if the batch or the feed ends here.
        """
        # This is repeated after blocks without rows, after a FLUSH before any row, and after a break.
        while self._at == self._size:
            if (block := next(self._blocks, None)) is not None:
                self._block, self._at, self._size = block, 0, codec.size(block)
                continue
            # The present chunk is read to its end, and so its rows belong to earlier batches, which the
            # function is done with. Otherwise some may be in this batch, and a lost task must get them again.
            if not has_begun:
                self._consumed = self._number
            # The next call will wait for the program.
            if not (self._connection.has_frame or self._connection.has_ended):
                self._report(frames.Kind.HUNGRY)
            connection, frame = self._connection.next_frame(self._current)
            # If the connection has broken, this drops what came by it.
            self._sync(connection)
            # Without a frame the connection has broken, and the loop continues with the next one.
            kind, buffers = frame or (0, [])
            if self._connection.has_ended or (has_begun and kind == frames.Kind.FLUSH):
                return False
            if kind in (frames.Kind.ROWS, frames.Kind.CODE):
                self._number += 1
                self._blocks = self._blocks_of(kind, buffers)
                self._unreported_bytes += sum([len(buffer) for buffer in buffers])
                # The program sends more only after it is told what was read. Code counts much for its limit.
                if self._unreported_bytes > _MAX_UNREPORTED_BYTES or kind == frames.Kind.CODE:
                    self._report()
        return True

    def _blocks_of(self, kind: int, buffers: Sequence[memoryview]) -> Iterator[Block]:
        """Yield the rows of a chunk in blocks. If the chunk is code, run it and report the number of rows.

        Args:
            kind: The kind of the frame that contains the chunk, ROWS or CODE.
            buffers: The content of the frame.
        """
        content = codec.decode(buffers)
        if kind == frames.Kind.ROWS:
            yield content
            return
        # The content is a function of the user or of ours, which returns the rows of a partition.
        output = None
        if isinstance(content, OutputPartition):
            output = OutputFile(content, self._rows_read)
            self._outputs.append(output)
        rows = 0
        for block in codec.blocks_of(content(), lambda: _CODE_ROWS):
            rows += codec.size(block)
            yield block
        if output is not None:
            # For the program, the name of the file is the only result.
            output.rows, rows = rows, min(rows, 1)
        numbers = frames.pack_numbers(self._number, rows)
        self._connection.send(self._current, frames.Kind.COUNTED, [numbers])
        self._store_complete()

    def _report_in_time(self) -> None:
        """Tell the program how far the function is, at most once a second."""
        if time.monotonic() - self._reported_at > _REPORT_SECONDS:
            self._report()

    def _report(self, kind: frames.Kind = frames.Kind.PROGRESS) -> None:
        """Tell the program which chunks were read and consumed.

        Args:
            kind: PROGRESS, or HUNGRY if the function also waits for rows.
        """
        self._reported_at, self._unreported_bytes = time.monotonic(), 0
        self._connection.send(self._current, kind, [frames.pack_numbers(self._number, self._consumed)])


def dataset(feed: DataFeed, output_signature: Any, batch_size: int) -> Any:
    """Return the rows that come from now on as a ``tf.data.Dataset`` of batches.

    The last batch may be shorter. A second iteration continues where the first one stopped, so it finds
    nothing after the end of the feed. The program repeats epochs.

    Args:
        feed: The feed of this task.
        output_signature: The signature of one row: a ``tf.TensorSpec``, or a tuple or dict of them. A
            dimension of ``None`` may differ between batches, not within one.
        batch_size: The number of rows in a batch.

    Returns:
        The dataset. Each of its tensors has the shape ``[batch, *shape of a row]``.

    Raises:
        InputError: The signature is something else. While iterating, a row does not fit the signature.
    """
    import tensorflow as tf  # noqa: PLC0415 - the user's, in the task

    batched = tf.nest.map_structure(partial(_batched, tf), output_signature)

    def batches() -> Iterator[Any]:
        """Yield each batch as arrays in the structure of the signature, until the feed has ended."""
        while not feed.should_stop():
            if blocks := feed.next_blocks(batch_size):
                yield columns(codec.join(blocks), output_signature)

    return tf.data.Dataset.from_generator(batches, output_signature=batched)


def _batched(tf: Any, spec: Any) -> Any:
    """Return the ``tf.TensorSpec`` of a batch, whose first dimension is the number of rows.

    Args:
        tf: The module ``tensorflow``.
        spec: The ``tf.TensorSpec`` of one value.

    Raises:
        InputError: It is not a ``tf.TensorSpec`` of known rank.
    """
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        raise codec.refused(
            f"output_signature has {spec!r}", "tf.TensorSpec, of known rank, for each value of a row"
        )
    return tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name)

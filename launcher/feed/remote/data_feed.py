"""`DataFeed`, as TensorFlowOnSpark has it: a task's function reads its rows from it, and gives it results.

`dataset` gives the same rows as a ``tf.data.Dataset``; TensorFlow is imported when one is made.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.errors import FeedError
from launcher.feed.remote.codec import Block, as_rows, is_array, join, refused
from launcher.feed.remote.reader import Reader

#: The feeds that this process has opened, by ``connect`` and name: two `DataFeed` of one feed share its rows.
_OPENED: dict[tuple[Callable[[str], socket.socket], str], Reader] = {}
_OPENING = threading.Lock()


class DataFeed:
    """Rows that the driver feeds, in batches.

    ::

        feed = ctx.get_data_feed()
        while not feed.should_stop():
            batch = feed.next_batch(100)

    Rows count as consumed when the next batch is asked for, or `should_stop` has returned that there is none:
    until then they are fed again, to another task if this one dies.

    Args:
        connect: makes an authenticated connection for the feed of a name.
        train_mode: for compatibility; in an inference a batch ends with its partition, in any case.
        qname_in: the name of the feed, as in the driver's ``train(qname=...)``.
        qname_out: for compatibility; results go back on the feed that the rows came from.
        input_mapping: ``{column: name}``: batches are then dicts, ``{name: values}``. Columns of rows that
            are tuples, lists or arrays are taken in the order of the sorted column names, of dicts by name.
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
        self.input_mapping = dict(sorted(input_mapping.items())) if input_mapping is not None else None
        self._connect = connect
        self._closed = False

    def next_batch(self, batch_size: int) -> Any:
        """The next rows.

        Waits until there are so many. Fewer come at the end of the feed, when the driver has nothing more to
        feed for the moment, and at the end of a partition of inference; none only at the end of the feed.

        Args:
            batch_size: the number of rows.

        Returns:
            A list of rows. With an ``input_mapping`` a dict of columns: lists, or arrays if arrays were fed.

        Raises:
            FeedError: the driver is gone.
            ValueError: ``batch_size`` is less than 1.
        """
        if batch_size < 1:
            raise ValueError(f"next_batch({batch_size}): a batch has at least one row")
        blocks = self.next_blocks(batch_size)
        if self.input_mapping is not None:
            return _columns(blocks, self.input_mapping)
        if len(blocks) == 1:
            return as_rows(blocks[0])
        return [row for block in blocks for row in as_rows(block)]

    def next_blocks(self, rows: int) -> list[Block]:
        """The next rows in the form in which they came: lists, arrays, tuples or dicts of arrays."""
        return self._reader().batch(rows)

    def should_stop(self) -> bool:
        """Whether there is nothing more to ask for: the feed has ended, or `terminate` was called."""
        return self._reader().look_for_end()

    def batch_results(self, results: Iterable[Any]) -> None:
        """Give the results of rows, in their order, one for each.

        Raises:
            ValueError: there are more than rows were handed out.
            FeedError: the driver is gone, or the results cannot be sent to it.
        """
        self._reader().give(results if isinstance(results, list) else list(results))

    def terminate(self) -> None:
        """End the feed of this task: no more rows are fed to it, and those on the way are dropped."""
        self._reader().terminate()

    def close(self) -> None:
        """End the connection, for good. Rows that were not consumed are fed to other tasks."""
        self._closed = True
        reader = _OPENED.pop((self._connect, self.qname_in), None)
        if reader is not None:
            reader.close()

    def _reader(self) -> Reader:
        """The connection is made when it is needed first."""
        if self._closed:
            raise FeedError(f"feed {self.qname_in!r} was closed")
        key = (self._connect, self.qname_in)
        with _OPENING:
            if key not in _OPENED:
                _OPENED[key] = Reader(*key)
            return _OPENED[key]


def end_all() -> None:
    """End all feeds of this process, when the function of its task has returned."""
    while _OPENED:
        _, reader = _OPENED.popitem()
        reader.terminate(returned=True)
        reader.close()


def _columns(blocks: Sequence[Block], mapping: Mapping[str, str]) -> dict[str, Any]:
    """The rows of some blocks as one column for each name of an ``input_mapping``.

    Raises:
        FeedError: the rows do not have those columns.
    """
    if not blocks:
        return {name: [] for name in mapping.values()}
    block = join(blocks)
    if is_array(block) and len(mapping) == 1 and (block.ndim == 1 or block.shape[1] != 1):
        return dict.fromkeys(mapping.values(), block)  # whole rows
    by_name = isinstance(block[0] if isinstance(block, list) else block, Mapping)
    keys: Iterable[Any] = mapping if by_name else range(len(mapping))
    try:
        return {name: _column(block, key) for key, name in zip(keys, mapping.values())}
    except (KeyError, IndexError, TypeError) as error:
        raise FeedError(
            f"the rows fed do not have the columns {', '.join(mapping)} of the input_mapping: "
            f"{type(error).__name__}: {error}"
        ) from error


def _column(block: Block, key: Any) -> Any:
    """One column of a block of any form.

    Raises:
        KeyError, IndexError, TypeError: there is no such column.
    """
    if isinstance(block, (Mapping, tuple)):
        return block[key]
    return block[:, key] if is_array(block) else [row[key] for row in block]


def dataset(feed: DataFeed, output_signature: Any, batch_size: int) -> Any:
    """Batches of the rows that come from now on, as a ``tf.data.Dataset``; the last one may be shorter.

    A second iteration goes on where the first one stopped: it finds nothing after the end of the feed. The
    driver repeats epochs.

    Args:
        feed: of this task.
        output_signature: a ``tf.TensorSpec``, or a tuple or dict of them: that of one row. A dimension of
            ``None`` may differ between batches, not within one.
        batch_size: rows of a batch.

    Raises:
        InputError: the signature is something else; while iterating: a row does not fit it.
    """
    import tensorflow as tf

    batched = tf.nest.map_structure(_batched, output_signature)

    def batches() -> Iterator[Any]:
        while not feed.should_stop():
            if blocks := feed.next_blocks(batch_size):
                yield columns(join(blocks), output_signature)

    return tf.data.Dataset.from_generator(batches, output_signature=batched)


def columns(block: Block, signature: Any) -> Any:
    """The rows of a block as arrays, in the structure of a row's signature.

    Raises:
        InputError: a row does not fit the signature.
    """
    if not isinstance(signature, (Mapping, tuple, list)):
        return _array(block, signature)
    keys = list(signature) if isinstance(signature, Mapping) else range(len(signature))
    found = []
    for key in keys:
        try:
            column = _column(block, key)
        except (KeyError, IndexError, TypeError) as error:
            row = block if isinstance(block, (Mapping, tuple)) else block[0]
            text = f"no {key!r} in {str(row)[:80]} ({type(error).__name__}: {error})"
            raise refused(text, "rows as output_signature says") from error
        found.append(columns(column, signature[key]))
    return dict(zip(keys, found)) if isinstance(signature, Mapping) else tuple(found)


def _batched(spec: Any) -> Any:
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        raise refused(
            f"output_signature has {spec!r}", "tf.TensorSpec, of known rank, for each value of a row"
        )
    return tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name)


def _array(values: Sequence[Any], spec: Any) -> Any:
    """A column as one array."""
    import numpy

    kind = numpy.dtype(spec.dtype.as_numpy_dtype)
    try:
        array = numpy.asarray(values, kind)
        if not spec.shape.is_compatible_with(array.shape[1:]):
            raise ValueError(f"a row has the shape {array.shape[1:]}")
    except (ValueError, TypeError) as error:
        raise refused(f"rows are not {spec!r}: {error}", "rows as output_signature says") from error
    return array

"""`DataFeed`, as TensorFlowOnSpark has it: a task's function reads its rows from it, and gives it results."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from launcher.errors import FeedError
from launcher.feed.remote.blocks import as_rows, is_array, join
from launcher.feed.remote.reader import Reader

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from launcher.feed.remote.blocks import Block

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
        train_mode: ``False`` for inference: a batch ends with its partition.
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
        feed for the moment, and, in inference, at the end of a partition; none only at the end of the feed.

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
        return self._reader().batch(rows, by_partition=not self.train_mode)

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
            reader.receiver.close()

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
        reader.receiver.close()


def _columns(blocks: Sequence[Block], mapping: Mapping[str, str]) -> dict[str, Any]:
    """The rows of some blocks as one column for each name of an ``input_mapping``.

    Raises:
        FeedError: the rows do not have those columns.
    """
    if not blocks:
        return {name: [] for name in mapping.values()}
    block = join(blocks)
    names = list(mapping.values())
    try:
        if isinstance(block, dict):
            return {name: block[column] for column, name in mapping.items()}
        if isinstance(block, tuple):
            return {name: block[place] for place, name in enumerate(names)}
        if is_array(block):
            if len(names) == 1 and (block.ndim == 1 or block.shape[1] != 1):  # whole rows
                return {names[0]: block}
            return {name: block[:, place] for place, name in enumerate(names)}
        if isinstance(block[0], dict):
            return {name: [row[column] for row in block] for column, name in mapping.items()}
        return {name: [row[place] for row in block] for place, name in enumerate(names)}
    except (KeyError, IndexError, TypeError) as error:
        raise FeedError(
            f"the rows fed do not have the columns {', '.join(mapping)} of the input_mapping: "
            f"{type(error).__name__}: {error}"
        ) from error

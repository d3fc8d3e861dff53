"""What the function of a task reads its rows from, and gives results to: TensorFlowOnSpark's `DataFeed`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from launcher.feed.remote.blocks import as_rows
from launcher.feed.remote.codec import encode
from launcher.feed.remote.columns import columns
from launcher.feed.remote.frames import check_size
from launcher.feed.remote.intake import Intake
from launcher.feed.remote.supply import Supply

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from launcher.feed.remote.blocks import Block


class _Stream:
    """A feed that this process has opened, whoever reads from it."""

    def __init__(self, connect: Callable[[str], socket.socket], name: str) -> None:
        self.intake = Intake(connect, name)
        self.rows = Supply(self.intake)
        #: Results given.
        self.returned = 0


#: Those that are open, by how they connect and their name: two that are made for one feed share its rows.
_OPENED: dict[tuple[Callable[[str], socket.socket], str], _Stream] = {}
_OPENING = threading.Lock()


class DataFeed:
    """Rows that the driver feeds, in batches.

    ::

        feed = ctx.get_data_feed()
        while not feed.should_stop():
            batch = feed.next_batch(100)

    Rows count as consumed when the next batch is asked for, or `should_stop` has said that there is none:
    until then they are fed again to another task if this one dies.

    Args:
        connect: gives an authenticated connection for the feed of a name.
        train_mode: ``False`` for inference: a batch ends with its partition.
        qname_in: the name of the feed, as the driver's ``train(qname=...)`` has it.
        qname_out: there for compatibility; results go back on the feed that the rows came from.
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

    def next_batch(self, batch_size: int) -> Any:
        """The next rows.

        Waits until there are so many. Fewer come at the end of the feed, when the driver has nothing more to
        feed for the moment, and, in inference, at the end of a partition; none only at the end of the feed.

        Args:
            batch_size: how many rows.

        Returns:
            A list of rows. With an ``input_mapping`` a dict of columns: lists, or arrays if arrays were fed.

        Raises:
            FeedError: the driver is gone.
            ValueError: ``batch_size`` is less than 1.
        """
        if batch_size < 1:
            raise ValueError(f"next_batch({batch_size}): a batch has one row at least")
        pieces = self.next_blocks(batch_size)
        if self.input_mapping is not None:
            return columns(pieces, self.input_mapping)
        if len(pieces) == 1:
            return as_rows(pieces[0])
        return [row for piece in pieces for row in as_rows(piece)]

    def next_blocks(self, rows: int) -> list[Block]:
        """The next rows in the form in which they came: lists, arrays, tuples or dicts of arrays."""
        return self._stream().rows.batch(rows, by_partition=not self.train_mode)

    def should_stop(self) -> bool:
        """Whether there is nothing more to ask for: the feed has ended, or `terminate` was called."""
        return self._stream().rows.look_for_end()

    def batch_results(self, results: Iterable[Any]) -> None:
        """Give the results of rows, in their order, one for each.

        Raises:
            ValueError: there are more than rows were handed out.
            FeedError: the driver is gone, or the results can't be sent to it.
        """
        block = results if isinstance(results, list) else list(results)
        stream = self._stream()
        given = stream.rows.given
        if stream.returned + len(block) > given:
            raise ValueError(
                f"{stream.returned + len(block):,} results for {given:,} rows of the feed {self.qname_in!r}: "
                "batch_results takes one for each row"
            )
        if block:
            buffers = encode(block, named=True)
            check_size(buffers, f"{len(block):,} results")
            stream.returned += len(block)
            stream.intake.give(buffers, len(block))

    def terminate(self) -> None:
        """Say that no more rows are wanted: none are fed here, and those on the way are forgotten."""
        _terminate(self._stream())

    def close(self) -> None:
        """End the connection. What was not consumed is fed to others."""
        stream = _OPENED.pop((self._connect, self.qname_in), None)
        if stream is not None:
            stream.intake.close()

    def _stream(self) -> _Stream:
        """The connection is made when it is needed first."""
        key = (self._connect, self.qname_in)
        with _OPENING:
            if key not in _OPENED:
                _OPENED[key] = _Stream(*key)
            return _OPENED[key]


def end_all() -> None:
    """For when a task's function has returned: the feeds it opened want nothing more, and are closed."""
    while _OPENED:
        _, stream = _OPENED.popitem()
        _terminate(stream, returned=True)
        stream.intake.close()


def _terminate(stream: _Stream, returned: bool = False) -> None:
    if not stream.rows.ended:
        stream.rows.stop()
        stream.intake.terminate(returned)

"""The contents that a host asked for, as frames: read and shrunk once for all that ask for the same."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from launcher.luggage.walk import Tree
from launcher.model.luggage import CHUNK
from launcher.model.shrinking import can_squeeze, packed

#: Bytes of frames that are kept for the hosts that come later.
_KEPT = 64 * 1024 * 1024


class Segment(NamedTuple):
    """Part of a file."""

    tree: int
    #: Index of the file in the tree's manifest.
    entry: int
    offset: int
    size: int


class Parcel(NamedTuple):
    """A frame, and what is in it."""

    frame: bytes
    #: Bytes before they were shrunk.
    size: int


class _Order(NamedTuple):
    """What a parcel is to hold, and how it may be made."""

    segments: tuple[Segment, ...]
    squeeze: bool


class Parcels:
    """Makes and keeps them. For several threads.

    Args:
        trees: what travels.
    """

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._trees = trees
        self._lock = threading.Lock()
        self._made: OrderedDict[_Order, Future[bytes]] = OrderedDict()
        self._size = 0
        self._can_squeeze = can_squeeze()
        #: Shrinking takes a core, and some memory.
        self._shrinking = threading.BoundedSemaphore(os.cpu_count() or 1)

    def contents(self, tree: int, entries: Iterable[int], squeeze: bool = False) -> Iterator[Parcel]:
        """The contents of these entries of a tree, one after the other.

        Args:
            tree, entries: their numbers.
            squeeze: the host can unpack what is squeezed.
        """
        squeeze = squeeze and self._can_squeeze
        batch: list[Segment] = []
        room = CHUNK
        for index in entries:
            left = self._trees[tree].entries[index].size
            offset = 0
            while left:
                piece = min(left, room)
                batch.append(Segment(tree, index, offset, piece))
                left, offset, room = left - piece, offset + piece, room - piece
                if not room:
                    yield self._parcel(batch, squeeze)
                    batch, room = [], CHUNK
        if batch:
            yield self._parcel(batch, squeeze)

    def _parcel(self, batch: Sequence[Segment], squeeze: bool) -> Parcel:
        return Parcel(self._frame(_Order(tuple(batch), squeeze)), sum(segment.size for segment in batch))

    def _frame(self, order: _Order) -> bytes:
        with self._lock:
            made = self._made.get(order)
            mine = made is None
            if made is None:
                made = self._made[order] = Future()
            self._made.move_to_end(order)
        if mine:
            self._make(order, made)
        return made.result()

    def _make(self, order: _Order, made: Future[bytes]) -> None:
        try:
            with self._shrinking:
                frame = packed(b"".join(map(self._read, order.segments)), order.squeeze)
        except BaseException as error:
            made.set_exception(error)
            raise
        made.set_result(frame)
        with self._lock:
            self._size += len(frame)
            while self._size > _KEPT and len(self._made) > 1:
                oldest, future = next(iter(self._made.items()))
                if not future.done():
                    return
                del self._made[oldest]
                self._size -= len(future.result())

    def _read(self, segment: Segment) -> bytes:
        """What is there now. Zeros stand for what is missing: the host will tell by the digest."""
        tree = self._trees[segment.tree]
        path = tree.entries[segment.entry].path
        copied = tree.copies.read(path, segment.size, segment.offset) if tree.copies is not None else None
        if copied is not None:
            return copied
        data = b""
        try:
            fd = os.open(f"{tree.root}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return bytes(segment.size)
        try:
            data = os.pread(fd, segment.size, segment.offset)
        except OSError:
            pass
        finally:
            os.close(fd)
        return data.ljust(segment.size, b"\0")

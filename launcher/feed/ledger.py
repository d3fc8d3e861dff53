"""What is on the way to one task: chunks it has not begun with, has not consumed, or owes results for.

All of it is called by who holds the lock of the feeder.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from launcher.feed.remote.frames import Kind
from launcher.feed.remote.messages import ChunkHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.feed.flow import Flow
    from launcher.feed.remote.codec import Buffer
    from launcher.feed.remote.messages import Progress
    from launcher.feed.share import Made, Share


class Sent:
    """A chunk that is on its way, or not consumed yet."""

    __slots__ = ("buffers", "flow", "head", "left", "share", "weight")

    def __init__(self, head: ChunkHead, made: Made, flow: Flow, share: Share) -> None:
        self.head = head
        self.buffers: Sequence[Buffer] = made.buffers
        self.weight = made.weight
        self.flow = flow
        self.share = share
        #: Inference: results that are to come; ``None``: not known yet.
        self.left: int | None = None if made.remote else made.rows


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        #: Bytes that the task has not consumed, and those that it has not begun with.
        self.load = self.window = 0
        #: Partitions that are not all sent, by number.
        self.shares: dict[int, Share] = {}
        #: Chunks that are not consumed, oldest first.
        self.unconsumed: deque[Sent] = deque()
        #: Results that the task has given, in all.
        self.answers = 0
        #: Chunks made, in all.
        self.numbered = 0
        self._untaken: deque[Sent] = deque()
        self._cursor = 0
        self._answering: deque[Sent] = deque()

    @property
    def unanswered(self) -> int:
        """How many results of rows are to come, at least."""
        return sum([1 if sent.left is None else sent.left for sent in self._answering])

    def add(self, flow: Flow, share: Share, made: Made) -> None:
        """A chunk was made."""
        self.numbered += 1
        head = ChunkHead(self.numbered, share.number, made.rows, made.last, made.remote)
        sent = Sent(head, made, flow, share)
        share.sent(made)
        self.load += sent.weight
        self.window += sent.weight
        self._untaken.append(sent)
        self.unconsumed.append(sent)
        if share.inference and sent.left != 0:
            self._answering.append(sent)

    def to_send(self) -> tuple[Kind, Sequence[Buffer]] | None:
        """The next chunk that was not sent over the present connection."""
        if self._cursor == len(self._untaken):
            return None
        sent = self._untaken[self._cursor]
        self._cursor += 1
        return Kind.CHUNK, [sent.head.pack(), *sent.buffers]

    def reconnected(self, received: int) -> None:
        """There is a new connection, and the task has all chunks up to this one."""
        self._cursor = sum(1 for sent in self._untaken if sent.head.number <= received)

    def progressed(self, progress: Progress) -> None:
        """The task has come so far."""
        while self._untaken and self._untaken[0].head.number <= progress.taken:
            taken = self._untaken.popleft()
            taken.buffers = ()
            self.window -= taken.weight
            self._cursor = max(0, self._cursor - 1)
        while self.unconsumed and self.unconsumed[0].head.number <= progress.consumed:
            sent = self.unconsumed.popleft()
            self.load -= sent.weight
            sent.share.out -= 1
            sent.flow.settle(sent.share)

    def counted(self, chunk: int, rows: int) -> None:
        """Code that ran beside the task has made so many rows."""
        for sent in self.unconsumed:
            if sent.head.number == chunk and sent.head.remote and sent.left is None:
                sent.share.counted(rows)
                sent.left = rows - sent.share.answered
                sent.flow.settle(sent.share)
        self._drop_answered()

    def answered(self, first: int, results: list[object], size: int) -> None:
        """Results, numbered from ``first``: of the oldest rows without; those of `train` never have any."""
        results = results[max(0, self.answers - first) :]
        self.answers += len(results)
        while results and self._answering:
            sent = self._answering[0]
            some = results if sent.left is None else results[: sent.left]
            results = results[len(some) :]
            sent.left = None if sent.left is None else sent.left - len(some)
            sent.flow.answered(sent.share, some, size)
            size = 0
            self._drop_answered()

    def take_away(self, flow: Flow | None) -> list[tuple[Flow, Share]]:
        """Forget all.

        Args:
            flow: the present one.

        Returns:
            What the task had and did not consume, or owes results for; not what a thread is making more of.
        """
        left = {id(sent.share): (sent.flow, sent.share) for sent in (*self.unconsumed, *self._answering)}
        if flow is not None:
            left.update({id(share): (flow, share) for share in self.shares.values()})
        for some in (self.unconsumed, self._untaken, self._answering, self.shares):
            some.clear()
        self.load = self.window = self._cursor = 0
        return [(its, share) for its, share in left.values() if not share.busy]

    def _drop_answered(self) -> None:
        while self._answering and self._answering[0].left is not None and self._answering[0].left <= 0:
            self._answering.popleft()

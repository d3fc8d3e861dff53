"""The last bytes of each task's output, for the failure report."""

from __future__ import annotations

from collections import deque

from launcher.job import TaskId

#: More chunks than this are joined: a task that prints byte by byte costs no more than others.
_CHUNKS = 256


class Tails:
    """Keeps at least the last ``size`` bytes of each task; a chunk is kept or dropped as it is."""

    def __init__(self, size: int = 64 * 1024) -> None:
        self._size = size
        self._chunks: dict[TaskId, deque[bytes]] = {}
        self._sizes: dict[TaskId, int] = {}
        self._cut: dict[TaskId, bool] = {}

    def add(self, task: TaskId, data: bytes) -> None:
        """The task printed this."""
        chunks = self._chunks.setdefault(task, deque())
        chunks.append(data)
        size = self._sizes.get(task, 0) + len(data)
        while size - len(chunks[0]) >= self._size:
            size -= len(chunks.popleft())
            self._cut[task] = True
        if len(chunks) > _CHUNKS:
            self._chunks[task] = deque((b"".join(chunks),))
        self._sizes[task] = size

    def forget(self, task: TaskId) -> None:
        """Nobody will ask for it: it succeeded, or begins anew."""
        for kept in (self._chunks, self._sizes, self._cut):
            kept.pop(task, None)

    def tail(self, task: TaskId) -> tuple[bytes, bool]:
        """Its last bytes, at most ``size``, and whether there was more before them."""
        data = b"".join(self._chunks.get(task, ()))
        return data[-self._size :], self._cut.get(task, False) or len(data) > self._size

"""Bytes to stdout and stderr, in order, by one thread a file, so that nothing else waits for a reader."""

from __future__ import annotations

import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable

from launcher.errors import LaunchError

#: Bytes that a pipe takes as a whole or not at all.
_PIPE_BUF = 4096
#: Queued chunks are joined up to this many bytes for one ``write``.
_JOINED = 1 << 20
#: Seconds between two looks of a thread whose reader takes nothing, and between two looks of `Writer.flush`.
_LOOK = 0.05
#: A queue this many times its capacity drops lines: its producer does not heed `Writer.full`.
_FAR_TOO_MUCH = 16


class Writer:
    """A bounded queue and a daemon thread for each file that is written to.

    While a queue is `full` its producer must bring no output (the agents hold it): so no line is lost. After
    `hurry` a full queue drops lines, and a notice says how many. Only `flush` waits for a reader.

    Args:
        logs: the folder of the complete output, for the notice; empty if there is none.
        notice: makes the notice from the numbers of lines and bytes.
        capacity: bytes that may wait for one reader.
    """

    #: Seconds of `flush`: in all, without progress, after `hurry`, for urgent lines after that.
    TOTAL, IDLE, HURRIED, URGENT = 30.0, 2.0, 1.0, 1.0

    def __init__(
        self, logs: str = "", notice: Callable[[int, int], bytes] | None = None, capacity: int = 4 << 20
    ) -> None:
        self._notice = notice or (lambda lines, size: _notice(lines, size, logs))
        self._capacity = capacity
        self._changed = threading.Condition()
        self._files: dict[object, _File] = {}
        self._of_fd: dict[int, _File] = {}
        self._hurried = False
        self._given_up = False

    def write(self, fd: int, data: bytes, urgent: bool = False) -> None:
        """Queue whole lines. Urgent ones (few: a report, a warning) are never dropped."""
        if not data:
            return
        file = self._of_fd.get(fd) or self._opened(fd)
        with self._changed:
            if file.error is not None:
                return
            if not urgent and self._is_to_drop(file):
                file.drop(data)
                return
            if file.dropped_lines and not self._given_up:
                file.add(self._notice(file.dropped_lines, file.dropped_bytes), urgent=True)
                file.dropped_lines = file.dropped_bytes = 0
            file.add(data, urgent)
            self._changed.notify_all()

    def full(self) -> bool:
        """Whether so much waits for a reader that no more output should be brought for now."""
        with self._changed:
            for file in self._files.values():
                file.full = file.size >= (self._capacity // 2 if file.full else self._capacity)
            return any(file.full for file in self._files.values()) and not self._hurried

    def hurry(self) -> None:
        """Rather drop lines than wait for a slow reader from now on."""
        self._hurried = True

    def broken(self, fd: int) -> OSError | None:
        """Why this descriptor can't be written to any more; ``BrokenPipeError``: its reader is gone."""
        file = self._of_fd.get(fd)
        return file.error if file else None

    def waiting(self, fd: int) -> int:
        """Bytes that wait for this descriptor's reader."""
        file = self._of_fd.get(fd)
        return file.size if file else 0

    def flush(self, asked: Callable[[], bool] = lambda: False) -> bool:
        """Wait a bounded time until all is written; then drop all but the urgent lines and wait for these.

        Args:
            asked: whether the user wants the end at once.

        Returns:
            Whether all was written, or never can be.
        """
        with self._changed:
            for file in self._files.values():
                file.careful = True
                self._give_notice(file)
            if not self._given_up:
                if self._wait(self.HURRIED if self._hurried else self.TOTAL, asked):
                    return True
                self._given_up = True
                for file in self._files.values():
                    file.dropping = True
                self._changed.notify_all()
            self._wait(self.URGENT, asked=lambda: False)
            return False

    def close(self) -> bool:
        """`flush`, then end the threads. What comes later is dropped."""
        done = self.flush()
        with self._changed:
            for file in self._files.values():
                file.closing = True
            self._changed.notify_all()
        for file in self._files.values():
            file.thread.join(1.0)
        return done

    def _is_to_drop(self, file: _File) -> bool:
        limit = self._capacity if self._hurried else _FAR_TOO_MUCH * self._capacity
        return file.size >= limit or self._given_up

    def _give_notice(self, file: _File) -> None:
        if file.dropped_lines:
            file.add(self._notice(file.dropped_lines, file.dropped_bytes), urgent=True)
            file.dropped_lines = file.dropped_bytes = 0
            self._changed.notify_all()

    def _wait(self, total: float, asked: Callable[[], bool]) -> bool:
        """Wait until nothing is left; the lock is held."""
        began = time.monotonic()
        while True:
            waiting = [file for file in self._files.values() if file.size]
            if not waiting:
                return True
            latest = max(file.accepted_at for file in waiting)
            left = min(max(latest, began) + self.IDLE, began + total) - time.monotonic()
            if left <= 0 or asked():
                return False
            self._changed.wait(min(left, _LOOK))

    def _opened(self, fd: int) -> _File:
        """The queue of the file that is open as this descriptor; two descriptors of one file share it."""
        try:
            status = os.fstat(fd)
            place: object = (status.st_dev, status.st_ino)
        except OSError:
            place = fd
        with self._changed:
            file = self._files.get(place)
            if file is None:
                file = self._files[place] = _File(fd)
                file.thread = threading.Thread(
                    target=self._run, args=(file,), name="launch-writer", daemon=True
                )
                try:
                    file.thread.start()
                except RuntimeError as error:
                    text = f"no thread to write the output with: {error}; see ulimit -u and -v"
                    raise LaunchError(text) from error
            self._of_fd[fd] = file
            return file

    def _run(self, file: _File) -> None:
        """What the thread of a file does."""
        while True:
            with self._changed:
                if file.dropping:
                    file.dropping = False
                    lines, size = file.drop_queue()
                    if lines:
                        file.add_first(self._notice(lines, size))
                while not file.size and not file.closing:
                    self._changed.wait()
                if file.closing:
                    break
                file.load()
            sent, error = file.send()
            with self._changed:
                if error is not None:
                    file.fail(error)
                file.size -= sent
                if sent or error is not None:
                    file.accepted_at = time.monotonic()
                    self._changed.notify_all()
            if not sent and error is None:
                file.wait(_LOOK)
        file.close()


class _File:
    """What waits for one file. The writer holds its lock around all but `send` and `wait`."""

    def __init__(self, fd: int) -> None:
        self.thread: threading.Thread
        self.size = 0
        self.full = False
        #: When the reader last accepted something, or there was nothing to accept (monotonic).
        self.accepted_at = time.monotonic()
        self.error: OSError | None = None
        self.dropped_lines = self.dropped_bytes = 0
        #: Write whole lines only, where that is possible: the reader may stop.
        self.careful = False
        #: Drop what waits before the next write.
        self.dropping = False
        self.closing = False
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._rest = memoryview(b"")
        self._rest_urgent = False
        self._torn = False
        self._fd = fd
        self._own, self._polls = _reopened(fd)

    def add(self, data: bytes, urgent: bool = False) -> None:
        """Queue lines."""
        if not self.size:
            self.accepted_at = time.monotonic()
        self._queue.append((data, urgent))
        self.size += len(data)

    def add_first(self, data: bytes) -> None:
        """Queue an urgent line before all others."""
        self._queue.appendleft((data, True))
        self.size += len(data)

    def drop(self, data: bytes) -> None:
        """Count lines that are not queued."""
        self.dropped_lines += data.count(b"\n")
        self.dropped_bytes += len(data)

    def drop_queue(self) -> tuple[int, int]:
        """Drop all but urgent lines and the rest of a line that was begun: numbers of lines and bytes."""
        if not self._rest_urgent:
            cut = bytes(self._rest).find(b"\n") + 1 if self._torn else 0
            self.drop(bytes(self._rest[cut:]))
            self._rest = self._rest[:cut]
        for data, urgent in self._queue:
            if not urgent:
                self.drop(data)
        self._queue = deque(chunk for chunk in self._queue if chunk[1])
        self.size = len(self._rest) + sum(len(data) for data, _ in self._queue)
        dropped = self.dropped_lines, self.dropped_bytes
        self.dropped_lines = self.dropped_bytes = 0
        return dropped

    def load(self) -> None:
        """Join the oldest chunks for the next `send`."""
        if self._rest or not self._queue:
            return
        self._rest_urgent = self._queue[0][1]
        taken: list[bytes] = []
        room = _JOINED
        while self._queue and room > 0 and self._queue[0][1] == self._rest_urgent:
            taken.append(self._queue.popleft()[0])
            room -= len(taken[-1])
        self._rest = memoryview(taken[0] if len(taken) == 1 else b"".join(taken))

    def send(self) -> tuple[int, OSError | None]:
        """Write what the reader takes now: bytes accepted, and why the file can't be written to."""
        piece = self._rest
        if self._polls and (self.careful or self.full):
            head = bytes(self._rest[:_PIPE_BUF])
            end = (head.find(b"\n") if self._torn else head.rfind(b"\n")) + 1
            piece = self._rest[: end or _PIPE_BUF]
        try:
            sent = os.write(self._own, piece)
        except BlockingIOError:
            return 0, None
        except OSError as error:
            return 0, error
        if sent:
            self._torn = piece[sent - 1] != ord("\n")
        self._rest = self._rest[sent:]
        return sent, None

    def wait(self, seconds: float) -> None:
        """Wait until the reader takes more, or so many seconds."""
        poll = select.poll()
        poll.register(self._own, select.POLLOUT)
        poll.poll(seconds * 1000)

    def fail(self, error: OSError) -> None:
        """The file can't be written to: forget what waits."""
        self.error = error
        self._queue.clear()
        self._rest = memoryview(b"")
        self.size = 0

    def close(self) -> None:
        """Close the description that is ours."""
        if self._own != self._fd:
            os.close(self._own)
            self._own = self._fd


def _reopened(fd: int) -> tuple[int, bool]:
    """A descriptor to write to, and whether it may take only a part.

    ``O_NONBLOCK`` on a descriptor that we were given would hold for each process that shares it (the user's
    shell), so pipes and terminals are opened again.
    """
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISFIFO(mode) and not os.isatty(fd):
            return fd, False
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), True
    except OSError:  # closed (the first write says so), without a reader, or not ours to open
        return fd, False


def _notice(lines: int, size: int, logs: str) -> bytes:
    where = f"; they are complete in {logs}" if logs else ""
    were = "line was" if lines == 1 else "lines were"
    return (
        f"launch: {lines:,} {were} not shown here ({size:,} bytes), the reader was too slow{where}\n".encode()
    )

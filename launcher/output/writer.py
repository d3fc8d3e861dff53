"""Writes to stdout and stderr, without waiting for slow readers while the job runs.

Renderers write complete lines to a `Writer`, and the orchestrator flushes it. It must never block before
`finish`, which has limits.

Output passes a pipe, the agent, a message, the log file and the console, in this order. If the reader of the
console is slow, the agents keep the output, and no line is lost. When the job has failed or was stopped,
lines for which the reader is too slow are dropped, and a notice says how many.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from termios import FIONREAD

#: A pipe accepts up to this many bytes completely or not at all.
_PIPE_BUF = 4096
#: The capacity of the pipe to a reader. With the usual 64 KiB launch and the reader wait for each other.
_PIPE_BYTES = 1 << 20
#: How many chunks one ``writev`` contains at most.
_MAX_CHUNKS = 64
#: A queue with this many bytes is written without waiting for `flush`.
_JOINED_BYTES = 1 << 18
#: A queue drops lines at this multiple of its capacity, if its producer ignores `Writer.should_hold`.
_DROP_FACTOR = 16
#: How long a job that is done waits for a slow reader before lines are dropped. Agents have more time to stop
#: their tasks and to close.
_DONE_TIMEOUT_SECONDS = 10.0
#: The pause between two looks of `Writer.finish` at whether a signal asks for the end.
_POLL_SECONDS = 0.05


#: Returns the notice about a number of dropped lines and of their bytes.
MakeNotice = Callable[[int, int], bytes]


class Writer:
    """A bounded queue of lines for each file, which one thread uses.

    The thread calls `flush` at the end of each turn of its loop, and when a `blocked` file is writable. While
    `should_hold` is true the agents keep the output of tasks, so that no line is lost. At the end of a job
    that failed a full queue drops lines, and a notice says how many.

    Args:
        logs: The folder of the complete output, for the notice. Empty if there is none.
        make_notice: Makes the notice. None for a line for people.
        capacity: How many bytes may wait for one reader.
    """

    #: The limits of `finish` in seconds: in total, without progress, in total after a failure, and for urgent
    #: lines.
    TOTAL_SECONDS, IDLE_SECONDS, FAILED_SECONDS, URGENT_SECONDS = 30.0, 2.0, 1.0, 1.0

    def __init__(
        self, logs: str = "", make_notice: MakeNotice | None = None, capacity: int = 4 << 20
    ) -> None:
        #: Makes the line that stands for lines that were dropped.
        self._make_notice = make_notice or (lambda lines, size: _notice(lines, size, logs))
        #: The size of a queue from which on the agents are to keep further output.
        self._capacity = capacity
        #: The size at which a queue drops lines. It is lower when the end of a job does not wait for the
        #: reader, and 0 when all lines are dropped.
        self._limit = _DROP_FACTOR * capacity
        #: The queues by device and inode, so that two descriptors of one file share a queue.
        self._queues: dict[object, _OutputQueue] = {}
        #: The same queues by the descriptors of callers.
        self._queue_by_fd: dict[int, _OutputQueue] = {}
        #: Whether the agents keep the output, because a queue is full or was full a short time ago.
        self._is_full = False
        #: When the job began to be stopped, by the monotonic clock. None before that.
        self._ending_since: float | None = None

    def write(self, fd: int, data: bytes, *, is_urgent: bool = False) -> None:
        """Queue complete lines for a descriptor until `flush` is called.

        Args:
            fd: The descriptor.
            data: The lines.
            is_urgent: Whether the lines must not be dropped, because they are a report or a warning.
        """
        queue = self._queue_by_fd.get(fd) or self._open(fd)
        if not data or queue.error is not None:  # A file with an error gets nothing more.
            return
        if not is_urgent and queue.size >= self._limit:
            queue.drop(data)
            return
        # A limit of 0 drops all lines that are not urgent, and a notice would come before each urgent one.
        if self._limit:
            queue.add_notice()
        queue.add(data, is_urgent=is_urgent)
        if not queue.is_blocked and queue.size >= _JOINED_BYTES:
            queue.send()

    def flush(self) -> None:
        """Write as much as the readers accept now."""
        for queue in self._queues.values():
            queue.send()

    def blocked(self) -> Collection[int]:
        """Return the descriptors whose reader is slow. Call `flush` when one of them is writable."""
        return [queue.fd for queue in self._queues.values() if queue.is_blocked]

    def broken(self, fd: int) -> OSError | None:
        """Return the error that prevents writing to this descriptor.

        It is BrokenPipeError if its reader exited.

        Returns:
            The error. None if there is none.
        """
        queue = self._queue_by_fd.get(fd)
        return queue.error if queue else None

    def should_hold(self, *, is_ending: bool = False, has_failed: bool = False) -> bool:
        """Return whether the agents must keep the output of tasks, because too much waits for a reader.

        When a job has failed, or has ended long ago and the reader is still slow, nothing is kept:
        lines that do not fit into the queues are dropped instead.

        Args:
            is_ending: Whether the job is being stopped.
            has_failed: Whether it failed, so its end does not wait for output.
        """
        if is_ending:
            self._ending_since = self._ending_since or time.monotonic()
            if has_failed or time.monotonic() - self._ending_since > _DONE_TIMEOUT_SECONDS:
                self._limit = self._capacity  # From now on, lines that do not fit are dropped.
        # After it was full, a queue must be half empty, so that agents do not start and stop all the time.
        threshold = self._capacity // 2 if self._is_full else self._capacity
        self._is_full = any(queue.size >= threshold for queue in self._queues.values())
        drops_lines = self._limit <= self._capacity
        return self._is_full and not drops_lines

    def finish(self, is_interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all is written, within limits. Then drop all but the urgent lines, and wait for these.

        The limit of how many bytes may wait (`_limit`) becomes 0 then, so all later lines that are not
        urgent are dropped, too, and a later call waits for urgent lines only.

        Args:
            is_interrupted: Returns whether a signal asks to stop waiting.

        Returns:
            Whether all was written, except to files with an error.
        """
        if self._limit:  # It is 0 if an earlier call has waited in vain.
            for queue in self._queues.values():
                queue.add_notice()
            # It is lower after a failure, or if the job takes long to end: lines are dropped already then.
            seconds = self.TOTAL_SECONDS if self._limit > self._capacity else self.FAILED_SECONDS
            if self._wait(seconds, is_interrupted):
                return True
            self._limit = 0
            for queue in self._queues.values():
                queue.drop_waiting()
        self._wait(self.URGENT_SECONDS, lambda: False)
        return False

    def close(self) -> bool:
        """Call `finish`, then close the descriptors that this writer has opened.

        Returns:
            What `finish` returned.
        """
        is_complete = self.finish()
        for queue in self._queues.values():
            queue.close()
        return is_complete

    def _wait(self, total: float, is_interrupted: Callable[[], bool]) -> bool:
        """Write what waits, until it is written, a limit of time is over, or a signal asks to stop.

        One limit is for the whole time, and `IDLE_SECONDS` for the time in which the reader reads nothing. No
        time passes while launch and its reader stand still, because of Ctrl-Z or a machine that is suspended.

        Args:
            total: How many seconds to wait at most.
            is_interrupted: Returns whether a signal asks to stop waiting.

        Returns:
            Whether everything was written.
        """
        waited_seconds = idle_seconds = 0.0
        last_turn_at = time.monotonic()
        while True:
            size_before = sum(queue.size for queue in self._queues.values())
            self.flush()
            size = sum(queue.size for queue in self._queues.values())
            if not size:
                return True
            now = time.monotonic()
            # A turn takes longer only if this process stood still, which does not count.
            turn_seconds = min(now - last_turn_at, 2 * _POLL_SECONDS)
            waited_seconds, last_turn_at = waited_seconds + turn_seconds, now
            idle_seconds = 0.0 if size < size_before else idle_seconds + turn_seconds
            if waited_seconds >= total or idle_seconds >= self.IDLE_SECONDS or is_interrupted():
                return False
            poll = select.poll()
            for fd in self.blocked():
                poll.register(fd, select.POLLOUT)
            poll.poll(_POLL_SECONDS * 1000)

    def _open(self, fd: int) -> _OutputQueue:
        """Return the queue for a descriptor. Descriptors of one file share a queue."""
        try:
            status = os.fstat(fd)
            file: object = (status.st_dev, status.st_ino)
        except OSError:  # The descriptor is closed, which its queue finds out.
            file = fd
        queue = self._queues.get(file) or self._queues.setdefault(file, _OutputQueue(fd, self._make_notice))
        self._queue_by_fd[fd] = queue
        return queue


class _OutputQueue:
    """The queue of lines for one file, pipe or terminal.

    Args:
        fd: The descriptor, which stays open.
        make_notice: Makes the notice about dropped lines.
    """

    def __init__(self, fd: int, make_notice: MakeNotice) -> None:
        """Open a pipe or terminal once more, if that is possible, so that writing to it never blocks."""
        self._make_notice = make_notice
        #: How many bytes wait.
        self.size = 0
        #: The error that prevents writing. None if there is none.
        self.error: OSError | None = None
        #: Whether the reader does not accept all data now.
        self.is_blocked = False
        #: The data that waits, each piece with whether it is urgent.
        self._queue: deque[tuple[bytes | memoryview, bool]] = deque()
        #: What was dropped since the last notice about that.
        self._dropped_lines = self._dropped_bytes = 0
        #: Whether the last written byte is not the end of a line.
        self._is_within_line = False
        #: The descriptor that is written to, and the one of the caller, which it may replace.
        self.fd = self._original_fd = fd
        #: Whether writing may block, so each write must be small and be preceded by a poll.
        self._may_block = False
        #: The capacity of the pipe, in bytes. 0 if the descriptor is no pipe, or cannot be opened once more.
        self._capacity = 0
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd):
                # O_NONBLOCK on the given descriptor would affect all processes that share it (the shell).
                self._may_block = True
                self.fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
                self._may_block = False
                if stat.S_ISFIFO(mode):
                    self._capacity = fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ)
                    if self._capacity < _PIPE_BYTES:
                        self._capacity = fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            # It is closed, which the first write reports, or a socket, or belongs to another user, or no
            # descriptor is left.
            pass

    def add(self, data: bytes, *, is_urgent: bool) -> None:
        """Queue lines."""
        self._queue.append((data, is_urgent))
        self.size += len(data)

    def drop(self, data: bytes) -> None:
        """Drop lines, and count them for the notice."""
        self._dropped_lines += data.count(b"\n")
        self._dropped_bytes += len(data)

    def add_notice(self) -> None:
        """Queue the notice about the lines that were dropped, if there are any."""
        if self._dropped_lines and self.error is None:
            self.add(self._make_notice(self._dropped_lines, self._dropped_bytes), is_urgent=True)
            self._dropped_lines = self._dropped_bytes = 0

    def drop_waiting(self) -> None:
        """Drop all lines that wait, except urgent ones and a line whose start was written.

        A notice about the dropped lines comes before the urgent ones.
        """
        waiting = [(bytes(data), is_urgent) for data, is_urgent in self._queue]
        self._queue.clear()
        self.size = 0
        # A line whose start was written has to be completed, so its rest is kept like an urgent line. The
        # text after this line is kept only if it was urgent itself.
        if waiting and self._is_within_line:
            data, is_urgent = waiting[0]
            rest_of_line, newline, following = data.partition(b"\n")
            self.add(rest_of_line + newline, is_urgent=True)
            waiting[0] = following, is_urgent
        urgent = [data for data, is_urgent in waiting if is_urgent and data]
        for data, is_urgent in waiting:
            if not is_urgent:
                self.drop(data)
        self.add_notice()
        for data in urgent:
            self.add(data, is_urgent=True)

    def send(self) -> None:
        """Write as much as the reader accepts now, and note whether it is slow, or gone.

        A slow reader gets only complete lines, as it may never read again. So does one to which writing may
        block: it is asked before each write whether it accepts data.
        """
        try:
            while self._queue:
                pieces: Sequence[bytes | memoryview]
                if self.is_blocked or self._may_block:
                    pieces = [self._next_lines()]
                else:
                    pieces = [data for data, _ in islice(self._queue, _MAX_CHUNKS)]
                if self._may_block and not _is_writable(self.fd):
                    raise BlockingIOError
                sent = os.writev(self.fd, pieces)
                self.is_blocked = self.is_blocked or sent < sum(map(len, pieces))
                self._remove(sent)
            self.is_blocked = False
        except BlockingIOError:
            self.is_blocked = True
        except OSError as error:
            self.error, self.is_blocked, self.size = error, False, 0
            self._queue.clear()

    def _max_uncut_bytes(self) -> int:
        """Return how many bytes one write may have, so that the file accepts all of them or none.

        A larger write could be cut within a line when the pipe becomes full, and a reader that is slow may
        never read the rest. An empty pipe accepts as many bytes as its capacity.
        """
        # The capacity is 0 for what is no pipe. FIONREAD returns the number of bytes that wait in a pipe, an
        # int in 4 bytes.
        if self._capacity and fcntl.ioctl(self.fd, FIONREAD, bytes(4)) == bytes(4):
            return self._capacity
        return _PIPE_BUF

    def _next_lines(self) -> bytes:
        """Return what the file accepts completely or not at all, up to the end of a line if there is one."""
        room, pieces = self._max_uncut_bytes(), []
        for data, _ in self._queue:
            pieces.append(data[:room])
            room -= len(pieces[-1])
            if not room:
                break
        head = b"".join(pieces)
        return head[: head.rfind(b"\n") + 1] or head

    def _remove(self, size: int) -> None:
        """Remove bytes from the queue that were written, and note whether the last one ended a line."""
        self.size -= size
        while size:
            data, is_urgent = self._queue.popleft()
            written = min(size, len(data))
            self._is_within_line = data[written - 1] != ord("\n")
            if written < len(data):
                self._queue.appendleft((memoryview(data)[written:], is_urgent))
            size -= written

    def close(self) -> None:
        """Close the descriptor if this object has opened it."""
        if self.fd != self._original_fd:
            os.close(self.fd)
            self.fd = self._original_fd


def _is_writable(fd: int) -> bool:
    """Return whether the reader of a pipe, or a terminal, accepts data now."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def _notice(lines: int, size: int, logs: str) -> bytes:
    """Return the notice for people about lines that were dropped, and about the folder that contains them."""
    were = "line was" if lines == 1 else "lines were"
    where = f"; they are complete in {logs}" if logs else ""
    text = f"launch: {lines:,} {were} not shown here ({size:,} bytes): the reader was too slow{where}\n"
    return text.encode()

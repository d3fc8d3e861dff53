"""The times of a log: a small index beside it tells when each part of the log was printed.

The launcher writes the index before the log, so all bytes of a log have their time. `LogIndex`, which is
pure, decides what it writes, and `LogTimes` reads it. Each line of an index is an entry of three numbers::

    SECOND OFFSET SECONDS

The bytes of the log from the offset up to that of the next entry were printed within these seconds from that
second on (since the epoch). At first it is one second. When the index has become too large, neighbours are
joined, most of them among the oldest entries.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from launcher.common.errors import LaunchError
from launcher.common.trusted_io import open_regular

#: The largest index of a small log.
MIN_LIMIT_BYTES = 64 * 1024
#: The index of a larger log may have this part of its size, up to `MAX_LIMIT_BYTES`.
LOG_PART = 100
#: No index is larger, so that to thin it takes no longer than 50 ms.
MAX_LIMIT_BYTES = 256 * 1024
#: The limits of the logs of a run are so many different ones, from three quarters of the limit on.
_LIMITS = 1024
#: Matches a line of an index. Larger numbers cannot be right.
_ENTRY = re.compile(rb"(?m)^(\d{1,11}) (\d{1,18}) (\d{1,11})\n")


def index_of(log: str) -> str:
    """Return the path of the index of a log: ``worker-0.times`` beside ``worker-0.log``."""
    return log.removesuffix(".log") + ".times"


def max_index_bytes(log_size: int) -> int:
    """Return the largest size of the index of a log that has this size."""
    return max(MIN_LIMIT_BYTES, min(log_size // LOG_PART, MAX_LIMIT_BYTES))


def thinned(index: bytes) -> bytes:
    """Return an index that is at least a quarter smaller, because neighbours among its entries are joined.

    The older an entry is, the more seconds it may have, so that each time is known equally well in proportion
    to its age.
    """
    entries = [tuple(map(int, entry)) for entry in _ENTRY.findall(index)]
    now = max((second + seconds for second, _, seconds in entries), default=0)
    joined, ratio = entries, len(entries) // 4
    while ratio and len(joined) > len(entries) * 3 // 4:
        joined, ratio = _joined(entries, now, ratio), ratio // 2
    return b"".join(b"%d %d %d\n" % entry for entry in joined)


def _joined(entries: Sequence[tuple[int, ...]], now: int, ratio: int) -> list[tuple[int, ...]]:
    """Join neighbours as long as the seconds of an entry are at most a part of its age.

    Args:
        entries: The seconds, offsets and numbers of seconds of the entries.
        now: When the last one ends.
        ratio: How many times as old as it is long an entry must be.
    """
    joined = [entries[0]]
    for second, offset, seconds in entries[1:]:
        last_second, last_offset, last_seconds = joined[-1]
        # The clock may have been set back, so that this second is before the last one.
        first, end = min(last_second, second), max(last_second + last_seconds, second + seconds)
        if (end - first) * ratio <= now - first:
            joined[-1] = (first, last_offset, end - first)
        else:
            joined.append((second, offset, seconds))
    return joined


class LogIndex:
    """The knowledge of the launcher about the index of one log, by which it decides what to write there.

    Args:
        index: What the index contains so far.
        number: The number of the log in its run. Logs with different numbers are not thinned in the same
            moment, which would take long in a large job.
    """

    __slots__ = ("second", "_offset", "_size", "_limit_share")

    def __init__(self, index: bytes = b"", number: int = 0) -> None:
        entries = _ENTRY.findall(index)
        #: The second and the offset of the last entry. No entry is due before the next second.
        self.second, self._offset = map(int, entries[-1][:2]) if entries else (-1, 0)
        self._size = len(index)
        self._limit_share = 1 - number % _LIMITS / (4 * _LIMITS)

    def add(self, second: int, log_size: int, read: Callable[[], bytes]) -> tuple[bytes, bool]:
        """Add an entry, because something is about to be appended to the log.

        Args:
            second: The present time, which is not the second of the last entry.
            log_size: The size of the log. It is smaller than before if the user has truncated the log.
            read: Reads the index.

        Returns:
            The bytes to write, and whether they replace the index. Otherwise they are appended to it.
        """
        new, is_truncated = b"%d %d 1\n" % (second, log_size), log_size < self._offset
        is_full = self._size + len(new) > max_index_bytes(log_size) * self._limit_share
        self.second, self._offset = second, log_size
        if is_truncated or is_full:
            new = new if is_truncated else thinned(read()) + new
            self._size = 0
        self._size += len(new)
        return new, is_truncated or is_full


class LogTimes:
    """The times of a log, as its index tells them. The index may grow, and be written anew.

    Args:
        log: The path of the log.
    """

    def __init__(self, log: str) -> None:
        self._log = log
        #: Of each entry, where it begins in the log, its second, and when its last second ends.
        self._offsets, self._seconds, self._ends = array("q"), array("q"), array("q")
        #: The last line of the index that was read, and where it begins there.
        self._last_line, self._last_line_at = b"", 0

    def refresh(self) -> None:
        """Read what is new in the index.

        Raises:
            LaunchError: There is no index, because the run is one of an older version, for example.
        """
        path = index_of(self._log)
        with suppress(OSError), open_regular(path, links=False) as file:
            file.seek(self._last_line_at)
            if file.read(len(self._last_line)) != self._last_line:  # It was written anew.
                file.seek(0)
                del self._offsets[:], self._seconds[:], self._ends[:]
            self._add(file.tell(), file.read(2 * MAX_LIMIT_BYTES))
        if not self._offsets:
            text = f"nobody knows when {self._log!r} was printed: it has no index {os.path.basename(path)!r}"
            advice = "it can be read without --timestamps, --since and --until"
            raise LaunchError(f"{text}, as in runs of version 0.1; {advice}")

    def _add(self, start: int, lines: bytes) -> None:
        """Add the entries in lines of the index. The last one may be incomplete.

        Args:
            start: Where the lines begin in the index.
            lines: The lines.
        """
        for entry in _ENTRY.finditer(lines):
            second, offset, seconds = map(int, entry.groups())
            # Offsets never decrease, unless the index is damaged.
            if not self._offsets or offset >= self._offsets[-1]:
                self._offsets.append(offset)
                self._seconds.append(second)
                self._ends.append(second + seconds)
            self._last_line, self._last_line_at = entry[0], start + entry.start()

    def start(self, since: float) -> int:
        """Return where that begins in the log which may have been printed at this time or later.

        It is ``sys.maxsize`` if all of the log is older.
        """
        for number, end in enumerate(self._ends):
            if end > since:
                # The launcher may have begun this index after the user had truncated the log.
                return self._offsets[number] if number else 0
        return sys.maxsize

    def end(self, until: float) -> int:
        """Return where that ends in the log which may have been printed before this time.

        It is ``sys.maxsize`` if that is all of the log.
        """
        for number in range(len(self._seconds) - 1, -1, -1):
            if self._seconds[number] < until:
                return self._offsets[number + 1] if number + 1 < len(self._offsets) else sys.maxsize
        return 0

    def parts(self, offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Divide a part of the log by the time when it was printed.

        Args:
            offset: Where the part begins in the log.
            data: The part.

        Yields:
            The second, and what was printed then.
        """
        number, start = max(0, bisect_right(self._offsets, offset) - 1), 0
        while start < len(data):
            is_last = number + 1 == len(self._offsets)
            end = len(data) if is_last else self._offsets[number + 1] - offset
            if end > start:  # The log may not have grown after an entry.
                yield self._seconds[number], data[start:end]
                start = end
            number += 1

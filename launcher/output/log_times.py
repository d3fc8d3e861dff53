"""The times of a log: a small index beside it tells when each part of the log was printed.

The launcher writes the index before the log, so all bytes of a log have their time. `LogIndex`, which is
pure, decides what it writes, and `LogTimes` reads it. Each line of an index is an entry of three numbers::

    SECOND OFFSET SECONDS

The bytes of the log from the offset up to that of the next entry were printed within these seconds from that
second on (since the epoch). At first it is one second. When the index is full, neighbours are joined.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import add, itemgetter

from launcher.common.errors import LaunchError
from launcher.common.trusted_io import open_regular, read_at_most

#: The largest size of an index.
MAX_INDEX_BYTES = 64 * 1024
#: Entries are joined as long as they are this many times as old as they are long, so that each time is known
#: equally well in proportion to its age. A task that prints for a year fills half of an index.
AGE_RATIO = 100
#: Matches a line of an index. Larger numbers cannot be right.
_ENTRY = re.compile(rb"(?m)^(\d{1,11}) (\d{1,18}) (\d{1,11})\n")


def index_of(log: str) -> str:
    """Return the path of the index of a log: ``worker-0.times`` beside ``worker-0.log``."""
    return log.removesuffix(".log") + ".times"


def index_content(log: str) -> bytes:
    """Return the content of the index of a log. Empty if it cannot be read."""
    with suppress(OSError), open_regular(index_of(log), links=False) as file:
        return read_at_most(file, 2 * MAX_INDEX_BYTES)
    return b""


def _entries(index: bytes) -> list[tuple[int, ...]]:
    """Return the entries of an index. What is no entry is left out."""
    return [tuple(map(int, entry)) for entry in _ENTRY.findall(index)]


def thinned(index: bytes, max_bytes: int) -> bytes:
    """Return a smaller index, in which neighbours are joined as far as their age allows it.

    If the clock was set often, that may join too few. Then neighbours are joined although they are younger:
    the ratio is halved until the result is small enough. With a ratio of 0 all are joined.

    Args:
        index: The index.
        max_bytes: The largest size of the result.
    """
    entries, ratio = _entries(index), AGE_RATIO
    while len(smaller := b"".join(b"%d %d %d\n" % entry for entry in _joined(entries, ratio))) > max_bytes:
        ratio //= 2
    return smaller


def _joined(entries: Sequence[tuple[int, ...]], age_ratio: int) -> list[tuple[int, ...]]:
    """Return entries of which neighbours are joined, as long as a joined entry is not too long for its age.

    Args:
        entries: The entries, each with its second, the offset in the log, and the length in seconds.
        age_ratio: A joined entry is at most as long as its age divided by this. Its age is the time from its
            start to the newest entry.
    """
    joined = list(entries[:1])
    for second, offset, seconds in entries[1:]:
        last_second, last_offset, last_seconds = joined[-1]
        # The clock may have been set back, so this second is before the last one, or still to come.
        first, end = min(last_second, second), max(last_second + last_seconds, second + seconds)
        if (end - first) * age_ratio <= abs(entries[-1][0] - first):
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

    __slots__ = ("second", "_offset", "_size", "_limit")

    def __init__(self, index: bytes = b"", number: int = 0) -> None:
        #: The second and the offset of the last entry, -1 and 0 if there is none. No entry is due before the
        #: next second, however many seconds the last entry spans.
        self.second, self._offset, _ = [(-1, 0, 0), *_entries(index)][-1]
        #: The size of the index in bytes.
        self._size = len(index)
        #: The size above which the index is thinned. There are 256 such sizes, which logs with consecutive
        #: numbers get in turn, because logs that print alike would reach one size together.
        self._limit = MAX_INDEX_BYTES - number % 256 * 64

    def add(self, second: int, log_size: int, read: Callable[[], bytes]) -> tuple[bytes, bool]:
        """Add an entry, because something is about to be appended to the log.

        Args:
            second: The present time, which is not the second of the last entry.
            log_size: The size of the log. It is smaller than before if the user has truncated the log.
            read: Reads the index.

        Returns:
            The bytes to write, and whether they replace the index. Otherwise they are appended to it.
        """
        # An entry is its second, the offset in the log, and how many seconds it spans: 1 until it is joined.
        new, is_truncated = b"%d %d 1\n" % (second, log_size), log_size < self._offset
        replaces = is_truncated or self._size + len(new) > self._limit
        if replaces and not is_truncated:
            new = thinned(read(), self._limit * 3 // 4) + new
        self.second, self._offset = second, log_size
        self._size = len(new) + (0 if replaces else self._size)
        return new, replaces


class LogTimes:
    """The times of a log, as its index tells them. The index may grow, and be written anew.

    Args:
        log: The path of the log.
    """

    def __init__(self, log: str) -> None:
        self._log = log
        #: The index as it was read last.
        self._index = b""
        #: Of each entry, where it begins in the log, its second, and when its last second ends.
        self._offsets, self._seconds, self._ends = array("q"), array("q"), array("q")

    def refresh(self) -> None:
        """Read the index again.

        Raises:
            LaunchError: There is no index, because the run is one of an older version, for example.
        """
        index = index_content(self._log)
        if index == self._index and index:
            return
        # Offsets never decrease, unless the index is damaged.
        entries = sorted(_entries(index), key=itemgetter(1))
        if not entries:
            name = os.path.basename(index_of(self._log))
            text = f"nobody knows when {self._log!r} was printed: it has no index {name!r}"
            advice = "it can be read without --timestamps, --since and --until"
            raise LaunchError(f"{text}, as in runs of version 0.1; {advice}")
        seconds, offsets, lengths = zip(*entries, strict=True)
        self._index, self._seconds = index, array("q", seconds)
        self._ends = array("q", map(add, seconds, lengths))
        # The launcher may have begun this index after the user had truncated the log.
        self._offsets = array("q", (0, *offsets[1:]))

    def start(self, since: float) -> int:
        """Return the offset in the log from which on it may have been printed at this time or later.

        It is ``sys.maxsize`` if all of the log is older.
        """
        pairs = zip(self._offsets, self._ends, strict=True)
        return next((offset for offset, end in pairs if end > since), sys.maxsize)

    def end(self, until: float) -> int:
        """Return the offset in the log up to which it may have been printed before this time.

        It is ``sys.maxsize`` if that may be so for all of the log.
        """
        pairs = zip((*self._offsets[1:], sys.maxsize), self._seconds, strict=True)
        return max((offset for offset, second in pairs if second < until), default=0)

    def parts(self, offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Divide a part of the log by the time when it was printed.

        Args:
            offset: Where the part begins in the log.
            data: The part.

        Yields:
            The second, and what was printed then.
        """
        # The first entry begins at 0, so every offset is in the part of some entry.
        first = bisect_right(self._offsets, offset) - 1
        begins, ends = self._offsets[first:], (*self._offsets[first + 1 :], sys.maxsize)
        for second, begin, end in zip(self._seconds[first:], begins, ends, strict=True):
            part = data[max(0, begin - offset) : end - offset]
            if part:  # The log may not have grown after an entry.
                yield second, part

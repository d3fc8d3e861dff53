"""Files that never rest, as they were read once: what travels to all hosts is the same.

Each copy is a file without a name, gone with whoever holds it.
"""

from __future__ import annotations

import os
import tempfile
import weakref

from launcher.luggage.hashes import Stamp, stamp_of
from launcher.model.luggage import digest

_PIECE = 1024 * 1024
#: How many copies there may be, and how many bytes of them.
_MOST, _MOST_BYTES = 200, 1024**3


class Copies:
    """The copies of one folder."""

    def __init__(self) -> None:
        self._fds: dict[str, int] = {}
        self._size = 0

    @property
    def names(self) -> list[str]:
        """Of what files there are copies."""
        return sorted(self._fds)

    def take(self, name: str, path: bytes) -> tuple[Stamp, str]:
        """Copy a file.

        Returns:
            What is to be said of the copy (it has its own size), and its digest.

        Raises:
            OSError: it can't be read or copied; or there are too many such files.
        """
        if len(self._fds) == _MOST:
            raise OSError(None, f"it changes all the time, as {_MOST} others do")
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            stamp = stamp_of(os.fstat(fd))
            copy, size, content = self._copied(fd)
        finally:
            os.close(fd)
        weakref.finalize(self, os.close, copy)
        self._fds[name] = copy
        self._size += size
        return stamp._replace(size=size), content

    def _copied(self, fd: int) -> tuple[int, int, str]:
        """The copy, its size and its digest."""
        seen, size = digest(), 0
        with tempfile.TemporaryFile(buffering=0) as file:
            while piece := os.read(fd, _PIECE):
                seen.update(piece)
                file.write(piece)
                size += len(piece)
                if self._size + size > _MOST_BYTES:
                    raise OSError(
                        None, f"it changes all the time, and is too big to copy ({_MOST_BYTES >> 30} GiB)"
                    )
            return os.dup(file.fileno()), size, seen.hexdigest()

    def read(self, name: str, size: int, offset: int) -> bytes | None:
        """A piece of a copy; ``None``: there is none of this file."""
        fd = self._fds.get(name)
        return None if fd is None else os.pread(fd, size, offset)

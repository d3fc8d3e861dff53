"""What a file holds, if it rests while it is read."""

from __future__ import annotations

import os

from launcher.luggage.hashes import Stamp, stamp_of
from launcher.model.luggage import digest

_PIECE = 1024 * 1024


def read_twice(path: bytes) -> tuple[Stamp, str] | None:
    """A file's digest; one that changes meanwhile gets a second chance.

    Returns:
        ``None``: it changed both times.

    Raises:
        OSError: it can't be read.
    """
    for _ in range(2):
        before, content, after = _read(path)
        if before == after:
            return after, content
    return None


def _read(path: bytes) -> tuple[Stamp, str, Stamp]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = stamp_of(os.fstat(fd))
        seen = digest()
        while piece := os.read(fd, _PIECE):
            seen.update(piece)
        return before, seen.hexdigest(), stamp_of(os.fstat(fd))
    finally:
        os.close(fd)

"""A link whose two ends here are pipes, whatever is behind them."""

from __future__ import annotations

import fcntl
import os

#: Bytes a pipe of the link holds: output comes in big pieces.
_PIPE_SIZE = 1024 * 1024
_F_SETPIPE_SZ = 1031


class PipeLink:
    """Reads, writes and hangs up; see `launcher.transport.base.Link`.

    Args:
        reading, writing: our ends, which do not block.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self.reading = reading
        self.writing = writing

    def read(self, size: int) -> bytes | None:
        """See `Link.read`."""
        try:
            return os.read(self.reading, size)
        except BlockingIOError:
            return None

    def write(self, data: bytes | memoryview) -> int:
        """See `Link.write`."""
        try:
            return os.write(self.writing, data)
        except (BlockingIOError, BrokenPipeError):
            return 0

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1


def enlarge(fd: int) -> None:
    """Let a pipe hold more, if that is allowed."""
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_SIZE)
    except OSError:  # above what this user may have: it works with 64 KiB too
        return

"""Numbers as people read them, and the room there is for text."""

from __future__ import annotations

import os


def clock(value: float) -> str:
    """``00:12``, ``1:02:03``."""
    whole = max(0, int(value))
    if whole < 3600:
        return f"{whole // 60:02}:{whole % 60:02}"
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def shortened(line: str, width: int) -> str:
    """The line in at most ``width`` characters."""
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def columns_of(fd: int) -> int:
    """How wide the terminal is; 0 if it is none, or does not say."""
    try:
        return os.get_terminal_size(fd).columns
    except OSError:
        return 0

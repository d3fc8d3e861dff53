"""Numbers as people read them, and the room there is for text."""

from __future__ import annotations

import os


def seconds(value: float | None) -> str:
    """``0.3 s``, ``12 s``, ``3 min 05 s``, ``1 h 02 min``; ``-`` if unknown."""
    if value is None:
        return "-"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = int(value + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def size(value: int | None) -> str:
    """``512 kB``, ``12 MB``, ``3.4 GB`` (1 kB is 1000 bytes); ``-`` if unknown."""
    if value is None:
        return "-"
    if value < 1_000_000:
        return f"{value / 1e3:.0f} kB"
    return f"{value / 1e6:.0f} MB" if value < 1_000_000_000 else f"{value / 1e9:.1f} GB"


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

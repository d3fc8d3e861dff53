"""Prints a table as wide as its cells; one column may be cut at the edge of a terminal."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence

from launcher.text import printable

#: Columns of numbers.
_RIGHT = frozenset({"slots", "max slots", "port", "pid", "processes", "CPU", "memory", "time"})
#: The narrowest that a column is cut to.
_NARROWEST = 12


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], crop: str = "") -> None:
    """Print rows under their headers; columns that are empty in every row are left out.

    Args:
        headers: a name for each column.
        rows: the cells.
        crop: the header of the last column, if it may be cut to the width of a terminal.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    used = [n for n in range(len(headers)) if any(row[n] for row in cells)]
    widths = {n: max(map(_width, (headers[n], *(row[n] for row in cells)))) for n in used}
    if crop and sys.stdout.isatty():
        last = headers.index(crop)
        others = sum(widths[n] + 2 for n in used if n != last)
        room = max(_NARROWEST, shutil.get_terminal_size().columns - others)
        for row in cells:
            row[last] = _cropped(row[last], room)
    for line in (list(headers), *cells):
        padded = (_padded(line[n], widths[n], headers[n] in _RIGHT) for n in used)
        print("  ".join(padded).rstrip())


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _cropped(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    while _width(text) >= width:
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    """Columns of a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)

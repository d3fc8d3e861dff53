"""Prints tables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

from launcher.common.text import escape_controls, shortened

#: Columns of numbers, aligned to the right.
_RIGHT_ALIGNED = frozenset(
    {"slots", "max slots", "attempt", "port", "pid", "processes", "CPU", "memory", "time"}
)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], crop: bool = False) -> None:
    """Print rows under their headers, without columns that are empty in every row.

    Args:
        headers: the name of each column.
        rows: the cells of each row.
        crop: cut lines at the width of the terminal.
    """
    cells = [[escape_controls(cell) for cell in row] for row in rows]
    widths = {
        n: max(len(header), *(len(row[n]) for row in cells))
        for n, header in enumerate(headers)
        if any(row[n] for row in cells)
    }
    columns = shutil.get_terminal_size().columns if crop and sys.stdout.isatty() else sys.maxsize
    for line in (headers, *cells):
        padded = (
            line[n].rjust(w) if headers[n] in _RIGHT_ALIGNED else line[n].ljust(w) for n, w in widths.items()
        )
        print(shortened("  ".join(padded).rstrip(), columns))

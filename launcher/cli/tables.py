"""Prints a table as wide as it needs to be; one column may be cropped to what a terminal has room for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from launcher.text import printable

#: Columns that are read by their last digit.
RIGHT = frozenset({"slots", "max slots", "port", "pid", "processes", "CPU", "memory", "time"})

_UNLIMITED = 100_000


#: A column is not cropped to less than this.
_NARROWEST = 12


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], crop: str = "") -> None:
    """Print rows under their headers; columns that are empty in every row are left out.

    Nothing is folded: what was copied from a table must be whole.

    Args:
        headers: a name for each column.
        rows: the cells.
        crop: the header of the last column, if it may be cut at the edge of a terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(cell) for cell in row] for row in rows]
    used = [n for n in range(len(headers)) if any(row[n] for row in cells)]
    if crop and sys.stdout.isatty():
        _crop(cells, headers, [n for n in used if headers[n] != crop], headers.index(crop))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for n in used:
        right = headers[n] in RIGHT
        table.add_column(Text(headers[n]), justify="right" if right else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(Text(row[n]) for n in used))
    console = Console(width=_UNLIMITED, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _crop(cells: list[list[str]], headers: Sequence[str], others: Sequence[int], last: int) -> None:
    """Shorten a column to the room that the others leave of the terminal."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    taken = sum(2 + max(cell_len(headers[n]), *(cell_len(row[n]) for row in cells)) for n in others)
    room = max(_NARROWEST, Console().width - taken)
    for row in cells:
        text = Text(row[last])
        text.truncate(room, overflow="ellipsis")
        row[last] = text.plain

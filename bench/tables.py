"""Prints plain tables, and numbers as people read them.

All measurements use it. It remembers each table, so that `bench.run` can write them all as JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

#: All tables that were printed.
_shown: list[dict[str, object]] = []


def write(path: str, introduction: Sequence[str]) -> None:
    """Write all tables that were printed to a file, as JSON.

    Args:
        path: The path of the file.
        introduction: The lines about the machine and the contenders.
    """
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"introduction": list(introduction), "tables": _shown}, file, indent=1)
        file.write("\n")


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, and remember it for `write`.

    The cells of the first column are aligned to the left, all others to the right.

    Args:
        title: The line above the table.
        head: The titles of the columns.
        rows: The cells of each row.
    """
    _shown.append({"title": title, "head": list(head), "rows": [list(row) for row in rows]})
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"\n{title}", _line(head, widths), "  ".join("-" * width for width in widths), sep="\n")
    for row in rows:
        print(_line(row, widths))
    print(end="", flush=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of a table, whose columns have these widths."""
    first, *others = (
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def times(values: Sequence[float], unit: float = 1.0) -> str:
    """Return the median and the minimum of times, as in ``0.123 (0.120)``.

    Args:
        values: The times in seconds.
        unit: The seconds of the unit in which they are shown, such as 1e-3 for milliseconds.
    """
    digits = 3 if unit == 1.0 else 1
    median, least = statistics.median(values) / unit, min(values) / unit
    return f"{median:.{digits}f} ({least:.{digits}f})"


def ratio(values: Sequence[float], base: Sequence[float]) -> str:
    """Return the median of values as a multiple of another median, as in ``1.50x``.

    Args:
        values: The values.
        base: The values whose median counts as 1. If there are none, or it is 0, the result is a dash.
    """
    if not values or not base or statistics.median(base) == 0:
        return "-"
    return f"{statistics.median(values) / statistics.median(base):.2f}x"

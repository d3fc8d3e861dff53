"""Prints plain tables, and numbers as people read them.

All measurements use it. It remembers each table, so that `bench.run` can write them all as JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

#: The tables that were shown.
_shown: list[dict[str, object]] = []


def write(path: str, introduction: Sequence[str]) -> None:
    """Write the tables that were shown as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"introduction": list(introduction), "tables": _shown}, file, indent=1)
        file.write("\n")


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column to the left, the others to the right."""
    _shown.append({"title": title, "head": list(head), "rows": [list(row) for row in rows]})
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"\n{title}", _line(head, widths), "  ".join("-" * width for width in widths), sep="\n")
    for row in rows:
        print(_line(row, widths))
    print(end="", flush=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def times(values: Sequence[float], unit: float = 1.0) -> str:
    """``median (min)`` of seconds, in parts of ``unit``."""
    digits = 3 if unit == 1.0 else 1
    median, least = statistics.median(values) / unit, min(values) / unit
    return f"{median:.{digits}f} ({least:.{digits}f})"


def ratio(values: Sequence[float], base: Sequence[float]) -> str:
    """The median as a multiple of that of ``base``."""
    if not values or not base or statistics.median(base) == 0:
        return "-"
    return f"{statistics.median(values) / statistics.median(base):.2f}x"

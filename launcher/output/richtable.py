"""The result table on a terminal. The only module that imports rich: 60 ms, paid only there."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.model.report import Report
from launcher.output.table import HEAD, summary, table

_BAD = "bold red"
_STYLES = {"succeeded": "green", "failed": _BAD, "lost": _BAD, "stopped": "yellow", "cancelled": "dim"}


def rich_text(report: Report, width: int, colour: bool) -> str:
    """Table and summary for a terminal of this width."""
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=True,
        width=width,
        color_system="standard" if colour else None,
        markup=False,
        highlight=False,
        emoji=False,
    )
    shown = table(report)
    if shown.rows:
        console.print(_table(shown.rows, colour))
    for line in (*shown.others, *summary(report)):
        console.print(Text(line, style="" if not colour else _line_style(line, report)), soft_wrap=True)
    return out.getvalue()


def _table(rows: list[list[str]], colour: bool) -> Table:
    remarks = any(row[-1] for row in rows)
    grid = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    for name in [*HEAD, *([""] if remarks else [])]:
        justify = "right" if name in ("PORT", "INDEX", "TIME", "PEAK MEM") else "left"
        grid.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        cells = [*row[:-1], *([f"<- {row[-1]}" if row[-1] else ""] if remarks else [])]
        style = _STYLES.get(row[4], "") if colour else ""
        styles = [style if place in (4, 8) else "" for place in range(len(cells))]
        grid.add_row(*map(Text, cells, styles))
    return grid


def _line_style(line: str, report: Report) -> str:
    if not line.startswith("job "):
        return ""
    return "bold red" if report.failure or report.exit_code else "bold green"

"""The result table on a terminal. The only module that imports rich: 60 ms, paid only there."""

from __future__ import annotations

import io

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from launcher.output.table import HEAD, RIGHT, aligned, summary, table
from launcher.report import Report, TaskState

_UNLIMITED = 100_000
_BAD = "bold red"
_STYLES = {
    TaskState.SUCCEEDED: "green",
    TaskState.FAILED: _BAD,
    TaskState.LOST: _BAD,
    TaskState.STOPPED: "yellow",
    TaskState.CANCELLED: "dim",
}


def rich_text(report: Report, width: int, colour: bool) -> str:
    """Table and summary for a terminal of this width; a table that does not fit is plain and unwrapped."""
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
    grid = _table(shown.rows, colour)
    fits = Measurement.get(console, console.options.update(max_width=_UNLIMITED), grid).maximum <= width
    if shown.rows and fits:
        console.print(grid)
    for line in (*([] if fits else aligned(shown.rows)), *shown.others, *summary(report)):
        console.print(Text(line, style="" if not colour else _line_style(line, report)), soft_wrap=True)
    return out.getvalue()


def _table(rows: list[list[str]], colour: bool) -> Table:
    remarks = any(row[-1] for row in rows)
    grid = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    for name in [*HEAD, *([""] if remarks else [])]:
        justify = "right" if name in RIGHT else "left"
        grid.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        cells = [*row[:-1], *([f"<- {row[-1]}" if row[-1] else ""] if remarks else [])]
        style = _STYLES.get(TaskState(row[4]), "") if colour else ""
        styles = [style if place in (4, 8) else "" for place in range(len(cells))]
        grid.add_row(*map(Text, cells, styles))
    return grid


def _line_style(line: str, report: Report) -> str:
    if not line.startswith("job "):
        return ""
    return "bold red" if report.failure or report.exit_code else "bold green"

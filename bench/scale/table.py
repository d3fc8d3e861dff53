"""The table of a result of ``bench.scale``, as text and in Markdown.

``python -m bench.scale`` prints it, and `bench.scale.plot` prints it in Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench import tables
from bench.scale.cases import LINES, SINGLE_LINES
from bench.scale.simulation import Values

_MEGA = 1e6
#: The rows: the title, the names of values, the unit in which they are shown, and their digits.
_ROWS: Sequence[tuple[str, Sequence[str], float, int]] = (
    ("start to all running, s: wall / CPU", ("start_s", "start_cpu_s"), 1, 2),
    ("start, CPU ms a host", ("start_cpu_ms_a_host",), 1, 1),
    ("start, CPU s of the simulators", ("start_simulators_cpu_s",), 1, 2),
    ("end, s: wall / CPU", ("end_s", "end_cpu_s"), 1, 2),
    ("one fails to the last StopTasks, s", ("stop_s",), 1, 3),
    (f"the same at {LINES:,} lines/s, s", ("stop_printing_s",), 1, 3),
    ("all fail to the end of launch, s: wall / CPU", ("all_fail_s", "all_fail_cpu_s"), 1, 2),
    (f"output, of {LINES:,} lines/s: lines/s", ("lines_per_s",), 1, 0),
    ("output, CPU us a line", ("us_per_line",), 1, 1),
    (f"line by line, of {SINGLE_LINES:,} lines/s: lines/s", ("single_lines_per_s",), 1, 0),
    ("line by line, CPU us a line", ("us_per_single_line",), 1, 1),
    ("idle, CPU % of a core", ("idle_percent",), 1, 2),
    ("memory, MB", ("rss_bytes",), _MEGA, 0),
    ("threads", ("threads",), 1, 0),
    ("plan.json, MB", ("plan_bytes",), _MEGA, 2),
    ("launch ps RUN: s / CPU s / MB", ("ps_s", "ps_cpu_s", "ps_rss_bytes"), 1, 2),
    ("launch logs RUN -n 1: s / CPU s / MB", ("logs_s", "logs_cpu_s", "logs_rss_bytes"), 1, 2),
    ("launch attach RUN, 5 s: CPU s / MB", ("attach_cpu_s", "attach_rss_bytes"), 1, 2),
)


def show(result: Mapping[str, Any]) -> None:
    """Print the table of a result, with its notes."""
    print(f"launch {result['commit']}", result["machine"], sep="\n")
    sizes = result["sizes"]
    rows = [
        [title, *(_cell(size["values"], names, unit, digits) for size in sizes)]
        for title, names, unit, digits in _ROWS
    ]
    latency = f", {result['latency_ms']:g} ms away" if result["latency_ms"] else ""
    tables.show(
        f"simulated hosts{latency}; at most {result['limit_s']:.0f} s a step",
        ["hosts x tasks", *map(name_of, sizes)],
        rows,
    )
    for size in sizes:
        for note in size["notes"]:
            print(f"{name_of(size)}: {note}")


def _cell(values: Values, names: Sequence[str], unit: float, digits: int) -> str:
    """Return a cell: some values with slashes between them, and a dash for one that was not measured."""
    cells = []
    for name in names:
        if name not in values:
            cells.append("-")
        elif name.endswith("_rss_bytes"):
            cells.append(f"{values[name] / _MEGA:.0f}")
        else:
            cells.append(f"{values[name] / unit:,.{digits}f}")
    return " / ".join(cells)


def name_of(size: Mapping[str, Any]) -> str:
    """Return the name of a size, such as ``1000x4``."""
    return f"{size['hosts']}x{size['tasks']}"


def values_of(result: Mapping[str, Any], name: str) -> Values | None:
    """Return the values of a size in a result, or None if it was not measured."""
    return next((size["values"] for size in result["sizes"] if name_of(size) == name), None)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of several results, with arrows between the cells of a size, and the notes."""
    names = [name_of(size) for size in results[-1]["sizes"]]
    lines = [f"| hosts x tasks | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for title, keys, unit, digits in _ROWS:
        cells = [
            " → ".join(_cell(values_of(result, name) or {}, keys, unit, digits) for result in results)
            for name in names
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines.append("")
    for result in results:
        notes = [f"{name_of(size)}: {note}" for size in result["sizes"] for note in size["notes"]]
        lines.append(f"- Commit {result['commit']}, {result['machine']}. {'; '.join(notes)}".rstrip())
    return "\n".join(lines)

"""Draws how launch starts: ``python -m bench.scale.plot FILE.svg RESULT.json...``.

The results are those of ``bench.scale``. The picture has bars for each size, of seconds and of CPU seconds.
The program also prints the table of all values in Markdown. If there are two results, the first is that of
the earlier version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.scale.table import markdown, name_of, values_of

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 320, 50, 10, 60, 34
_ROOM = _HEIGHT - _TOP - _BOTTOM
#: The colours of the bars of each result, for wall time and CPU time. The last result has the strong colours.
_COLOURS = (("#9db4c8", "#dfcca6"), ("#2b6ca3", "#c9820f"))
#: The possible distances between two lines of the grid, in seconds.
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


class Bar(NamedTuple):
    """A bar of the picture, with the label above it. Without seconds only the label is drawn."""

    name: str
    colour: str
    seconds: float | None
    label: str


def draw(results: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG image with a group of bars for each size of the last result."""
    groups = {name: _bars(results, name) for name in map(name_of, results[-1]["sizes"])}
    most = max(bar.seconds or 0.0 for bars in groups.values() for bar in bars) or 1.0
    title = "Seconds from the command to all tasks running, hosts x tasks of each"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="11" role="img">',
        f"<title>{title}</title>",
        _rectangle(0, 0, _WIDTH, _HEIGHT, "#ffffff"),
        *_grid(most),
        _text(_LEFT, 18, title),
        *_legend(next(iter(groups.values()))),
    ]
    room = (_WIDTH - _LEFT - _RIGHT) / len(groups)
    for place, (name, bars) in enumerate(groups.items()):
        parts += _group(_LEFT + place * room, room, name, bars, most)
    return "\n".join([*parts, "</svg>", ""])


def _bars(results: Sequence[Mapping[str, Any]], name: str) -> list[Bar]:
    """Return the bars of a size, two for each result."""
    bars = []
    for result, colours in zip(results, _COLOURS[-len(results) :], strict=True):
        values = values_of(result, name)
        missing = "" if values is None else f"> {result['limit_s']:.0f}"
        for key, what, colour in zip(("start_s", "start_cpu_s"), ("wall", "CPU"), colours, strict=True):
            seconds = (values or {}).get(key)
            label = missing if seconds is None else f"{seconds:.1f}"
            bars.append(Bar(f"{what}, {result['commit']}", colour, seconds, label))
    return bars


def _grid(most: float) -> Iterator[str]:
    """Yield the lines of the grid with their labels, for bars of at most this number of seconds."""
    step = next((step for step in _STEPS if most / step <= 6), most)
    for number in range(int(most / step) + 1):
        y = _HEIGHT - _BOTTOM - _ROOM * number * step / most
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield _text(_LEFT - 6, y + 4, f"{number * step:g} s", "end")


def _legend(bars: Sequence[Bar]) -> Iterator[str]:
    """Yield a coloured square with its meaning for each bar of a group."""
    for number, bar in enumerate(bars):
        x = _LEFT + number * 170
        yield _rectangle(x, 27, 10, 10, bar.colour)
        yield _text(x + 15, 36, bar.name)


def _group(left: float, room: float, name: str, bars: Sequence[Bar], most: float) -> Iterator[str]:
    """Yield the bars of a size, with its name below them.

    Args:
        left: The left edge of the group.
        room: The width of the group.
        name: The name of the size.
        bars: The bars.
        most: The seconds of the highest bar of the picture.
    """
    yield _text(left + room / 2, _HEIGHT - _BOTTOM + 18, name, "middle")
    width = room * 0.8 / len(bars)
    for number, bar in enumerate(bars):
        x, tall = left + room * 0.1 + number * width, _ROOM * (bar.seconds or 0.0) / most
        yield _rectangle(x, _HEIGHT - _BOTTOM - tall, width - 2, tall, bar.colour)
        yield _text(x + width / 2 - 1, _HEIGHT - _BOTTOM - tall - 4, bar.label, "middle")


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Return a filled rectangle."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return a line of text, of which ``x`` is the start, the middle or the end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333333">{escape(text)}</text>'


def main(image: str, *files: str) -> int:
    """Write the picture, and print the table.

    Args:
        image: The path of the picture.
        files: The paths of the results, the earlier one first.
    """
    results = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    Path(image).write_text(draw(results), encoding="utf-8")
    print(markdown(results))
    return 0


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python -m bench.scale.plot FILE.svg [BEFORE.json] RESULT.json")
    sys.exit(main(*sys.argv[1:]))

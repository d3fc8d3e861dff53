"""Reads parts of the log of a task for the page: a window of it, or lines that contain some words.

A log may be of any size, grow, and contain anything. Each call reads a bounded part, and no control character
leaves this module, except by a download.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.common.text import escape_controls, shortened
from launcher.common.trusted_io import open_regular
from launcher.output.lines import clean_lines

#: The largest part of a log that is shown at once.
WINDOW_BYTES = 64 * 1024
_MAX_LINE_CHARACTERS = 4000
#: How much one search reads. It says where the next one has to go on.
_SEARCH_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_MAX_FOUND = 200


def window(path: str, start: int | None) -> Mapping[str, Any]:
    """Return a part of a log as text, and where it is.

    Args:
        path: The path of the log.
        start: Where it begins. None for the last part.

    Returns:
        ``text``, ``start``, ``end`` and ``size`` in bytes, and ``rest``: the line at the end of the log that
        is not finished yet. ``end`` is behind the last complete line, unless a line is too long.

    Raises:
        OSError: The log cannot be read.
    """
    with open_regular(path, links=False) as file:
        size = os.fstat(file.fileno()).st_size
        first = max(0, size - WINDOW_BYTES) if start is None else min(start, size)
        file.seek(first)
        data = file.read(min(WINDOW_BYTES, size - first))
    if start is None and first:  # It begins within a line.
        cut = data.find(b"\n") + 1
        first, data = first + cut, data[cut:]
    length = data.rfind(b"\n") + 1
    if not length and len(data) == WINDOW_BYTES:
        length = len(data)
    text, rest = shown(data[:length]), shown(data[length:])
    return {"text": text, "rest": rest, "start": first, "end": first + length, "size": size}


def search(path: str, words: str, before: int | None) -> Mapping[str, Any]:
    """Return the last lines of a log that contain some words, in whichever case.

    Args:
        path: The path of the log.
        words: What they contain.
        before: Where the search begins, backwards. None for the end of the log.

    Returns:
        ``lines``, the oldest first; ``before``, where another search has to go on; and whether the log is
        ``complete``: nothing is before that.

    Raises:
        OSError: The log cannot be read.
    """
    # Bytes of other than ASCII letters are compared as they are.
    sought, found = words.encode(errors="replace").lower(), list[bytes]()
    with open_regular(path, links=False) as file:
        size = os.fstat(file.fileno()).st_size
        end = size if before is None else min(before, size)
        lowest = max(0, end - _SEARCH_BYTES)
        while end > lowest and len(found) < _MAX_FOUND:
            start = max(0, end - _CHUNK_BYTES)
            file.seek(start)
            data = file.read(end - start)
            # A line that begins before the chunk is looked at with the chunk before, unless it is too long.
            cut = data.find(b"\n") + 1 if start else 0
            cut = cut if cut < len(data) else 0
            end = start + cut
            if sought in data[cut:].lower():
                lines = [line for line in data[cut:].split(b"\n") if sought in line.lower()]
                found = [*lines[-_MAX_FOUND:], *found]
    lines_shown = [shown(line[: 4 * _MAX_LINE_CHARACTERS]).strip("\n") for line in found[-_MAX_FOUND:]]
    return {"lines": lines_shown, "before": end, "complete": end == 0}


def pieces(path: str) -> tuple[int, Iterator[bytes]]:
    """Return the present size of a log, and its bytes up to that size, for a download.

    Raises:
        OSError: The log cannot be read.
    """
    file = open_regular(path, links=False)
    size = os.fstat(file.fileno()).st_size

    def read() -> Iterator[bytes]:
        with file:
            left = size
            while left and (data := file.read(min(left, WINDOW_BYTES))):
                left -= len(data)
                yield data

    return size, read()


def shown(data: bytes) -> str:
    """Return output as text for a browser, with escapes for what changes the direction of text."""
    lines = (escape_controls(line.replace("\t", "    ")) for line in clean_lines(data, is_cut=False))
    return "".join(f"{shortened(line, _MAX_LINE_CHARACTERS)}\n" for line in lines)

"""Reads parts of the log of a task for the page: a window of it, or lines that contain some words.

A log may be of any size, grow, and contain anything. Each call reads a bounded part, and no control character
leaves this module, except by a download.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.common.text import escape_controls, shortened
from launcher.common.trusted_io import open_regular
from launcher.output.lines import clean_lines

#: The largest part of a log that is shown at once.
WINDOW_BYTES = 64 * 1024
_MAX_LINE_CHARACTERS = 4000
#: How much of the end of a log a search reads.
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
    if start is None and first:  # The part may begin within a line, which is left out.
        cut = data.find(b"\n") + 1
        first, data = first + cut, data[cut:]
    length = data.rfind(b"\n") + 1
    # A line that is longer than a part is shown in pieces.
    if not length and len(data) == WINDOW_BYTES:
        length = len(data)
    text, rest = shown(data[:length]), shown(data[length:])
    return {"text": text, "rest": rest, "start": first, "end": first + length, "size": size}


def search(path: str, words: str) -> Mapping[str, Any]:
    """Return the last lines of a log that contain some words, in whichever case.

    Returns:
        ``lines``, the oldest first; and whether they are ``complete``: the log has no others.

    Raises:
        OSError: The log cannot be read.
    """
    # Bytes of other than ASCII letters are compared as they are.
    sought, found, count = words.encode(errors="replace").lower(), deque[bytes](maxlen=_MAX_FOUND), 0
    with open_regular(path, links=False) as file:
        start = max(0, os.fstat(file.fileno()).st_size - _SEARCH_BYTES)
        file.seek(start)
        # The log may grow faster than it is read.
        while file.tell() < start + _SEARCH_BYTES and (data := file.read(_CHUNK_BYTES)):
            # What is searched ends with a whole line, unless the line is too long.
            data += file.readline(_CHUNK_BYTES)
            if sought in data.lower():
                lines = [
                    line[: 4 * _MAX_LINE_CHARACTERS] for line in data.split(b"\n") if sought in line.lower()
                ]
                found.extend(lines)
                count += len(lines)
    return {
        "lines": [shown(line).strip("\n") for line in found],
        "complete": start == 0 and count == len(found),
    }


def pieces(path: str) -> Iterator[bytes]:
    """Return the bytes of a log up to its present size, for a download.

    Raises:
        OSError: The log cannot be read.
    """
    file = open_regular(path, links=False)
    size = os.fstat(file.fileno()).st_size

    def read() -> Iterator[bytes]:
        with file:
            while file.tell() < size and (data := file.read(WINDOW_BYTES)):
                yield data

    return read()


def shown(data: bytes) -> str:
    """Return output as text for a browser, with escapes for what changes the direction of text."""
    lines = (escape_controls(line.replace("\t", "    ")) for line in clean_lines(data, is_cut=False))
    return "".join(f"{shortened(line, _MAX_LINE_CHARACTERS)}\n" for line in lines)

"""Tries many things with launcher.storage at once: a program of the tests, as its libraries have threads.

It reads pairs of a command and a URL as JSON, and prints a result for each: ``error`` and ``final``, or
``found``.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcher.storage.store import StorageError, check_url, find_files, is_empty, open_url, store


def _written(url: str) -> None:
    store(io.BytesIO(b"" if "empty" in url else b"content"), url)


_COMMANDS: Mapping[str, Callable[[str], Any]] = {
    "find": lambda url: [file.url for file in find_files(url)],
    "check": check_url,
    "read": lambda url: open_url(url).read().decode(),
    "empty": is_empty,
    "write": _written,
}


def _tried(pair: tuple[str, str]) -> dict[str, Any]:
    command, url = pair
    try:
        return {"found": _COMMANDS[command](url)}
    except StorageError as error:
        return {"error": str(error), "final": error.is_final}


if __name__ == "__main__":
    pairs = json.load(sys.stdin)
    with ThreadPoolExecutor(len(pairs)) as pool:
        print(json.dumps(list(pool.map(_tried, pairs))))

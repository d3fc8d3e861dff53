"""Reads and writes files at URLs by launcher.storage: a program of the tests, as its libraries have threads.

It takes a command as words, and prints what it did as a line of JSON: see `main`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from typing import IO, Any

from launcher.storage.store import StorageError, find_files, is_empty, open_url, store


def main(command: str, *words: str) -> dict[str, Any]:
    """Do one thing: what it found.

    ``find PATTERN``, ``empty URL``, ``read URL [START]``, ``write FILE URL``. Reading and writing stop after
    the first megabytes and print a line, until a line comes in.
    """
    if command == "find":
        return {"files": [[file.url, file.size] for file in find_files(words[0])]}
    if command == "empty":
        return {"empty": is_empty(words[0])}
    if command == "read":
        with open_url(words[0], int(words[1]) if len(words) > 1 else 0) as file:
            return _summed(file)
    with open(words[0], "rb") as file:
        store(_Paused(file), words[1])  # type: ignore[arg-type]
    return {}


def _summed(file: IO[bytes]) -> dict[str, Any]:
    digest, size, longest = hashlib.sha256(), 0, 0.0
    while True:
        since = time.monotonic()
        data = file.read(1 << 20)
        longest = max(longest, time.monotonic() - since)
        if not data:
            return {"size": size, "sha256": digest.hexdigest(), "longest": longest}
        digest.update(data)
        if size == 0:
            _pause()
        size += len(data)


class _Paused:
    """A file whose reader is paused once, after its first piece."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._pieces = file, 0

    def read(self, size: int) -> bytes:
        self._pieces += 1
        if self._pieces == 3:
            _pause()
        return self._file.read(size)

    def seek(self, position: int) -> int:
        return self._file.seek(position)


def _pause() -> None:
    print("paused", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    since, result = time.monotonic(), {}
    try:
        result = main(*sys.argv[1:])
    except StorageError as error:
        result = {"error": str(error), "final": error.is_final}
    print(json.dumps({**result, "seconds": time.monotonic() - since, "threads": threading.active_count()}))

"""What the files of a folder hashed to the last time, so that only changed ones are read again.

And what its manifests hashed to: a host that has an earlier one need only be told what has changed.

A file counts as unchanged if size, times of change, inode and device are. Two changes can fall into the same
tick of a file system's clock, so nothing is remembered of a file that was changed just before it was read
(git calls such a file racy).
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import NamedTuple

from launcher.model.luggage import digest_of

#: Nanoseconds that a file must have been left alone: the coarsest clock ticks every two seconds.
_QUIET = 2_500_000_000
#: How many folders are remembered, and how many files of one.
_MOST_FOLDERS, _MOST_FILES = 64, 500_000
#: How many of its manifests.
_MOST_MANIFESTS = 8
#: As `digest_of` gives it.
_DIGEST = re.compile(r"[0-9a-f]{40}")
_FORM = 1


class Stamp(NamedTuple):
    """What changes whenever a file does."""

    size: int
    mtime: int
    ctime: int
    inode: int
    device: int


def stamp_of(status: os.stat_result) -> Stamp:
    """From what the system says about a file."""
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


class Hashes:
    """Remembered digests of the files below a folder. Only a cache: without it files are read.

    Args:
        folder: absolute.
        trusted: whether what was remembered counts; false: everything is read again.
    """

    def __init__(self, folder: str, trusted: bool = True) -> None:
        self._folder = folder
        self._place = cache_folder()
        self._path = f"{self._place}/{digest_of(os.fsencode(folder))}.json"
        known, self.manifests = self._read()
        self._known: dict[str, list[object]] = known if trusted else {}
        self._next: dict[str, list[object]] = {}

    def get(self, path: str, stamp: Stamp) -> str | None:
        """The digest of a file's content, if it is unchanged."""
        known = self._known.get(path)
        if not isinstance(known, list) or known[:-1] != list(stamp):
            return None
        self._next[path] = known
        return str(known[-1])

    def put(self, path: str, stamp: Stamp, content: str, read_at: int) -> None:
        """Remember a digest.

        Args:
            path: relative to the folder.
            stamp: as it was before and after the reading.
            content: the digest.
            read_at: when the reading began, nanoseconds since 1970.
        """
        if max(stamp.mtime, stamp.ctime) < read_at - _QUIET and len(self._next) < _MOST_FILES:
            self._next[path] = [*stamp, content]

    def save(self, manifest: str) -> None:
        """Write down what is known now; what is not in the folder any more is forgotten.

        Args:
            manifest: the digest of what it is now.
        """
        manifests = [manifest, *(one for one in self.manifests if one != manifest)][:_MOST_MANIFESTS]
        if (self._next, manifests) == (self._known, self.manifests):
            return
        found = {"form": _FORM, "folder": self._folder, "files": self._next, "manifests": manifests}
        new = f"{self._path}.{os.getpid()}"
        try:
            os.makedirs(self._place, mode=0o700, exist_ok=True)
            with open(new, "w", encoding="ascii") as file:
                json.dump(found, file)
            os.replace(new, self._path)
            self._forget_others()
        except OSError:
            return

    def _read(self) -> tuple[dict[str, list[object]], list[str]]:
        """What is remembered of the files, and the digests of the manifests, the latest first."""
        try:
            with open(self._path, encoding="ascii") as file:
                found = json.load(file)
            good = found["form"] == _FORM and found["folder"] == self._folder
            manifests = [one for one in map(str, found.get("manifests", ())) if _DIGEST.fullmatch(one)]
            return (dict(found["files"]), manifests) if good else ({}, [])
        except (OSError, ValueError, KeyError, TypeError):
            return {}, []

    def _forget_others(self) -> None:
        """The folders that were synced longest ago, once there are too many; and what was half written."""
        with os.scandir(self._place) as found:
            files = sorted((file.stat().st_mtime, file.path) for file in found)
        for _, path in files[: max(0, len(files) - _MOST_FOLDERS)]:
            os.unlink(path)


def cache_folder() -> str:
    """Where digests are remembered."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.expanduser("~/.cache")
    return os.path.join(cache, "tf-launcher", "hashes")


def now() -> int:
    """Nanoseconds since 1970, by the clock that file systems use."""
    return time.time_ns()

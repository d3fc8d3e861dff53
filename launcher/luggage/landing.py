"""Files that arrive: each complete or not at all, and none outside the folder they were meant for.

Paths come from another machine. They are walked folder by folder without following links, so that a link
among what arrives, or one that is there, leads nowhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from launcher.model.luggage import FOLDER, LINK, Entry, LuggageError, check_path, digest, folder_of

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Landing:
    """A folder that things arrive in. A context manager.

    Args:
        into: its path; made when the first thing arrives.
    """

    def __init__(self, into: str) -> None:
        self._into = into
        self._top = -1
        #: The folder used last: most things arrive in the same as the one before.
        self._last: tuple[str, int] | None = None
        self._modes: list[Entry] = []

    def put(self, entry: Entry) -> None:
        """Make a folder or a link. A folder's permissions are set at the end.

        Raises:
            OSError: it can't be made.
        """
        check_path(entry.path)
        if entry.kind == FOLDER:
            self._folder(entry.path)
            self._modes.append(entry)
            return
        if entry.kind != LINK:
            raise LuggageError(f"{entry.path!r} is of no kind that can arrive")
        folder, name, new = self._place(entry.path)
        os.symlink(entry.content, new, dir_fd=folder)
        self._move(new, name, folder)

    def file(self, entry: Entry) -> Arrival:
        """A file begins to arrive.

        Raises:
            OSError: it can't be made.
        """
        check_path(entry.path)
        folder, name, new = self._place(entry.path)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        kept = os.dup(folder)
        return Arrival(fd, entry, lambda: self._move(new, name, kept), lambda: _remove(new, kept), kept)

    def _place(self, path: str) -> tuple[int, str, str]:
        """The folder a thing goes to, its name, and its name until it is complete."""
        name = path.rpartition("/")[2]
        return self._folder(folder_of(path)), name, f".tf-launcher-{os.urandom(8).hex()}"

    def _move(self, new: str, name: str, folder: int) -> None:
        try:
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            _remove(new, folder)
            error.filename, error.filename2 = name, None
            raise

    def _folder(self, path: str) -> int:
        """A folder below the top, made if it is not there; good until the next call."""
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        fd = os.dup(self._open_top())
        try:
            for part in filter(None, path.split("/")):
                fd = _step(fd, part)
        except BaseException:
            os.close(fd)
            raise
        self._let_go()
        self._last = (path, fd)
        return fd

    def _open_top(self) -> int:
        if self._top < 0:
            os.makedirs(self._into, exist_ok=True)
            self._top = os.open(self._into, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._top

    def _let_go(self) -> None:
        if self._last is not None:
            os.close(self._last[1])
            self._last = None

    def finish(self) -> None:
        """All is here: set the folders' permissions, the deepest first."""
        for entry in reversed(self._modes):
            os.fchmod(self._folder(entry.path), entry.mode & 0o777)
        self._modes.clear()

    def __enter__(self) -> Landing:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()
        if self._top >= 0:
            os.close(self._top)
            self._top = -1


def _step(fd: int, part: str) -> int:
    """From a folder into one in it; closes the first, unless it fails."""
    try:
        below = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
    except FileNotFoundError:
        os.mkdir(part, 0o777, dir_fd=fd)
        below = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
    os.close(fd)
    return below


class Arrival:
    """A file that arrives, under another name until it is complete and right."""

    def __init__(
        self, fd: int, entry: Entry, keep: Callable[[], None], drop: Callable[[], None], folder: int
    ) -> None:
        self._fd = fd
        self._entry = entry
        self._keep = keep
        self._drop = drop
        self._folder = folder
        self._seen = digest()
        self.size = 0

    def write(self, data: bytes) -> None:
        """The next bytes of it.

        Raises:
            OSError: they can't be written.
        """
        self._seen.update(data)
        self.size += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def complete(self, content: str) -> None:
        """It has all arrived: let it be seen, if this is its digest.

        Raises:
            OSError: it can't be moved to its name.
            LuggageError: it was damaged on the way.
        """
        try:
            if self._seen.hexdigest() != content:
                raise LuggageError(f"{self._entry.path!r} was damaged on the way")
            os.fchmod(self._fd, stat.S_IMODE(self._entry.mode) & 0o777)
            os.utime(self._fd, ns=(self._entry.mtime, self._entry.mtime))
            self._keep()
        except BaseException:
            self._drop()
            raise
        finally:
            self._close()

    def abandon(self) -> None:
        """It will not be complete: away with it."""
        self._drop()
        self._close()

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._folder)


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return

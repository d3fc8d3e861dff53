"""Where things are on a host, who may touch them when, and what is said when the disk does not play along."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Callable, List, Optional

#: Seconds to wait for another launch that is busy here, and between two looks.
_PATIENCE, _LOOK = 600.0, 0.02
_FULL = {errno.ENOSPC: "no space left", errno.EDQUOT: "the quota is used up"}
_SHUT = (errno.EACCES, errno.EPERM, errno.EROFS)
_IN_THE_WAY = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


class Failed(Exception):
    """It can't be done; says why, to the user. The launcher puts the host's name before it."""


class Store(NamedTuple):
    """The folders of the cache."""

    root: str

    @property
    def blobs(self) -> str:
        """Contents."""
        return f"{self.root}/blobs"

    @property
    def tmp(self) -> str:
        """What is half done."""
        return f"{self.root}/tmp"

    @property
    def work(self) -> str:
        """Trees of runs."""
        return f"{self.root}/work"

    @property
    def spare(self) -> str:
        """Trees of runs that are over."""
        return f"{self.root}/spare"

    @property
    def place_lock(self) -> str:
        """Held while a tree is put in its place."""
        return f"{self.root}/place.lock"

    def new(self) -> str:
        """A path below `tmp` that nobody has."""
        return f"{self.tmp}/{os.getpid()}-{os.urandom(8).hex()}"


def home() -> str:
    """The user's home.

    Raises:
        Failed: there is none.
    """
    path = os.path.expanduser("~")
    if not os.path.isabs(path):
        raise Failed("the user has no home folder: HOME is not set")
    return path


def resolved(path: str) -> str:
    """An absolute path: ``~`` is the home, and what is relative is relative to the home."""
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return os.path.normpath(os.path.join(home(), path))


def store_of_user() -> Store:
    """Where the user's cache is; nothing is made."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Store(os.path.join(cache if os.path.isabs(cache) else f"{home()}/.cache", "tf-launcher"))


def jobs(store: Store) -> List[str]:
    """Names of runs that have a folder, or of which something is known.

    Raises:
        OSError: there are none, or nobody may look.
    """
    return sorted({name[1:] if name.startswith(".") else name for name in os.listdir(store.work)})


def open_store() -> Store:
    """The user's cache; its folders are made.

    Raises:
        OSError: they can't be made.
        Failed: there is no home to make them in.
    """
    store = store_of_user()
    if store.root.startswith(home() + "/") and not os.path.isdir(home()):
        raise Failed(f"the home folder {home()} is not there")
    for folder in (store.root, store.blobs, store.tmp, store.work):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return store


class Lock:
    """A lock between processes, also of several machines that share the folder. A context manager.

    Args:
        path: the file; made if it is not there.
        passing: whether it is removed at the end.
    """

    def __init__(self, path: str, passing: bool = False) -> None:
        self._path = path
        self._passing = passing
        self._fd = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def alone(self) -> bool:
        """Take it if nobody has it. A shared one that was held may be lost if not."""
        return self._take(fcntl.LOCK_EX)

    def share(self, waiting: Callable[[], None]) -> None:
        """Take it along with others; waits while somebody has it alone."""
        self._wait(fcntl.LOCK_SH, waiting)

    def take(self, waiting: Callable[[], None]) -> None:
        """Take it alone; waits while anybody has it, and calls ``waiting`` meanwhile."""
        self._wait(fcntl.LOCK_EX, waiting)

    def _wait(self, how: int, waiting: Callable[[], None]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not (self._take(how) and self._is_in_place()):
            if time.monotonic() > deadline:
                raise Failed(
                    f"another launch of this user has been busy in {self._path} for {_PATIENCE:.0f} s"
                )
            waiting()
            time.sleep(_LOOK)

    def _take(self, how: int) -> bool:
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Failed(
                f"can't lock {self._path}: {error.strerror}; it needs a disk that has locks"
            ) from error
        return True

    def _is_in_place(self) -> bool:
        """Whether others come to the same file; whoever had it before may have removed it."""
        try:
            if os.path.samestat(os.fstat(self._fd), os.stat(self._path)):
                return True
        except FileNotFoundError:
            pass
        os.close(self._fd)
        self._fd = self._open()
        return False

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._passing and self._take(fcntl.LOCK_EX) and self._is_in_place():
            os.unlink(self._path)
        os.close(self._fd)


def check_room(path: str, needed: int) -> None:
    """Pass if ``needed`` bytes fit where ``path`` is, or will be.

    Raises:
        Failed: they don't.
    """
    free = room(path)
    if free is not None and needed > free:
        raise Failed(f"disk full: {path} needs {size(needed)}, and {size(free)} are free there")


def room(path: str) -> Optional[int]:
    """Bytes that this user may still write where ``path`` is, or will be."""
    try:
        found = os.statvfs(existing(path))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def existing(path: str) -> str:
    """The path, or the nearest folder above it that is there."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def worded(error: OSError) -> str:
    """What is said about a failure of the disk: where, why, how much is free."""
    path = os.fsdecode(error.filename) if error.filename else store_of_user().root
    if error.errno in _FULL:
        free = room(path)
        left = "" if free is None else f" ({size(free)} free)"
        return f"disk full: {_FULL[error.errno]} at {path}{left}"
    if error.errno in _SHUT:
        where = existing(path)
        whose = "the home " if where == os.path.expanduser("~") else ""
        return f"{whose}{where} is not writable: {error.strerror} ({path})"
    if error.errno in _IN_THE_WAY:
        return f"{_in_the_way(path)} is in the way: it is no folder ({path})"
    return f"{path}: {error.strerror or error}"


def _in_the_way(path: str) -> str:
    while not _is_there(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _is_there(path: str) -> bool:
    try:
        return bool(stat.S_IFMT(os.lstat(path).st_mode))
    except OSError:
        return False


def size(value: int) -> str:
    """``512 kB``, ``12 MB``, ``3.4 GB`` (1 kB is 1000 bytes)."""
    if value < 999_500:
        return f"{value / 1e3:.0f} kB"
    return f"{value / 1e6:.0f} MB" if value < 999_500_000 else f"{value / 1e9:.1f} GB"

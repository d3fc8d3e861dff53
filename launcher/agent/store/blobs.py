"""Contents, each in a file named by its digest: nothing counts before it was verified."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from launcher.agent.store.home import Store
from launcher.model.luggage import digest

if TYPE_CHECKING:
    from typing import Callable, Iterable, Iterator, List, Set, Tuple

    from launcher.model.luggage import Data

_PIECE = 1024 * 1024


class Blobs:
    """The contents of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: Set[str] = set()
        #: What was taken in just now, and was verified then.
        self.fresh: Set[str] = set()

    def path(self, content: str) -> str:
        """Where this content is, or would be."""
        return f"{self._store.blobs}/{content[:2]}/{content[2:]}"

    def has(self, content: str, size: int) -> bool:
        """Whether it is there; then it counts as used now."""
        path = self.path(content)
        try:
            if os.stat(path).st_size != size:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def add(self, content: str, pieces: Iterable[Data]) -> bool:
        """Take in what comes in pieces.

        Returns:
            Whether it was this content; if not, nothing is kept.
        """
        path, new, seen = self.path(content), self._store.new(), digest()
        try:
            with open(new, "xb", buffering=0) as file:
                for piece in pieces:
                    seen.update(piece)
                    _write(file.fileno(), piece)
            if seen.hexdigest() != content:
                return False
            self._folder(os.path.dirname(path))
            os.rename(new, path)
            self.fresh.add(content)
            return True
        except OSError as error:
            error.filename = error.filename or path
            raise
        finally:
            _unlink(new)

    def _folder(self, path: str) -> None:
        if path not in self._made:
            os.makedirs(path, mode=0o700, exist_ok=True)
            self._made.add(path)

    def read(self, content: str) -> bytes:
        """A content that is small enough, such as a manifest's; empty if it is gone or damaged."""
        try:
            with open(self.path(content), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return b""
        seen = digest()
        seen.update(data)
        if seen.hexdigest() == content:
            return data
        self.discard(content)
        return b""

    def discard(self, content: str) -> None:
        """It is damaged: away with it."""
        _unlink(self.path(content))

    def prune(self, limit: int) -> None:
        """Let the least recently used go until the rest is within ``limit`` bytes.

        Only for whoever has the store alone.
        """
        found = sorted(self._all())
        total = sum(size for _, size, _ in found)
        for _, size, path in found:
            if total <= limit:
                return
            _unlink(path)
            total -= size

    def _all(self) -> Iterator[Tuple[int, int, str]]:
        """When last used, how many bytes, where."""
        for folder in _folders(self._store.blobs):
            with os.scandir(folder) as blobs:
                for blob in blobs:
                    status = blob.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield status.st_mtime_ns, max(status.st_size, status.st_blocks * 512), blob.path


def _folders(root: str) -> List[str]:
    with os.scandir(root) as folders:
        return [folder.path for folder in folders if folder.is_dir(follow_symlinks=False)]


def _write(fd: int, data: Data) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def copy(source: str, fd: int, content: str, alive: Callable[[], None]) -> bool:
    """Copy a file, and say whether it had this content: disks do fail, and users do edit."""
    seen = digest()
    with open(source, "rb", buffering=0) as file:
        while True:
            piece = file.read(_PIECE)
            if not piece:
                return seen.hexdigest() == content
            seen.update(piece)
            _write(fd, piece)
            alive()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return

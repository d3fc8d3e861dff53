"""Trees on the disk: made of contents, compared with a manifest, removed."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from launcher.agent.store.blobs import Blobs, copy
from launcher.model.luggage import FILE, FOLDER, LINK, SYNC_MARK

if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Sequence, Set

    from launcher.model.luggage import Entry

#: Why a file can't have a second name here.
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


class Sources:
    """Where the files of a new tree come from: the tree that is there, where it is unchanged; the cache.

    Args:
        blobs: the cache.
        old: where the tree is that an earlier sync made, and what it brought.
        brought: empty if there is none.
        alive: called often.
        stays: whether the tree stays, and so keeps its contents itself: what came just now is moved there out
            of the cache instead of being written twice.
        spare: whether nobody needs the old tree any more: its files are moved.
    """

    def __init__(
        self,
        blobs: Blobs,
        alive: Callable[[], None],
        old: str = "",
        brought: Iterable[Entry] = (),
        stays: bool = False,
        spare: bool = False,
    ) -> None:
        self._blobs = blobs
        self._alive = alive
        self._old = old
        self._stays = stays
        self._spare = spare
        self._moved: Dict[str, str] = {}
        self._kept: Dict[str, List[Entry]] = {}
        for entry in brought:
            if entry.kind == FILE and is_as_brought(old, entry):
                self._kept.setdefault(entry.content, []).append(entry)

    def have(self, entry: Entry) -> bool:
        """Whether this file's content is on the host."""
        return entry.content in self._kept or self._blobs.has(entry.content, entry.size)

    def can_link(self, entry: Entry) -> bool:
        """Whether this file takes no more room than it does already."""
        return entry in self._kept.get(entry.content, ())

    def put(self, entry: Entry, path: str) -> bool:
        """Make a file.

        Returns:
            Whether it could be done; if not, its content must come again.
        """
        kept = self._kept.get(entry.content, ())
        if (self.can_link(entry) and self._link(entry, path)) or self._move(entry, path):
            return True
        sources = [f"{self._old}/{other.path}" for other in kept]
        sources += [self._moved.get(entry.content, ""), self._blobs.path(entry.content)]
        for source in filter(None, sources):
            if _copied(source, path, entry, self._alive):
                return True
        self._kept.pop(entry.content, None)
        self._blobs.discard(entry.content)
        return False

    def _move(self, entry: Entry, path: str) -> bool:
        if not self._stays or entry.content not in self._blobs.fresh:
            return False
        try:
            os.rename(self._blobs.path(entry.content), path)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ENOENT):
                return False
            raise
        self._blobs.fresh.discard(entry.content)
        self._moved[entry.content] = path
        os.chmod(path, entry.mode)
        os.utime(path, ns=(entry.mtime, entry.mtime))
        return True

    def _link(self, entry: Entry, path: str) -> bool:
        """Nobody may see both names for long, so one file under two names does no harm."""
        try:
            if self._spare:
                os.rename(f"{self._old}/{entry.path}", path)
                self._moved[entry.content] = path
                return True
            os.link(f"{self._old}/{entry.path}", path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        return True


def _copied(source: str, path: str, entry: Entry, alive: Callable[[], None]) -> bool:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not copy(source, fd, entry.content, alive):
            return False
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.mtime, entry.mtime))
    except FileNotFoundError:
        return False
    except OSError as error:
        error.filename = error.filename or path
        raise
    finally:
        os.close(fd)
    return True


def build(entries: Sequence[Entry], root: str, sources: Sources, alive: Callable[[], None]) -> Set[str]:
    """Make a tree in a new folder.

    Args:
        entries: folders before what is in them.
        root: the folder; it is made.
        alive: called often.

    Returns:
        Contents that turned out to be damaged or gone: if there are any, the tree is not complete.
    """
    os.mkdir(root, 0o700)
    lost: Set[str] = set()
    for entry in entries:
        path = f"{root}/{entry.path}"
        if entry.kind == FOLDER:
            os.mkdir(path, 0o700)
        elif entry.kind == LINK:
            os.symlink(entry.content, path)
        elif not sources.put(entry, path):
            lost.add(entry.content)
        alive()
    return lost


def set_folder_modes(entries: Iterable[Entry], root: str) -> None:
    """The last thing to be done to a tree: nothing can be put into some folders afterwards."""
    for entry in reversed([entry for entry in entries if entry.kind == FOLDER]):
        os.chmod(f"{root}/{entry.path}", entry.mode)


def is_as_brought(root: str, entry: Entry) -> bool:
    """Whether this is still what a sync made: kind, permissions, size and time of change agree."""
    path = f"{root}/{entry.path}"
    try:
        status = os.lstat(path)
        if entry.kind == LINK:
            return stat.S_ISLNK(status.st_mode) and os.readlink(path) == entry.content
    except OSError:
        return False
    if stat.S_IMODE(status.st_mode) != entry.mode:
        return False
    if entry.kind == FOLDER:
        return stat.S_ISDIR(status.st_mode)
    return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime)


def keep(
    old: str, new: str, brought: Dict[str, Entry], wanted: Dict[str, Entry], alive: Callable[[], None]
) -> List[str]:
    """Give what no sync brought to the old tree (checkpoints, data, caches) a name in the new one too.

    Nothing is copied, so a program that has such a file open goes on with the same file. Can be repeated:
    then it adds what is new since.

    Args:
        old: the tree that will go.
        new: the tree that will stand in its place; its folders can be written to.
        brought: what the last sync brought, by path.
        wanted: what the new tree is made of, by path.
        alive: called often.

    Returns:
        Folders with such files that stand where the new tree has a file: they would be lost.
    """
    lost: List[str] = []
    ahead = [""]
    while ahead:
        folder = ahead.pop()
        alive()
        with os.scandir(f"{old}/{folder}") as found:
            for item in found:
                path = f"{folder}/{item.name}" if folder else item.name
                if path == SYNC_MARK:
                    continue
                if item.is_dir(follow_symlinks=False):
                    _keep_folder(old, new, path, brought, wanted, ahead, lost)
                elif path not in wanted and not (path in brought and is_as_brought(old, brought[path])):
                    _keep_file(f"{old}/{path}", new, path, wanted)
    return lost


def _keep_folder(
    old: str,
    new: str,
    path: str,
    brought: Dict[str, Entry],
    wanted: Dict[str, Entry],
    ahead: List[str],
    lost: List[str],
) -> None:
    there = wanted.get(path)
    if there is not None and there.kind != FOLDER:
        if _holds_others(old, path, brought):
            lost.append(path)
        return
    if there is None and path not in brought:
        _make_folders(old, new, path)
    ahead.append(path)


def _holds_others(old: str, path: str, brought: Dict[str, Entry]) -> bool:
    """Whether there is anything below this folder that no sync brought."""
    for parent, folders, files in os.walk(f"{old}/{path}"):
        relative = parent[len(old) + 1 :]
        if any(f"{relative}/{name}" not in brought for name in (*folders, *files)):
            return True
    return False


def _keep_file(source: str, new: str, path: str, wanted: Dict[str, Entry]) -> None:
    folder = path.rpartition("/")[0]
    if folder and not os.path.isdir(f"{new}/{folder}"):
        if any(above in wanted for above in _above(path)):
            return  # DIR has a file or link where this one's folder was; said before, if it matters
        _make_folders(source[: -len(path) - 1], new, folder)
    target = f"{new}/{path}"
    if os.path.lexists(target):
        if os.path.samestat(os.lstat(target), os.lstat(source)):
            return
        second = f"{new}/{os.urandom(8).hex()}"
        os.link(source, second, follow_symlinks=False)
        os.replace(second, target)
        return
    os.link(source, target, follow_symlinks=False)


def _above(path: str) -> List[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _make_folders(old: str, new: str, path: str) -> None:
    """Make a folder and those above it in the new tree, with the permissions they have in the old one."""
    for folder in (*_above(path), path):
        if not os.path.lexists(f"{new}/{folder}"):
            os.mkdir(f"{new}/{folder}", 0o700)
            os.chmod(f"{new}/{folder}", 0o700 | stat.S_IMODE(os.lstat(f"{old}/{folder}").st_mode))


def remove(root: str, alive: Callable[[], None]) -> None:
    """Remove a tree, also one whose folders can't be written to. Links are never followed.

    Args:
        root: its path; if there is nothing, all is well.
        alive: called often.

    Raises:
        OSError: something of it can't be removed; as much as possible is.
    """
    try:
        status = os.lstat(root)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(root)
        return
    folders = [root]
    for folder in folders:  # it grows
        alive()
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            os.chmod(folder, 0o700)
        with os.scandir(folder) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    folders.append(item.path)
                else:
                    os.unlink(item.path)
    for folder in reversed(folders):
        alive()
        os.rmdir(folder)

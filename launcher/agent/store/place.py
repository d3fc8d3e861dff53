"""Putting a tree in its place: at once, and never over something that is not ours."""

from __future__ import annotations

import ctypes
import errno
import os
import zlib
from typing import TYPE_CHECKING, NamedTuple

from launcher.agent.store.home import Failed, Lock, home, resolved, store_of_user, worded
from launcher.agent.store.tree import is_as_brought, keep, remove, set_folder_modes
from launcher.job import TASK_MARK
from launcher.model.luggage import MAX_MANIFEST, SYNC_MARK, LuggageError, digest_of, entries_of

if TYPE_CHECKING:
    from typing import Callable, Dict, Iterator, List, Optional, Sequence

    from launcher.model.luggage import Entry

_HEAD = b"This folder was brought here by launch --sync, which needs this file to do so again.\n"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
#: The file system or the kernel can't exchange two names.
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTTY, errno.EOPNOTSUPP)
#: What a folder beside the user's is called: the new tree while it is made, and the old one while it goes.
_NEW, _OLD, _LOCK = ".tf-launcher-new-", ".tf-launcher-old-", ".tf-launcher-lock"


class Standing(NamedTuple):
    """What stands where a tree is to go."""

    path: str
    #: Nothing at all, or an empty folder.
    empty: bool
    #: What an earlier sync brought here.
    brought: Sequence[Entry] = ()
    #: The digest of that manifest.
    manifest: str = ""


def claim(path: str) -> Lock:
    """What is to be held while anything is done to a place, also by other machines that share it.

    Args:
        path: from `place_named`.

    Raises:
        OSError: there can be no folder to put it in.
    """
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    return Lock(f"{folder}/{_name(name, _LOCK)}", passing=True)


def place_named(remote: str) -> str:
    """The path of the place the user named.

    Raises:
        Failed: nothing may ever be replaced there.
    """
    path = os.path.realpath(resolved(remote))
    for precious, name in ((home(), "the home folder"), (store_of_user().root, "the launcher's own cache")):
        if (os.path.realpath(precious) + "/").startswith(path.rstrip("/") + "/"):
            raise Failed(f"{path} can't be replaced: {name} is there; give a folder of its own")
    if os.path.ismount(path):
        raise _mounted(path)
    return path


def _mounted(path: str) -> Failed:
    return Failed(f"{path} can't be replaced: it is a mount point; give a folder below it")


def look(path: str, alive: Callable[[], None]) -> Standing:
    """What stands at a place that was claimed.

    Raises:
        Failed: it must not be replaced, and why.
    """
    _recover(path, alive)
    if not os.path.lexists(path):
        return Standing(path, True)
    if not os.path.isdir(path):
        raise Failed(f"{path} is in the way: it is a file; give another place, or remove it")
    if not os.listdir(path):
        return Standing(path, True)
    manifest = _read_mark(path)
    if manifest is None:
        raise Failed(
            f"{path} holds files, and no sync made it, so it is not replaced; give another place, or empty it"
        )
    return Standing(path, False, entries_of(manifest), digest_of(manifest))


def _read_mark(folder: str) -> Optional[bytes]:
    """The manifest of what was brought there; ``None``: nothing ever was."""
    try:
        with open(f"{folder}/{SYNC_MARK}", "rb") as file:
            if file.read(len(_HEAD)) != _HEAD:
                return None
            return zlib.decompressobj().decompress(file.read(), MAX_MANIFEST)
    except FileNotFoundError:
        return None
    except zlib.error as error:
        raise LuggageError(f"{folder}/{SYNC_MARK} is damaged") from error


def is_unchanged(standing: Standing, manifest: str) -> bool:
    """Whether there is nothing to do: the tree stands there, as it was brought."""
    return standing.manifest == manifest and all(
        is_as_brought(standing.path, entry) for entry in standing.brought
    )


def beside(standing: Standing) -> str:
    """Where the new tree is made: beside its place, so that it can be moved there at once."""
    folder, name = os.path.split(standing.path)
    return f"{folder}/{_name(name, _NEW)}{os.urandom(8).hex()}"


def _name(name: str, kind: str) -> str:
    """Within the 255 bytes a name may have, and the same for the same name."""
    return f".{digest_of(os.fsencode(name))[:12]}{kind}"


def settle(
    standing: Standing, new: str, entries: Sequence[Entry], manifest: bytes, alive: Callable[[], None]
) -> None:
    """Put a complete new tree where the old one is, with whatever no sync brought.

    Raises:
        Failed: tasks run there, or something would be lost.
    """
    with open(f"{new}/{SYNC_MARK}", "wb") as mark:
        mark.write(_HEAD + zlib.compress(manifest))
    if standing.empty:
        set_folder_modes(entries, new)
        os.chmod(new, 0o777 & ~_umask())
        _move(new, standing.path)
        return
    check_unused(standing)
    brought = {entry.path: entry for entry in standing.brought}
    wanted = {entry.path: entry for entry in entries}
    _keep_others(standing.path, new, brought, wanted, alive)
    set_folder_modes(entries, new)
    os.chmod(new, os.stat(standing.path).st_mode & 0o777)
    exchange(new, standing.path)
    keep(new, standing.path, brought, wanted, alive)
    remove(new, alive)


def _move(new: str, path: str) -> None:
    """To where nothing is, or an empty folder, which may be a mount point after all (of a bind)."""
    try:
        os.rename(new, path)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise _mounted(path) from error
        raise


def check_unused(standing: Standing) -> None:
    """Pass if no task runs there.

    Raises:
        Failed: one does; says which.
    """
    for user in () if standing.empty else _tasks_in(standing.path):
        raise Failed(f"{standing.path} is in use by {user}; wait for its end, or give another place")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _keep_others(
    old: str, new: str, brought: Dict[str, Entry], wanted: Dict[str, Entry], alive: Callable[[], None]
) -> None:
    try:
        lost = keep(old, new, brought, wanted, alive)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM):
            raise
        why = f"what no sync brought can't be kept: {worded(error)}"
        raise Failed(f"{old}: {why}; give another place, and leave this one to its files") from error
    if lost:
        raise Failed(
            f"{old}/{lost[0]} is a folder with files that no sync brought, and a file is to stand there"
        )


def exchange(new: str, old: str) -> None:
    """Let two folders swap their names: at no moment is there anything else than one of them.

    Where the file system can't do that there is a moment, shorter than a millisecond, without either;
    a sync that is killed in it is mended by the next.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an older C library
        return _swap(new, old)
    if rename(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
        return None
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return _swap(new, old)
    if number == errno.EBUSY:
        raise _mounted(old)
    raise OSError(number, os.strerror(number), old)


def _swap(new: str, old: str) -> None:
    folder, name = os.path.split(old)
    aside = f"{folder}/{_name(name, _OLD)}{os.urandom(8).hex()}"
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except OSError:
        os.rename(aside, old)
        raise
    os.rename(aside, new)


def _recover(path: str, alive: Callable[[], None]) -> None:
    """Remove what syncs left that were killed; nobody else is at work here: the place is claimed.

    An old tree without a new one in its place goes back there.
    """
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for left in sorted(names, reverse=True):
        if left.startswith(_name(name, _OLD)) and not os.path.lexists(path):
            os.rename(f"{folder}/{left}", path)
        elif left.startswith((_name(name, _OLD), _name(name, _NEW))):
            remove(f"{folder}/{left}", alive)


def _tasks_in(folder: str) -> Iterator[str]:
    """Tasks of launches, whosever, that have a process whose current folder is there."""
    for process in _processes():
        where = _current_folder(process)
        if where == folder or where.startswith(folder + "/"):
            task = task_of(process)
            if task:
                yield f"the task {task} (process {process})"


def _current_folder(process: str) -> str:
    try:
        return os.readlink(f"/proc/{process}/cwd")
    except OSError:
        return ""


def task_of(process: str) -> str:
    """``JOB:ROLE/INDEX``, if this process belongs to a task and may be looked at."""
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except OSError:
        return ""
    mark = TASK_MARK.encode() + b"="
    marks = [os.fsdecode(one[len(mark) :]) for one in environment if one.startswith(mark)]
    return marks[0] if marks else ""


def _processes() -> List[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def uses(folder: str, job: str) -> bool:
    """Whether a process of this job, or one whose current folder is in there, can be seen."""
    for process in _processes():
        where = _current_folder(process)
        if where == folder or where.startswith(folder + "/") or task_of(process).startswith(job + ":"):
            return True
    return False

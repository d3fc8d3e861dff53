"""Trees that ``--sync`` made on this host: where they are, what was brought, what an earlier run left.

Home folders may be shared between machines. So locks are those of files, and a run's folder that was not
removed at the end of the run goes only when no other machine used it and no process here belongs to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from typing import Dict, Iterator, List, Optional

from launcher.agent.transfer import FILE, FOLDER, SYNC_MARK, check_entry, entry_at
from launcher.errors import ProtocolError
from launcher.job import TASK_MARK
from launcher.protocol import FileEntry
from launcher.text import byte_size

#: Bytes of the trees of earlier runs, at most.
_MOST_KEPT = 2 * 1024**3
#: Seconds that a run's folder stays after the last use that this machine, or another one, knows of.
_UNUSED, _UNUSED_ELSEWHERE = 3600.0, 7 * 24 * 3600.0
#: Seconds to wait for another launch that works on the same tree.
_PATIENCE = 600.0
_MARK = "This folder was brought here by launch --sync, which needs this file to do so again."
_FULL = {errno.ENOSPC: "no space left", errno.EDQUOT: "the quota is used up"}


class Failed(Exception):
    """It can't be done; the text is for the user. The launcher puts the host's name before it."""


def resolved(path: str) -> str:
    """An absolute path: ``~`` is the home, and what is relative is relative to the home."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise Failed("the user has no home folder: HOME is not set")
    return os.path.normpath(os.path.join(home, path[2:] if path == "~" or path.startswith("~/") else path))


def cache() -> str:
    """The folder of the user's cache; nothing is made."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):
        folder = resolved(".cache")
        if not os.path.isdir(resolved("~")):
            raise Failed(f"the home folder {resolved('~')} is not there")
    return f"{folder}/tf-launcher"


def run_folder(job: str) -> str:
    """The folder of a run."""
    if not job or "/" in job or job.startswith(".") or "\0" in job:
        raise ProtocolError(f"{job!r} is not the name of a run")
    return f"{cache()}/work/{job}"


def runs() -> List[str]:
    """Names of the runs that have a folder here."""
    try:
        return sorted(os.listdir(f"{cache()}/work"))
    except (OSError, Failed):
        return []


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold a lock; waits while another process has it. The file is removed at the end.

    Raises:
        Failed: another process has it for too long, or the file system has no locks.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                break
        except (BlockingIOError, FileNotFoundError):  # in use; or its last holder removed it
            if time.monotonic() > deadline:
                os.close(fd)
                raise Failed(f"another launch has been at work in {path} for {_PATIENCE:.0f} s") from None
            time.sleep(0.02)
        except OSError as error:
            os.close(fd)
            raise Failed(f"can't lock {path}: {error.strerror}; it needs a disk that has locks") from error
        os.close(fd)
    try:
        yield
    finally:
        _unlink(path)
        os.close(fd)


def used(run: str) -> None:
    """This machine uses a run's folder now."""
    path = f"{run}/.used-{os.uname().nodename}"
    with open(path, "a", encoding="ascii"):
        os.utime(path)


def sweep() -> None:
    """Remove the folders of runs that nothing uses any more."""
    for job in runs():
        run = run_folder(job)
        try:
            uses = [name for name in os.listdir(run) if name.startswith(".used-")]
            last = max((os.stat(f"{run}/{name}").st_mtime for name in uses), default=os.stat(run).st_mtime)
        except OSError:  # it goes right now, or is not a run's
            continue
        here = set(uses) <= {f".used-{os.uname().nodename}"}
        if time.time() - last > (_UNUSED if here else _UNUSED_ELSEWHERE) and not _user_of(run, job):
            with contextlib.suppress(OSError):
                remove(run)


def discard(job: str) -> None:
    """Remove the folder of a run that is over; its trees are kept for the next run from the same folder."""
    run = run_folder(job)
    if not os.path.isdir(run):
        return
    with locked(f"{run}/.lock"):
        for name in os.listdir(run):
            if name.startswith(".") and os.path.isfile(f"{run}/{name}/list"):
                _keep(run, name[1:])
        remove(run)
    _prune()
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(run))


def _keep(run: str, key: str) -> None:
    """Move a tree of a run, without what its tasks made, to where the next run looks for it."""
    listing = Listing(f"{run}/.{key}/list", f"{run}/.{key}/tree")
    if listing.name and os.path.isdir(f"{run}/{listing.name}"):
        os.rename(f"{run}/{listing.name}", listing.root)
    listing.keep_only_unchanged()
    kept = f"{cache()}/trees/{key}"
    os.makedirs(os.path.dirname(kept), mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(kept, f"{run}/.old-{key}")
    with contextlib.suppress(OSError):  # another launch has just put its own there
        os.rename(f"{run}/.{key}", kept)


def _prune() -> None:
    """Remove the least recently used trees of earlier runs, until the others are within the limit."""
    top, total = f"{cache()}/trees", 0
    with contextlib.suppress(OSError):
        for folder in sorted(os.scandir(top), key=lambda one: one.stat().st_mtime, reverse=True):
            total += Listing(f"{folder.path}/list", f"{folder.path}/tree").size
            if total > _MOST_KEPT:  # first out of reach of a run that begins now
                os.rename(folder.path, f"{folder.path}.old")
                remove(f"{folder.path}.old")


class Listing:
    """What was brought into a tree, kept in a file.

    A file counts as what was brought as long as kind, mode, size and both times of change are the same.

    Args:
        path: the file; its first line is the name.
        root: the tree.
        name: of the tree, if the file is not there.
    """

    def __init__(self, path: str, root: str, name: str = "") -> None:
        self._path, self.root = path, root
        self.name = name
        self.entries: Dict[str, FileEntry] = {}
        self._changed_at: Dict[str, int] = {}
        try:
            with open(path, encoding="ascii") as file:
                self.name = str(json.loads(file.readline()))
                for line in file:
                    *fields, changed_at = json.loads(line)
                    entry = FileEntry(*fields)
                    check_entry(entry)
                    self.entries[entry.path], self._changed_at[entry.path] = entry, int(changed_at)
        except (OSError, ValueError, TypeError, ProtocolError):  # what can't be read counts for nothing
            return

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(entry.size for entry in self.entries.values())

    def save(self) -> None:
        """Write the list. Files that were not there when it was read are taken for what they are now."""
        with open(f"{self._path}.new", "w", encoding="ascii") as file:
            file.write(json.dumps(self.name) + "\n")
            for path, entry in self.entries.items():
                if entry.kind == FILE and path not in self._changed_at:
                    self._changed_at[path] = os.lstat(f"{self.root}/{path}").st_ctime_ns
                row = [*entry, self._changed_at.get(path, 0)]
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
        os.replace(f"{self._path}.new", self._path)

    def add(self, entry: FileEntry) -> None:
        """An entry has arrived."""
        self.entries[entry.path] = entry
        self._changed_at.pop(entry.path, None)

    def discard(self, path: str) -> None:
        """Remove an entry, also from the tree."""
        if self.entries.pop(path, None) is not None:
            _remove_one(f"{self.root}/{path}")

    def drop_changed(self) -> None:
        """Forget entries that are not in the tree as they were brought."""
        self.entries = {path: entry for path, entry in self.entries.items() if self._is_unchanged(entry)}

    def _is_unchanged(self, entry: FileEntry) -> bool:
        path = f"{self.root}/{entry.path}"
        try:
            status = os.lstat(path)
            there = entry_at(path, entry.path, status)
        except OSError:
            return False
        if entry.kind == FOLDER:  # its mode is set when the tree is complete
            return there is not None and there.kind == FOLDER
        return there == entry and self._changed_at[entry.path] in (0, status.st_ctime_ns)

    def keep_only_unchanged(self) -> None:
        """Remove from the tree all that was not brought; its folders can be written to then."""
        self.drop_changed()
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = f"{folder}/{name}"
                if name in folders and not os.path.islink(path):
                    os.chmod(path, 0o700)
                elif path[len(self.root) + 1 :] not in self.entries:
                    os.unlink(path)
        for folder, _, _ in os.walk(self.root, topdown=False):
            if folder != self.root and folder[len(self.root) + 1 :] not in self.entries:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


@contextlib.contextmanager
def begin(run: str, name: str, key: str) -> Iterator[Listing]:
    """Begin to build a tree of a run, from what an earlier run, or a launch that was cut off, left.

    If it is not completed, what has arrived is kept for the next launch.

    Args:
        run: the run's folder, which is locked.
        name: of the tree.
        key: names the folder on the launcher's machine that it comes from.
    """
    check_entry(FileEntry(name, FOLDER))
    check_entry(FileEntry(key, FOLDER))
    if "/" in name + key:
        raise ProtocolError(f"{name!r} is not the name of a folder")
    folder, path = f"{run}/.{key}", f"{run}/{name}"
    if not os.path.isdir(folder):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{cache()}/trees/{key}", folder)
    if os.path.isdir(path):  # another name of this machine, or one that shares its home, has brought it
        os.rename(path, f"{folder}/tree")
    os.makedirs(f"{folder}/tree", mode=0o700, exist_ok=True)
    listing = Listing(f"{folder}/list", f"{folder}/tree", name)
    listing.keep_only_unchanged()
    try:
        yield listing
    except BaseException:
        with contextlib.suppress(OSError):
            _keep(run, key)
        raise


# ---------------------------------------------------------------------- a place that stays


def place(remote: str) -> str:
    """The path of the place that the user named.

    Raises:
        Failed: nothing may ever be replaced there.
    """
    path = os.path.realpath(resolved(remote))
    for precious, name in ((resolved("~"), "the home folder"), (cache(), "the launcher's own cache")):
        if (os.path.realpath(precious) + "/").startswith(path.rstrip("/") + "/"):
            raise Failed(f"{path} can't be replaced: {name} is there; give a folder of its own")
    if os.path.ismount(path):
        raise Failed(f"{path} can't be replaced: it is a mount point; give a folder below it")
    return path


def beside(path: str, what: str) -> str:
    """A name beside a place: hidden, short enough, and the same for the same place."""
    folder, name = os.path.split(path)
    return f"{folder}/.tf-launcher-{what}-{hashlib.blake2b(os.fsencode(name), digest_size=6).hexdigest()}"


def brought_to(path: str) -> Listing:
    """What an earlier sync brought to a place, as far as it is unchanged.

    Raises:
        Failed: the place holds something else, which must not be replaced.
    """
    listing = Listing(f"{path}/{SYNC_MARK}", path)
    listing.drop_changed()
    if not os.path.lexists(path):
        return listing
    if not os.path.isdir(path):
        raise Failed(f"{path} is in the way: it is a file; give another place, or remove it")
    if os.listdir(path) and not _is_marked(path):
        raise Failed(
            f"{path} holds files, and no sync made it, so it is not replaced; give another place, or empty it"
        )
    return listing


def _is_marked(path: str) -> bool:
    try:
        with open(f"{path}/{SYNC_MARK}", "rb") as file:
            return _MARK.encode() in file.read(200)
    except OSError:
        return False


def merge(path: str, brought: Listing, gone: List[str], staged: Listing) -> None:
    """Make a place what the launcher's folder is; what no sync brought is kept.

    Args:
        path: the place.
        brought: what is there, as an earlier sync brought it.
        gone: what is to be removed of that.
        staged: what has arrived beside it.

    Raises:
        Failed: a task runs there, or something would be lost.
    """
    if os.path.isdir(path) and not gone and not staged.entries:
        return
    user = _user_of(path, "")
    if user:
        raise Failed(f"{path} is in use by {user}; wait for its end, or give another place")
    os.makedirs(path, mode=0o777, exist_ok=True)
    removed = [name for name in gone if name not in staged.entries]
    after = {name: entry for name, entry in brought.entries.items() if name not in removed}
    after.update(staged.entries)
    folders = sorted(entry for entry in after.values() if entry.kind == FOLDER)
    for entry in folders:
        with contextlib.suppress(OSError):
            os.chmod(f"{path}/{entry.path}", entry.mode | 0o700)
    for name in sorted(set(removed) & set(brought.entries), reverse=True):
        _remove_one(f"{path}/{name}")
    for entry in sorted(staged.entries.values()):
        target = f"{path}/{entry.path}"
        is_folder = os.path.isdir(target) and not os.path.islink(target)
        if entry.kind == FOLDER and not is_folder:
            _unlink(target)
            os.mkdir(target, entry.mode | 0o700)
        elif entry.kind != FOLDER:
            if is_folder:
                _remove_one(target)
            if is_folder and os.path.isdir(target):
                what = "is a folder with files that no sync brought, and a file is to stand there"
                raise Failed(f"{target} {what}")
            os.rename(f"{staged.root}/{entry.path}", target)
    for entry in reversed(folders):
        os.chmod(f"{path}/{entry.path}", entry.mode)
    for entry in staged.entries.values():
        brought.add(entry)
    brought.entries, brought.name = after, _MARK
    brought.save()


def _user_of(folder: str, job: str) -> str:
    """A process that runs in a folder, or belongs to a task of a job, in words; empty: there is none."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        task = ""
        with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
            for variable in file.read().split(b"\0"):
                if variable.startswith(TASK_MARK.encode() + b"="):
                    task = os.fsdecode(variable.partition(b"=")[2])
        if job and task.startswith(f"{job}:"):
            return f"the task {task} (process {process})"
        with contextlib.suppress(OSError):
            if (task or job) and f"{os.readlink(f'/proc/{process}/cwd')}/".startswith(f"{folder}/"):
                return f"the task {task} (process {process})"
    return ""


# ---------------------------------------------------------------------- disks


def remove(root: str) -> None:
    """Remove a tree, also one whose folders can't be written to. Links are never followed."""
    if os.path.islink(root) or not os.path.isdir(root):
        _unlink(root)
        return
    for folder, folders, _ in os.walk(root):
        for path in (f"{folder}/{name}" for name in folders):
            if not os.path.islink(path) and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                os.chmod(path, 0o700)
    shutil.rmtree(root)


def _remove_one(path: str) -> None:
    """Remove a file, a link or an empty folder, if it is there."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def check_room(path: str, needed: int) -> None:
    """Pass if ``needed`` bytes fit where ``path`` is.

    Raises:
        Failed: they don't.
    """
    free = _room(path)
    if free is not None and needed > free:
        raise Failed(f"disk full: {path} needs {byte_size(needed)}, and {byte_size(free)} are free there")


def _room(path: str) -> Optional[int]:
    """Bytes that this user may still write where ``path`` is, or will be."""
    try:
        found = os.statvfs(_existing(path))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _existing(path: str) -> str:
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def worded(error: OSError) -> str:
    """What a failure of the disk means for the user: where, why, how much is free."""
    path = os.fsdecode(error.filename) if error.filename else cache()
    if error.errno in _FULL:
        free = _room(path)
        left = "" if free is None else f" ({byte_size(free)} free)"
        return f"disk full: {_FULL[error.errno]} at {path}{left}"
    where = _existing(path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        home = "the home " if where == os.path.expanduser("~") else ""
        return f"{home}{where} is not writable: {error.strerror} ({path})"
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return f"{where} is in the way: it is not a folder ({path})"
    if error.errno in (errno.EXDEV, errno.EBUSY):
        return f"{path} can't be replaced: a mount point is in it; give a folder below that"
    return f"{path}: {error.strerror or error}"

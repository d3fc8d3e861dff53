"""The host's end of ``--sync``, ``--collect`` and ``--output-dirs``.

::

    ~/.cache/tf-launcher/        (or below $XDG_CACHE_HOME)
      work/JOB/NAME              a tree of a run, which its tasks run in
      work/JOB/.tf-launcher-output/TASK     what a task makes (``--output-dirs``)
      work/JOB/.KEY/             the tree while it arrives, and the list of what was copied
      trees/KEY/                 the tree of an earlier run from the same folder: its files need not travel
      locks/                     a lock for each KEY and each place that stays

Home folders may be shared between
machines: locks are those of files, and the folder of a run that never ended is removed only where no other
machine used it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import itertools
import json
import os
import shutil
import stat
import time
import zlib
from typing import AbstractSet, Any, Callable, Dict, Iterable, Iterator, List, Tuple

from launcher.agent.transfer import (
    FOLDER,
    MAX_ENTRIES,
    OUTPUTS,
    SYNC_MARK,
    FileStream,
    Landing,
    check_entry,
    entry_at,
    send_entries,
)
from launcher.errors import ProtocolError
from launcher.job import TASK_MARK
from launcher.protocol import (
    FileEntry,
    FileRemark,
    FilesDone,
    FilesFailed,
    FilesFollow,
    FilesListed,
)
from launcher.text import byte_size

#: Remarks about one thing that was asked for, and matches of a pattern that are looked at.
_MOST_REMARKS, _MOST_MATCHES = 20, 100_000
#: Bytes of the trees of earlier runs, at most.
_MOST_KEPT = 2 * 1024**3
#: Seconds after its last use for which the folder of a run stays.
_UNUSED = 3600.0
_MARK = "This folder was brought here by launch --sync, which needs this file to do so again."


class Failed(Exception):
    """It can't be done; the text is for the user. The launcher puts the host's name before it."""


class _Pipe(FileStream):
    """The launcher, at standard input and output."""

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def _read(self) -> bytes:
        data = os.read(0, 256 * 1024)
        if not data:
            raise EOFError
        return data


def _remote_command(function: Callable[[_Pipe, Any], Iterable[str]]) -> Callable[[Any], int]:
    """Make a remote command of a function: its answer, or why it failed, goes to the launcher."""

    @functools.wraps(function)
    def run(arguments: Any) -> int:
        pipe = _Pipe()
        try:
            try:
                answer: Any = FilesDone(tuple(function(pipe, arguments)))
            except (Failed, ProtocolError) as error:
                answer = FilesFailed(str(error))
            except OSError as error:
                answer = FilesFailed(_worded(error))
            pipe.put(answer)
            pipe.flush()
        except (BrokenPipeError, EOFError):  # the launcher is gone
            return 1
        return 0

    return run


# ---------------------------------------------------------------------- folders


def _resolved(path: str) -> str:
    """An absolute path: ``~`` is the home, and what is relative is relative to the home."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise Failed("the user has no home folder: HOME is not set")
    return os.path.normpath(os.path.join(home, path[2:] if path == "~" or path.startswith("~/") else path))


def _cache() -> str:
    """The folder of the user's cache; nothing is made."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):
        folder = _resolved(".cache")
        if not os.path.isdir(_resolved("~")):
            raise Failed(f"the home folder {_resolved('~')} is not there")
    return f"{folder}/tf-launcher"


def _run_folder(job: str) -> str:
    if not job or "/" in job or job.startswith(".") or "\0" in job:
        raise ProtocolError(f"{job!r} is not the name of a run")
    return f"{_cache()}/work/{job}"


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold a lock of this user on this home folder; waits while another process holds it."""
    os.makedirs(f"{_cache()}/locks", mode=0o700, exist_ok=True)
    with open(f"{_cache()}/locks/{name}", "a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _use(job: str) -> str:
    """The folder of a run, which this machine uses from now on."""
    run = _run_folder(job)
    os.makedirs(run, mode=0o700, exist_ok=True)
    mark = f"{run}/.used-{os.uname().nodename}"
    with open(mark, "a", encoding="ascii"):
        os.utime(mark)
    return run


def _sweep() -> None:
    """Remove folders of runs that only this machine used, and where no process belongs to them any more."""
    mine = f".used-{os.uname().nodename}"
    for mark in glob.glob(f"{glob.escape(_cache())}/work/*/{glob.escape(mine)}"):
        run = os.path.dirname(mark)
        with contextlib.suppress(OSError):
            old = time.time() - os.stat(mark).st_mtime > _UNUSED
            others = [name for name in os.listdir(run) if name.startswith(".used-") and name != mine]
            if old and not others and not _user_of(run, os.path.basename(run)):
                _remove(run)


def discard(job: str) -> None:
    """Remove the folder of a run that is over; its trees are kept for the next run from the same folder.

    Raises:
        OSError, Failed: it can't be removed.
    """
    run = _run_folder(job)
    for folder in glob.glob(f"{glob.escape(run)}/.*/"):
        key = os.path.basename(folder.rstrip("/"))[1:]
        with _locked(key):  # a copy that was cancelled goes on until it ends
            if os.path.exists(f"{folder}/list"):  # another host with the same home folder may have done it
                _keep(run, key)
    if os.path.isdir(run):
        with _locked("work"):
            _remove(run)
    kept, total = glob.glob(f"{glob.escape(_cache())}/trees/*/list"), 0
    with contextlib.suppress(FileNotFoundError):  # another launch has taken it
        for path in sorted(kept, key=os.path.getmtime, reverse=True):
            total += sum(entry.size for entry in _read_list(path)[1].values())
            folder = os.path.dirname(path)
            if total > _MOST_KEPT:
                with _locked(os.path.basename(folder)):
                    _remove(folder)


def _keep(run: str, key: str) -> None:
    """Move a tree of a run, without what its tasks made, to where the next run looks for it."""
    tree, kept = f"{run}/.{key}/tree", f"{_cache()}/trees/{key}"
    name, entries = _read_list(f"{run}/.{key}/list")
    if os.path.isdir(f"{run}/{name}"):
        os.rename(f"{run}/{name}", tree)
    known = _unchanged(tree, entries)
    for folder, folders, files in os.walk(tree):
        for item in [*folders, *files]:
            path = f"{folder}/{item}"
            if path[len(tree) + 1 :] not in known:
                _remove(path)
            elif item in folders and not os.path.islink(path):
                os.chmod(path, 0o700)
    os.utime(f"{run}/.{key}/list")
    os.makedirs(os.path.dirname(kept), mode=0o700, exist_ok=True)
    _remove(kept)
    os.rename(f"{run}/.{key}", kept)


# ---------------------------------------------------------------------- --sync


@_remote_command
def receive(pipe: _Pipe, arguments: Any) -> List[str]:
    """Make trees what they are on the launcher's machine.

    Args:
        pipe: the host sends for each tree what it has, and gets what is missing.
        arguments: ``{"job": JOB, "trees": [{"name": NAME, "remote": PLACE or None, "key": KEY}]}``.

    Returns:
        The paths of the trees.
    """
    _sweep()
    run = _use(str(arguments["job"]))
    paths = []
    for tree in arguments["trees"]:
        if tree["remote"] is None:
            folder, path = f"{run}/.{tree['key']}", f"{run}/{tree['name']}"
            with _locked(str(tree["key"])):
                if os.path.isdir(f"{_cache()}/trees/{tree['key']}") and not os.path.isdir(folder):
                    os.rename(f"{_cache()}/trees/{tree['key']}", folder)
                os.makedirs(folder, mode=0o700, exist_ok=True)
                if os.path.isdir(path):  # another host with the same home folder has made it
                    os.rename(path, f"{folder}/tree")
                _update(pipe, f"{folder}/tree", f"{folder}/list", str(tree["name"]), f"{folder}/new")
                os.rename(f"{folder}/tree", path)
        else:
            path = _resolved_place(str(tree["remote"]))
            digest = hashlib.blake2b(os.fsencode(path), digest_size=10).hexdigest()
            with _locked(digest):
                _check_place(path)
                stage = f"{os.path.dirname(path)}/.tf-launcher-new-{digest}"
                _update(pipe, path, f"{path}/{SYNC_MARK}", _MARK, stage)
        paths.append(path)
    return paths


def _update(pipe: _Pipe, root: str, list_path: str, title: str, stage: str) -> None:
    """Send what there is of a tree, take what is missing, and put it into its place.

    Args:
        pipe: the launcher.
        root: the tree.
        list_path, title: the list of what was copied there, and its first line.
        stage: the folder where files wait until all have arrived.

    Raises:
        Failed: there is no room, a task runs there, or something would be lost.
    """
    old_title, entries = _read_list(list_path)
    had = _unchanged(root, entries)
    _remove(stage)
    rows = "\n".join(map(json.dumps, had.values()))
    pipe.put(FilesListed(zlib.compress(rows.encode("ascii"), 1)))
    follow = pipe.get()
    if not isinstance(follow, FilesFollow):
        raise ProtocolError(f"{type(follow).__name__} at the wrong moment")
    if follow.size > (free := _room(root)):
        needed = f"{root} needs {byte_size(follow.size)}, and {byte_size(free)} are free there"
        raise Failed(f"disk full: {needed}")
    landing, gone = Landing(stage), set(follow.gone)
    try:
        while not isinstance(message := pipe.get(), FilesDone):
            landing.take(message)
        arrived = {path: FileEntry(path, FOLDER, mode) for path, mode in landing.folders.items()}
        arrived.update(_files_in(stage))
        after = {path: entry for path, entry in had.items() if path not in gone}
        if arrived or len(after) < len(had) or title != old_title or not os.path.isdir(root):
            _merge(root, had.keys() - after.keys(), stage, arrived)
            after.update(arrived)
            with open(f"{list_path}.new", "w", encoding="ascii") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in [title, *after.values()])
            os.replace(f"{list_path}.new", list_path)
        for entry in sorted(after.values(), reverse=True):
            if entry.kind == FOLDER:
                os.chmod(f"{root}/{entry.path}", entry.mode)
    except OSError as error:
        error.filename = error.filename if os.path.isabs(error.filename or "") else root
        raise
    finally:
        landing.close()
        _remove(stage)


def _merge(root: str, gone: AbstractSet[str], stage: str, arrived: Dict[str, FileEntry]) -> None:
    """Remove ``gone`` from a tree, and move what has arrived into it; all else there stays."""
    user = _user_of(root, "")
    if user:
        raise Failed(f"{root} is in use by {user}; wait for its end, or give another place")
    os.makedirs(root, exist_ok=True)
    for folder in {os.path.dirname(f"{root}/{path}") for path in (*gone, *arrived)}:
        with contextlib.suppress(OSError):
            if not os.path.islink(folder):
                os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o700)
    for path in sorted(gone, reverse=True):
        with contextlib.suppress(OSError):  # a folder may hold files that no sync brought
            is_folder = stat.S_ISDIR(os.lstat(f"{root}/{path}").st_mode)
            (os.rmdir if is_folder else os.unlink)(f"{root}/{path}")
    for entry in sorted(arrived.values()):
        target = f"{root}/{entry.path}"
        is_folder = os.path.isdir(target) and not os.path.islink(target)
        if entry.kind == FOLDER:
            if not is_folder:
                _remove(target)
                os.mkdir(target)
        elif is_folder:
            raise Failed(f"{target} is a folder with files that no sync brought; a file goes there")
        else:
            os.rename(f"{stage}/{entry.path}", target)


def _resolved_place(remote: str) -> str:
    """The path of the place that the user named.

    Raises:
        Failed: nothing may ever be replaced there.
    """
    path = os.path.realpath(_resolved(remote))
    for precious, name in ((_resolved("~"), "the home folder"), (_cache(), "the launcher's own cache")):
        if (os.path.realpath(precious) + "/").startswith(path.rstrip("/") + "/"):
            raise Failed(f"{path} can't be replaced: {name} is there; give a folder of its own")
    if os.path.ismount(path):
        raise Failed(f"{path} can't be replaced: it is a mount point; give a folder below it")
    return path


def _check_place(path: str) -> None:
    """Pass where there is nothing, an empty folder, or what an earlier sync made."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise Failed(f"{path} is in the way: it is a file; give another place, or remove it")
    if os.path.isdir(path) and os.listdir(path) and _read_list(f"{path}/{SYNC_MARK}")[0] != _MARK:
        fault = "holds files, and no sync made it, so it is not replaced"
        raise Failed(f"{path} {fault}; give another place, or empty it")


def _read_list(path: str) -> Tuple[str, Dict[str, FileEntry]]:
    """The first line of a list, and its entries; what can't be read counts for nothing."""
    try:
        with open(path, encoding="ascii") as file:
            title, *rows = [json.loads(line) for line in file]
            entries = {row[0]: FileEntry(*row[:6]) for row in rows}
            for entry in entries.values():
                check_entry(entry)
            return str(title), entries
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ProtocolError):
        return "", {}


def _unchanged(root: str, entries: Dict[str, FileEntry]) -> Dict[str, FileEntry]:
    """Those entries that are in a tree as they were copied there; the mode of a folder does not count."""
    found = {}
    for path, entry in entries.items():
        with contextlib.suppress(OSError):
            there = entry_at(f"{root}/{path}", path, os.lstat(f"{root}/{path}"))
            if there == entry or (there is not None and there.kind == entry.kind == FOLDER):
                found[path] = entry
    return found


def _files_in(root: str) -> Dict[str, FileEntry]:
    """The files and links below a folder, which may be missing."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            source = f"{folder}/{name}"
            entry = entry_at(source, source[len(root) + 1 :], os.lstat(source))
            if entry is not None and entry.kind != FOLDER:
                found[entry.path] = entry
    return found


def _user_of(folder: str, job: str) -> str:
    """A process of a task that runs in a folder, or belongs to a job, in words; empty: there is none."""
    mark = f"{TASK_MARK}=".encode()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{process}/environ", "rb") as file:
                marks = [variable for variable in file.read().split(b"\0") if variable.startswith(mark)]
            task = os.fsdecode(marks[-1][len(mark) :]) if marks else ""
            inside = f"{os.readlink(f'/proc/{process}/cwd')}/".startswith(f"{folder}/")
            if (job and task.startswith(f"{job}:")) or (inside and (task or job)):
                return f"the task {task} (process {process})"
    return ""


# ---------------------------------------------------------------------- --collect, --output-dirs


@_remote_command
def make_outputs(_: _Pipe, arguments: Any) -> List[str]:
    """Make a folder for what each task makes.

    Args:
        arguments: ``{"job": JOB, "names": [...], "mode": 448}``.

    Returns:
        The paths, in order.
    """
    top = f"{_use(str(arguments['job']))}/{OUTPUTS}"
    os.makedirs(top, mode=0o700, exist_ok=True)
    paths = [f"{top}/{name}" for name in arguments["names"]]
    for path in paths:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, int(arguments["mode"]) & 0o777)
    return paths


@_remote_command
def finish(_: _Pipe, arguments: Any) -> List[str]:
    """Remove the folders of a run. ``{"job": JOB}``."""
    discard(str(arguments["job"]))
    return []


@_remote_command
def give(pipe: _Pipe, arguments: Any) -> List[str]:
    """Send what was asked for.

    Args:
        pipe: gets for each item what it is, and `FilesDone`.
        arguments: ``{"items": [{"base": FOLDER, "path": PATH}]}``.

    A tree is sent as it is, with links as links; only what the user named may be a link to what is meant.
    """
    for item in arguments["items"]:
        _give_one(pipe, _resolved(str(item["base"])), str(item["path"]))
        pipe.put(FilesDone())
    return []


def _give_one(pipe: _Pipe, base: str, path: str) -> None:
    count = itertools.count(1)

    def remark(text: str) -> None:
        place = next(count)
        if place <= _MOST_REMARKS:
            pipe.put(FileRemark(text))
        elif place == _MOST_REMARKS + 1:
            pipe.put(FileRemark("there is more of this kind"))

    found = _find(base, path)
    if not found:
        looked = "" if path.startswith(("/", "~")) else f" (looked in {base})"
        remark(f"{path!r} is not there{looked}")
    pairs = itertools.chain.from_iterable(_entries(source, name, remark) for source, name in found)
    entries = list(itertools.islice(pairs, MAX_ENTRIES))
    if len(entries) == MAX_ENTRIES:
        remark(f"{path!r} holds more than {MAX_ENTRIES} files: the others are left out")
    pipe.put(FilesFollow(sum(entry.size for _, entry in entries)))
    send_entries(pipe, entries, lambda source, why: remark(f"{source}: {why}"))


def _entries(source: str, name: str, remark: Callable[[str], None]) -> Iterator[Tuple[str, FileEntry]]:
    """A file, or a tree with folders before what is in them, each with its path here.

    Args:
        source: where it is.
        name: its name at the other end; empty: only what is in it is meant.
        remark: called with what can't be sent, and why.
    """
    ahead = [(source, name)]
    for path, relative in ahead:  # it grows
        try:
            status = os.stat(path) if path == source and os.path.exists(path) else os.lstat(path)
            entry = entry_at(path, relative, status)
            inside = sorted(os.listdir(path)) if entry is not None and entry.kind == FOLDER else []
        except OSError as error:
            remark(f"{path}: {error.strerror}")
            continue
        if entry is None:
            remark(f"{path} is neither file, folder nor link: left out")
        elif relative:
            yield path, entry
        prefix = f"{relative}/" if relative else ""
        ahead += [(f"{path}/{item}", prefix + item) for item in inside if item != SYNC_MARK]


def _find(base: str, path: str) -> List[Tuple[str, str]]:
    """What a path or pattern means: where each thing is, and its name at the other end.

    What a pattern finds keeps the folders that the pattern left open: ``runs/*/model`` gives ``a/model``,
    ``b/model``.
    """
    path = _resolved(path) if path.startswith("~") else path
    whole = os.path.normpath(os.path.join(base, path))
    if os.path.lexists(whole):
        name = os.path.basename(path.rstrip("/"))
        name = "" if name in (".", "..") else name
        return [(whole, name or ("" if os.path.isdir(whole) else os.path.basename(whole)))]
    parts = path.split("/")
    fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts[:-1]))
    top = os.path.join(base, "/".join(fixed) or "/"[: path.startswith("/")])
    matches = glob.iglob(os.path.join(glob.escape(top), *parts[len(fixed) :]), recursive=True)
    kept: Dict[str, str] = {}
    for match in sorted({os.path.normpath(match) for match in itertools.islice(matches, _MOST_MATCHES)}):
        above = itertools.accumulate(match.split("/")[:-1], lambda head, part: f"{head}/{part}")
        if not any(folder in kept for folder in above):  # ``**`` finds a folder and what is in it
            name = os.path.relpath(match, top)
            kept[match] = "" if name == "." else name
    return list(kept.items())


# ---------------------------------------------------------------------- disks


def _remove(path: str) -> None:
    """Remove a file, a link or a tree, also one whose folders can't be written to. Links are not followed."""
    if os.path.islink(path) or not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    os.chmod(path, 0o700)
    for folder, folders, _ in os.walk(path):
        for name in folders:
            if not os.path.islink(f"{folder}/{name}"):
                os.chmod(f"{folder}/{name}", 0o700)
    shutil.rmtree(path)


def _room(path: str) -> int:
    """Bytes that this user may still write where ``path`` is, or will be."""
    found = os.statvfs(_existing(path))
    return found.f_bavail * found.f_frsize


def _existing(path: str) -> str:
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _worded(error: OSError) -> str:
    """What a failure of the disk means for the user: where, why, how much is free."""
    path = os.fsdecode(error.filename) if error.filename else _cache()
    where = _existing(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"disk full: {error.strerror} at {path} ({byte_size(_room(path))} free)"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        home = "the home " if where == os.path.expanduser("~") else ""
        return f"{home}{where} is not writable: {error.strerror} ({path})"
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return f"{where} is in the way: it is not a folder ({path})"
    return f"{path}: {error.strerror or error}"

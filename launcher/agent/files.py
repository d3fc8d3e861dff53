"""The host's end of ``--sync``, ``--collect`` and ``--output-dirs``.

::

    ~/.cache/tf-launcher/        (or below $XDG_CACHE_HOME)
      work/JOB/NAME              a tree of a run; its tasks run there
      work/JOB/.tf-launcher-output/TASK     what a task makes (``--output-dirs``)
      trees/KEY/                 the tree of an earlier run from the same folder, or one that is arriving
      locks/                     a lock for each tree of an earlier run and each place that stays

Each tree has a list of what was copied there (`SYNC_MARK`). Files arrive in a folder beside it. Home folders
may be shared between machines: locks are those of files, and the folder of a run that never ended is removed
where only processes used it that have provably ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import glob
import itertools
import os
import select
import shutil
import stat
import time
import zlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Tuple

from launcher.agent.identity import Fate, fate_of, owner_text, read_owner, this_process
from launcher.agent.processes import write_all
from launcher.agent.transfer import (
    FOLDER,
    OUTPUTS_FOLDER,
    SYNC_MARK,
    DestinationTree,
    TransferStream,
    digest,
    entries_below,
    entry_of,
    list_of,
    parse_list,
    send_entries,
)
from launcher.common.cluster import TASK_MARK
from launcher.common.errors import LaunchError, ProtocolError
from launcher.common.protocol import FileEntry, FileNotice, FilesDone, FilesFailed, FilesFollow, FilesNeeded
from launcher.common.trusted_io import open_regular, read_most

#: Bytes of the trees of earlier runs, at most.
_MAX_KEPT_BYTES = 2 * 1024**3
#: Seconds for which the folder of a run that did not end stays after its last use.
_MIN_UNUSED_SECONDS = 3600.0
#: The beginning of the names of marks in the folder of a run.
_USE_MARK_PREFIX = ".used-"


class _LauncherPipe(TransferStream):
    """The launcher, at standard input and output."""

    def _write(self, data: bytes) -> None:
        write_all(1, data)

    def _read(self) -> bytes:
        data = os.read(0, 256 * 1024)
        if not data:
            raise EOFError
        return data


def _remote_command(function: Callable[[_LauncherPipe, Any], Iterable[str]]) -> Callable[[Any], int]:
    """Make a remote command of a function: send its result or its error to the launcher."""

    @functools.wraps(function)
    def run(arguments: Any) -> int:
        pipe = _LauncherPipe()
        try:
            try:
                answer: Any = FilesDone(tuple(function(pipe, arguments)))
            except LaunchError as error:
                answer = FilesFailed(str(error))
            except OSError as error:
                path = os.fsdecode(error.filename2 or error.filename or _cache_path())
                answer = FilesFailed(f"can't write {path}: {error.strerror or error}")
            pipe.put(answer)
            pipe.flush()
        except (BrokenPipeError, EOFError):  # the launcher is gone
            return 1
        return 0

    return run


# ---------------------------------------------------------------------- folders


def _resolved(path: str) -> str:
    """Return an absolute path: ``~`` is the home, and what is relative is relative to the home.

    Raises:
        LaunchError: The path needs a home, and there is none.
    """
    home = os.path.expanduser("~")
    if not os.path.isabs(path) and not os.path.isdir(home):
        raise LaunchError(f"the home folder {home} does not exist; give an absolute path, or set HOME")
    return os.path.normpath(os.path.join(home, path[2:] if path == "~" or path.startswith("~/") else path))


def cache_folder() -> str:
    """Return the path of the user's cache, which may not exist.

    Raises:
        LaunchError: It would be in a home that does not exist.
    """
    _resolved(os.environ.get("XDG_CACHE_HOME", ""))
    return _cache_path()


def _cache_path() -> str:
    """Return the same path, for those who only look there."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    return f"{folder if os.path.isabs(folder) else os.path.expanduser('~/.cache')}/tf-launcher"


def _make_cache() -> None:
    """Make the folders of the cache in which runs and their trees are.

    Raises:
        LaunchError: That is not possible. The user can do without.
    """
    try:
        cache = cache_folder()
        for name in ("trees", "work"):
            os.makedirs(f"{cache}/{name}", mode=0o700, exist_ok=True)
            if not os.access(f"{cache}/{name}", os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"{cache}/{name}")
        return
    except LaunchError:
        why = "there is no home folder"
    except OSError as error:
        why = f"can't write {error.filename}: {error.strerror}"
    raise LaunchError(
        f"{why}; --sync FOLDER:PLACE copies to another folder, and XDG_CACHE_HOME in the environment of "
        "logins there (/etc/environment) replaces ~/.cache"
    )


def _run_folder(run_name: str) -> str:
    if not run_name or "/" in run_name or run_name.startswith(".") or "\0" in run_name:
        raise ProtocolError(f"{run_name!r} is not the name of a run")
    return f"{_cache_path()}/work/{run_name}"


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold this user's lock for a folder, and wait while another process holds it.

    The lock is a file beside the folder, because no other place is known where this user can write. It is
    removed at the end. Whoever has waited for a lock that was removed meanwhile takes the next one.

    Raises:
        LaunchError: Another user has made that file.
    """
    above = os.path.dirname(path)
    lock = f"{above}/.tf-launcher-lock-{os.getuid()}-{digest(path)}"
    with contextlib.suppress(FileExistsError):  # a file has this name: to open the lock fails, with a message
        os.makedirs(above, exist_ok=True)
    while True:
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            error.filename = path
            raise
        with open(fd, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                raise LaunchError(f"{lock} belongs to another user; remove it, or give another place")
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(file.fileno(), lock):
                continue
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(lock)
            return


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except OSError:
        return False


def _remove(path: str) -> None:
    """Remove a file, a link or a tree, even if its folders are read-only. Links are not followed."""
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


def _user_of(folder: str, run_name: str = "") -> str:
    """Describe a process of a task that runs in a folder or belongs to a run.

    Returns:
        An empty text if there is no such process.
    """
    mark = f"{TASK_MARK}=".encode()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{process}/environ", "rb") as file:
                marks = [variable for variable in file.read().split(b"\0") if variable.startswith(mark)]
            task = os.fsdecode(marks[-1][len(mark) :]) if marks else ""
            inside = f"{os.readlink(f'/proc/{process}/cwd')}/".startswith(f"{folder}/")
            if (run_name and task.startswith(f"{run_name}:")) or (inside and (task or run_name)):
                return f"the task {task} (process {process})"
    return ""


# ---------------------------------------------------------------------- the end of a run


def discard(run_name: str) -> None:
    """Remove the folder of a run that is over; its trees are kept for the next run from the same folder.

    Raises:
        OSError, LaunchError: It cannot be removed.
    """
    run = _run_folder(run_name)
    with contextlib.suppress(FileNotFoundError):  # another host with the same home folder removes it
        for name in os.listdir(run):
            key, entries = _read_list(f"{run}/{name}")
            if key:
                kept = f"{_cache_path()}/trees/{key}"
                with _locked(kept):
                    _keep(f"{run}/{name}", kept, entries)
    if os.path.isdir(run):
        with _locked(run):
            _remove(run)
    marks, total = glob.glob(f"{glob.escape(_cache_path())}/trees/*/{SYNC_MARK}"), 0
    with contextlib.suppress(FileNotFoundError):  # another launch has taken it
        for path in sorted(marks, key=os.path.getmtime, reverse=True):
            tree = os.path.dirname(path)
            total += sum(entry.size for entry in _read_list(tree)[1].values())
            if total > _MAX_KEPT_BYTES:
                with _locked(tree):
                    _remove(tree)


def _keep(tree: str, kept: str, entries: Dict[str, FileEntry]) -> None:
    """Move a tree, without what its tasks made, to where the next run looks for it."""
    known = {SYNC_MARK, *_unchanged(tree, entries)}
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            path = f"{folder}/{name}"
            if path[len(tree) + 1 :] not in known:
                _remove(path)
    os.utime(f"{tree}/{SYNC_MARK}")
    _remove(kept)
    os.rename(tree, kept)


def _sweep() -> None:
    """Remove the folders of runs whose users have all provably ended; see `_use`."""
    for run in glob.glob(f"{glob.escape(_cache_path())}/work/*"):
        with contextlib.suppress(OSError):
            marks = [f"{run}/{name}" for name in os.listdir(run) if name.startswith(_USE_MARK_PREFIX)]
            if marks and all(map(_is_over, marks)) and not _user_of(run, os.path.basename(run)):
                _remove(run)


def _is_over(mark: str) -> bool:
    """Return whether the process that made a mark did so long ago, and has provably ended.

    Then all tasks of its machine can be seen here. A mark of an earlier version names only a machine, so it
    never counts as over.
    """
    with open_regular(mark, links=False) as file:
        old = time.time() - os.fstat(file.fileno()).st_mtime > _MIN_UNUSED_SECONDS
        found = read_owner(read_most(file).decode("utf-8", "replace"))
    return old and found is not None and fate_of(found[0]) is Fate.DEAD


@_remote_command
def finish(_: _LauncherPipe, arguments: Any) -> List[str]:
    """Remove the folders of a run. ``{"job": JOB}``."""
    discard(str(arguments["job"]))
    return []


# ---------------------------------------------------------------------- --sync, --output-dirs


@_remote_command
def receive(pipe: _LauncherPipe, arguments: Any) -> List[str]:
    """Update trees to the state of the launcher's, and make a folder for the results of each task.

    Args:
        pipe: For each tree the launcher sends its list, we answer with the entries we need, and get them.
        arguments: ``{"job": JOB, "trees": [{"name": NAME, "remote": PLACE or None, "key": KEY}],
            "outputs": [NAME], "mode": MODE}``; the mode is that of the folders for results.

    Returns:
        The paths of the trees, and the folder with the folders for results, which may not exist.
    """
    _sweep()
    run = _run_folder(str(arguments["job"]))
    if arguments["outputs"] or any(tree["remote"] is None for tree in arguments["trees"]):
        _make_cache()
    paths = []
    for tree in arguments["trees"]:
        if tree["remote"] is None:
            path, kept = f"{run}/{tree['name']}", f"{_cache_path()}/trees/{tree['key']}"
            with _locked(kept):
                # Another host with the same home folder may have made it.
                root = path if os.path.isdir(path) else kept
                _update(pipe, root)
                _use(run)
                os.rename(root, path)
        else:
            path = os.path.realpath(_resolved(str(tree["remote"])))
            _check_place(path)  # also before a lock is put beside it
            with _locked(path):
                _check_place(path)
                _update(pipe, path)
        paths.append(path)
    for name in arguments["outputs"]:
        _use(run)
        os.makedirs(f"{run}/{OUTPUTS_FOLDER}/{name}", exist_ok=True)
        os.chmod(f"{run}/{OUTPUTS_FOLDER}/{name}", int(arguments["mode"]) & 0o777)
    return [*paths, f"{run}/{OUTPUTS_FOLDER}"]


def _use(run: str) -> None:
    """Make the folder of a run, and mark it as used here, by the identity of this process.

    Whoever can tell that this process is dead can also see all tasks that run where it ran.

    Raises:
        EOFError: The launcher has closed the command: it removes the folder now.
    """
    poll = select.poll()
    poll.register(0, 0)  # only POLLHUP: the list of the next tree may be there
    if poll.poll(0):
        raise EOFError
    os.makedirs(run, mode=0o700, exist_ok=True)
    me = this_process()
    where = digest(f"{me.boot_id} {me.pid_namespace} {me.machine_id}")
    with open(f"{run}/{_USE_MARK_PREFIX}{where}", "w", encoding="utf-8") as mark:
        mark.write(owner_text(me))


def _check_place(path: str) -> None:
    """Check that a place may be replaced: it does not exist, is empty, or an earlier sync made it.

    Raises:
        LaunchError: It may not.
    """
    kept = [os.path.realpath(folder) + "/" for folder in (os.path.expanduser("~"), _cache_path())]
    if os.path.ismount(path) or any(folder.startswith(path.rstrip("/") + "/") for folder in kept):
        fault = "is a mount point, or holds the home folder or the launcher's cache, so it is not replaced"
        raise LaunchError(f"{path} {fault}; give a folder of its own")
    if os.path.exists(path) and os.listdir(path) and not _read_list(path)[0]:
        fault = "holds files, and no sync made it, so it is not replaced"
        raise LaunchError(f"{path} {fault}; give another place, or empty it")


def _update(pipe: _LauncherPipe, root: str) -> None:
    """Update a tree to the launcher's list of it. No file is replaced before all have arrived.

    Args:
        pipe: The launcher sends the list, we answer with the entries we need, and get them.
        root: The tree.

    Raises:
        LaunchError: A task runs there.
    """
    stage = f"{os.path.dirname(root)}/.tf-launcher-new-{digest(root)}"
    destination = DestinationTree(pipe, stage)
    packed = b"".join(destination.pieces(pipe.get(FileEntry)))
    key, entries = parse_list(zlib.decompress(packed).decode("ascii"))
    old_key, old_entries = _read_list(root)
    had = _unchanged(root, old_entries)
    same = {path: entry for path, entry in entries.items() if had.get(path) == entry}
    try:
        _remove(stage)
        destination.expect(sum(entry.size for path, entry in entries.items() if path not in same))
        pipe.put(FilesNeeded(bytes(path not in same for path in entries)))
        while isinstance(message := pipe.get(FileEntry, FilesDone), FileEntry):
            destination.land(message)
        gone = had.keys() - same.keys()
        if old_key and not (destination.entries or gone):
            return
        user = _user_of(root)
        if user:
            raise LaunchError(f"{root} is in use by {user}; wait until it is over, or give another place")
        if not old_key:  # before its first file: others check the place without the lock
            _write_list(root, stage, list_of(key, []))
        _merge(root, gone, stage, destination.entries)
        _write_list(root, stage, list_of(key, {**same, **destination.entries}.values()))
    except OSError as error:
        if not os.path.isabs(error.filename or ""):
            error.filename, error.filename2 = root, None
        raise
    finally:
        _remove(stage)


def _merge(root: str, gone: Iterable[str], stage: str, arrived: Dict[str, FileEntry]) -> None:
    """Remove ``gone`` from a tree, and move the entries that arrived into it; other files stay."""
    for path in sorted(gone, reverse=True):
        with contextlib.suppress(OSError):  # a folder may hold files that no sync copied
            is_folder = stat.S_ISDIR(os.lstat(f"{root}/{path}").st_mode)
            (os.rmdir if is_folder else os.unlink)(f"{root}/{path}")
    for path, entry in sorted(arrived.items()):
        if entry.kind == FOLDER:
            os.makedirs(f"{root}/{path}", exist_ok=True)
            os.chmod(f"{root}/{path}", entry.mode)
        else:
            os.rename(f"{stage}/{path}", f"{root}/{path}")


def _write_list(root: str, stage: str, text: str) -> None:
    """Put the list of a tree into it in one step. It may be the first file there."""
    for folder in (root, stage):
        os.makedirs(folder, exist_ok=True)
    with open(f"{stage}/{SYNC_MARK}", "w", encoding="ascii") as file:
        file.write(text)
    os.replace(file.name, f"{root}/{SYNC_MARK}")


def _read_list(root: str) -> Tuple[str, Dict[str, FileEntry]]:
    """Return the key of a tree, and its entries as they were copied there, or nothing if no sync made it."""
    try:
        with open(f"{root}/{SYNC_MARK}", encoding="ascii") as file:
            key, entries = parse_list(file.read())
        return (key, entries) if key.isalnum() else ("", {})
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ProtocolError, RecursionError):
        return "", {}


def _unchanged(root: str, entries: Dict[str, FileEntry]) -> Dict[str, FileEntry]:
    """Return the entries of a tree that have not changed since they were copied."""
    found = {}
    for path, entry in entries.items():
        with contextlib.suppress(OSError):
            source = f"{root}/{path}"
            if entry_of(path, os.lstat(source), source) == entry:
                found[path] = entry
    return found


# ---------------------------------------------------------------------- --collect


@_remote_command
def send(pipe: _LauncherPipe, arguments: Any) -> List[str]:
    """Send the requested files.

    Args:
        pipe: Gets for each item `FilesFollow`, its entries and `FilesDone`.
        arguments: ``{"items": [{"base": FOLDER, "path": PATH}]}``.

    Links are sent as links; only the path that the user named is followed.
    """

    def problem(source: str, why: str) -> None:
        pipe.put(FileNotice(f"{source}: {why}"))

    for item in arguments["items"]:
        path = str(item["path"])
        base = "/" if os.path.isabs(path) else _resolved(str(item["base"]))
        found = _find(base, path)
        if not found:
            looked = "" if path.startswith(("/", "~")) else f" (looked in {base})"
            pipe.put(FileNotice(f"{path!r} is not there{looked}", missing=True))
        entries = [pair for source, name in found for pair in entries_below(source, name, problem)]
        pipe.put(FilesFollow(sum(entry.size for _, entry in entries)))
        send_entries(pipe, entries, problem)
        pipe.put(FilesDone())
    return []


def _find(base: str, path: str) -> List[Tuple[str, str]]:
    """Resolve a path or pattern: the path of each match, and its name in the copy.

    A match keeps the folders for which the pattern has wildcards: ``runs/*/model`` gives ``a/model``,
    ``b/model``.
    """
    path = _resolved(path) if path.startswith("~") else path
    whole = os.path.normpath(os.path.join(base, path))
    if os.path.lexists(whole):
        name = os.path.basename(path.rstrip("/"))
        return [(whole, "" if name in (".", "..") else name)]
    parts = path.split("/")
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), parts[:-1])
    top = os.path.join(base, "/".join([*fixed, ""]))
    pattern = os.path.join(base, path)[len(top) :].rstrip("/")
    return [(match, match[len(top) :]) for match in sorted(glob.glob(glob.escape(top) + pattern))]

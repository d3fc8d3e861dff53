"""The host's end of ``--sync``, ``--collect`` and ``--output-dirs``.

The launcher runs `receive`, `send` and `finish` as remote commands. They use these folders::

    ~/.cache/tf-launcher/        (or below $XDG_CACHE_HOME)
      work/RUN/NAME              a tree of a run, in which its tasks run
      work/RUN/.tf-launcher-output/TASK     the folder for what a task makes (``--output-dirs``)
      trees/KEY/                 the tree of an earlier run from the same folder, or one that is arriving

Each tree contains a list of what was copied there (`SYNC_MARK`). Files arrive in a folder beside the tree, so
that no task sees a part of them. Nothing that no sync has made may be replaced or removed. Home folders may
be shared between machines. So locks are file locks, and the folder of a run that was cut off is removed only
if all processes that used it have provably ended.
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
from launcher.common.trusted_io import open_regular, read_at_most

# The trees of earlier runs are removed, the oldest first, if they are larger than this together.
_MAX_KEPT_BYTES = 2 * 1024**3
# The folder of a run that was cut off stays at least this long after it was used last.
_MIN_UNUSED_SECONDS = 3600.0
# The names of the marks in the folder of a run begin with this.
_USE_MARK_PREFIX = ".used-"


class _LauncherPipe(TransferStream):
    """The messages to and from the launcher, over the standard streams of a remote command."""

    def _write(self, data: bytes) -> None:
        """Write bytes to our stdout, which leads to the launcher."""
        write_all(1, data)

    def _read(self) -> bytes:
        """Wait for bytes from the launcher, and raise EOFError at the end of our stdin."""
        data = os.read(0, 256 * 1024)
        # No bytes mean that the launcher has closed the remote command, or is gone.
        if not data:
            raise EOFError
        return data


def _remote_command(function: Callable[[_LauncherPipe, Any], Iterable[str]]) -> Callable[[Any], int]:
    """Turn a function into a remote command that sends its result, or its error, to the launcher.

    Args:
        function: Called with the pipe to the launcher and the arguments of the remote command. It returns the
            paths for `FilesDone`.

    Returns:
        The remote command. It returns the exit status, which is 1 if the launcher is gone.
    """

    @functools.wraps(function)
    def run(arguments: Any) -> int:
        """Call the function, send the launcher its result or error, and return the exit status."""
        pipe = _LauncherPipe()
        try:
            try:
                answer: Any = FilesDone(tuple(function(pipe, arguments)))
            except LaunchError as error:
                answer = FilesFailed(str(error))
            except OSError as error:
                # filename2 is the destination of a rename. An error without any path is about the cache.
                path = os.fsdecode(error.filename2 or error.filename or _cache_path())
                answer = FilesFailed(f"cannot write {path}: {error.strerror or error}")
            pipe.put(answer)
            pipe.flush()
        except (BrokenPipeError, EOFError):
            # The launcher is gone, or has closed this command. Nobody reads an answer.
            return 1
        return 0

    return run


# ---------------------------------------------------------------------- folders


def _resolved(path: str) -> str:
    """Return the absolute form of a path on this host.

    Args:
        path: An absolute path, or one that is relative to the home folder. ``~`` stands for the home folder.

    Raises:
        LaunchError: The path is in the home folder, which does not exist.
    """
    home = os.path.expanduser("~")
    if not os.path.isabs(path) and not os.path.isdir(home):
        raise LaunchError(f"the home folder {home} does not exist; give an absolute path, or set HOME")
    # What is left is relative to the home folder, which is joined below.
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return os.path.normpath(os.path.join(home, path))


def cache_folder() -> str:
    """Return the path of this user's cache folder, which may not exist.

    Raises:
        LaunchError: The path is in the home folder, which does not exist.
    """
    # This is only for its check: a cache folder that is not set as an absolute path needs a home folder.
    _resolved(os.environ.get("XDG_CACHE_HOME", ""))
    return _cache_path()


def _cache_path() -> str:
    """Return the path of this user's cache folder, without a check that it exists or could be made."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path must be ignored.
    return f"{folder if os.path.isabs(folder) else os.path.expanduser('~/.cache')}/tf-launcher"


def _make_cache() -> None:
    """Make the cache: a folder in which synced folders are kept between runs, and one for folders of runs.

    Raises:
        LaunchError: They cannot be made or written to. The error says how the user can do without them.
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
        why = f"cannot write {error.filename}: {error.strerror}"
    raise LaunchError(
        f"{why}; --sync FOLDER:PLACE copies to another folder, and XDG_CACHE_HOME in the environment of "
        "logins there (/etc/environment) replaces ~/.cache"
    )


def _run_folder(run_name: str) -> str:
    """Return the path of the folder of a run on this host.

    Raises:
        ProtocolError: The launcher has sent a name that would lead to another folder.
    """
    if not run_name or "/" in run_name or run_name.startswith(".") or "\0" in run_name:
        raise ProtocolError(f"{run_name!r} is not the name of a run")
    return f"{_cache_path()}/work/{run_name}"


def _is_foreign(path: str) -> bool:
    """Return whether there is something at a path that another user has made."""
    with contextlib.suppress(OSError):
        return os.lstat(path).st_uid != os.getuid()
    return False


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold this user's lock for a folder, after waiting while another process holds it.

    The lock is a file beside the folder, because this is the only place in which this user can surely write.
    It is removed when the context is left. A process that has waited for a lock which was removed meanwhile
    tries again with a new one.

    Args:
        path: The folder, which may not exist.

    Raises:
        LaunchError: Another user has made the file of the lock.
        OSError: The file of the lock cannot be made.
    """
    above = os.path.dirname(path)
    lock = f"{above}/.tf-launcher-lock-{os.getuid()}-{digest(path)}"
    # If a file is in the place of the folder above, opening the lock fails with a better message.
    with contextlib.suppress(FileExistsError):
        os.makedirs(above, exist_ok=True)
    foreign = f"{lock} belongs to another user; remove it, or give another place"
    while True:
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if _is_foreign(lock):
                raise LaunchError(foreign) from error
            # The user knows the folder, and not its lock.
            error.filename = path
            raise
        with open(fd, "rb") as file:
            # Another user may have made a lock that everybody can open.
            if os.fstat(file.fileno()).st_uid != os.getuid():
                raise LaunchError(foreign)
            fcntl.flock(file, fcntl.LOCK_EX)
            # If the process that held the lock before has removed its file, this lock is of no use.
            if not _is_at(file.fileno(), lock):
                continue
            try:
                yield
            finally:
                # The file is removed while its lock is still held, so that no other process uses it by then.
                with contextlib.suppress(OSError):
                    os.unlink(lock)
            return


def _is_at(fd: int, path: str) -> bool:
    """Return whether an open file still has this path, so it was not removed or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except OSError:
        return False


def _remove(path: str) -> None:
    """Remove a file, a link or a tree, even if its folders are read-only. Links are not followed.

    Args:
        path: What to remove. It need not exist.

    Raises:
        OSError: Something in the tree cannot be removed.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    # A file can be removed only if its folder is writable. Folders come before what they contain.
    os.chmod(path, 0o700)
    for folder, folders, _ in os.walk(path):
        for name in folders:
            # os.walk lists links to folders, too, and chmod would change the folder they lead to.
            if not os.path.islink(f"{folder}/{name}"):
                os.chmod(f"{folder}/{name}", 0o700)
    shutil.rmtree(path)


def _process_using(folder: str, run_name: str = "") -> str:
    """Look for a process that uses a folder, and return a description of it for the user.

    A process of a task has a variable of its environment that names the run and the task. The environment of
    other users' processes cannot be read, so they are not found.

    Args:
        folder: The folder. A process whose working directory is the folder, or is below it, uses it.
        run_name: The name of the run to which the folder belongs. All processes of its tasks use it, wherever
            they run. If it is empty, only processes of tasks count, of any run.

    Returns:
        An empty text if there is no such process.
    """
    prefix = f"{TASK_MARK}=".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # The process may have ended, or belong to another user.
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                marks = [variable for variable in file.read().split(b"\0") if variable.startswith(prefix)]
            # The value of the variable is RUN:TASK. A launch inside a task adds a second one, which counts.
            task = os.fsdecode(marks[-1][len(prefix) :]) if marks else ""
            belongs_to_run = bool(run_name) and task.startswith(f"{run_name}:")
            is_inside = f"{os.readlink(f'/proc/{pid}/cwd')}/".startswith(f"{folder}/")
            # The folder of a run belongs to that run alone, so in it even a process without a mark counts.
            # Another folder may be the user's, whose shell there does no harm.
            if belongs_to_run or (is_inside and (task or run_name)):
                return f"the task {task} (process {pid})"
    return ""


# ---------------------------------------------------------------------- the end of a run


def discard(run_name: str) -> None:
    """Remove the folder of a run that is over, but keep its trees for the next run from the same folders.

    A tree is the copy of a folder that ``--sync`` has made. The oldest of all trees that are kept are removed
    if they are too large together.

    Args:
        run_name: The name of the run.

    Raises:
        OSError: A file cannot be removed or moved.
        LaunchError: Another user has made the file of a lock.
    """
    run_folder = _run_folder(run_name)
    # Another host with the same home folder may be removing it at the same time.
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(run_folder):
            # The key stands for the folder of the user that was copied. The entries are the copied files.
            key, entries = _read_list(f"{run_folder}/{name}")
            # Only a tree that a sync has made has a key.
            if key:
                kept_tree = f"{_cache_path()}/trees/{key}"
                with _locked(kept_tree):
                    _keep(f"{run_folder}/{name}", kept_tree, entries)
    # The trees that are kept are no longer in it.
    if os.path.isdir(run_folder):
        with _locked(run_folder):
            _remove(run_folder)
    # Each tree contains a list of its files, which says their sizes.
    lists, kept_bytes = glob.glob(f"{glob.escape(_cache_path())}/trees/*/{SYNC_MARK}"), 0
    # Another launch may use a tree at this moment, and move it away.
    with contextlib.suppress(FileNotFoundError):
        # `_keep` sets the time of the list, so the tree that was kept last comes first.
        for path in sorted(lists, key=os.path.getmtime, reverse=True):
            tree = os.path.dirname(path)
            kept_bytes += sum(entry.size for entry in _read_list(tree)[1].values())
            if kept_bytes > _MAX_KEPT_BYTES:
                with _locked(tree):
                    _remove(tree)


def _keep(tree: str, kept_tree: str, entries: Dict[str, FileEntry]) -> None:
    """Remove all that tasks have made or changed in a tree, and move the tree to where the next run looks.

    Args:
        tree: The path of the tree in the folder of its run.
        kept_tree: The path where the next run looks for it. An older tree there is removed.
        entries: The entries of the tree, as they were copied there.
    """
    # The list itself, and all that is as it was copied, stays.
    unchanged_paths = {SYNC_MARK, *_unchanged(tree, entries)}
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            path = f"{folder}/{name}"
            if path[len(tree) + 1 :] not in unchanged_paths:
                _remove(path)
    # The list of the entries is in SYNC_MARK, and its time says when the tree was kept. `discard` removes the
    # oldest trees first.
    os.utime(f"{tree}/{SYNC_MARK}")
    _remove(kept_tree)
    os.rename(tree, kept_tree)


def _remove_abandoned_runs() -> None:
    """Remove the folders of runs that were cut off, if all processes that used them have provably ended.

    The marks of `_use`, a file in the folder for each host, tell which processes those are. What cannot be
    removed stays.
    """
    for run_folder in glob.glob(f"{glob.escape(_cache_path())}/work/*"):
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(run_folder) if name.startswith(_USE_MARK_PREFIX)]
            # Without any mark nothing is proven. Each host that has used the folder has left one.
            is_abandoned = bool(names) and all(_is_abandoned(f"{run_folder}/{name}") for name in names)
            if is_abandoned and not _process_using(run_folder, os.path.basename(run_folder)):
                _remove(run_folder)


def _is_abandoned(mark: str) -> bool:
    """Return whether a mark is old, and the process that made it has provably ended.

    A mark is a file in the folder of a run, which each host that uses the folder has left there. The end of a
    process can be proven only if it ran on this machine. Tasks that it may have left behind would then be on
    this machine, too, where `_process_using` finds them. A mark of an earlier version names only a machine,
    so it never counts as abandoned.

    Args:
        mark: The path of a mark that `_use` has made. It contains the identity of the process that made it.
    """
    # A link in the place of the file is refused.
    with open_regular(mark, links=False) as file:
        is_old = time.time() - os.fstat(file.fileno()).st_mtime > _MIN_UNUSED_SECONDS
        owner = read_owner(read_at_most(file).decode("utf-8", "replace"))
    # The first item of the owner is the identity of its process.
    return is_old and owner is not None and fate_of(owner[0]) is Fate.DEAD


@_remote_command
def finish(_: _LauncherPipe, arguments: Any) -> List[str]:
    """Remove the folder of a run, but keep its trees for the next run. This is a remote command.

    Args:
        arguments: ``job``, the name of the run.
    """
    discard(str(arguments["job"]))
    return []


# ---------------------------------------------------------------------- --sync, --output-dirs


@_remote_command
def receive(pipe: _LauncherPipe, arguments: Any) -> List[str]:
    """Update trees to the state that they have at the launcher, and make folders for the results of tasks.

    This is a remote command. A tree is the copy of a folder of the user (``--sync``).

    - With a place of its own (``--sync FOLDER:PLACE``), it stays there after the run.
    - Without one, it lies in the folder of the run. Between runs it is kept in the cache under its key, so
      that the next run of the same folder copies only what has changed.

    Args:
        pipe: The pipe to the launcher. For each tree it sends a list, see `_update`.
        arguments: ``{"job": RUN, "trees": [{"name": NAME, "remote": PLACE or None, "key": KEY}],
            "outputs": [NAME], "mode": MODE}``. ``outputs`` are the names of the folders for results, and
            ``mode`` is their mode.

    Returns:
        The paths of the trees, then that of the folder that contains the folders for results. It may not
        exist.
    """
    _remove_abandoned_runs()
    run_folder = _run_folder(str(arguments["job"]))
    # A tree without a place of its own lies in the folder of the run, and so do the folders for results.
    if arguments["outputs"] or any(tree["remote"] is None for tree in arguments["trees"]):
        _make_cache()
    paths = []
    for tree in arguments["trees"]:
        if tree["remote"] is None:
            path, kept_tree = f"{run_folder}/{tree['name']}", f"{_cache_path()}/trees/{tree['key']}"
            # Launches that copy the same folder wait here for each other.
            with _locked(kept_tree):
                # Another host with the same home folder may have updated the tree already.
                current = path if os.path.isdir(path) else kept_tree
                _update(pipe, current)
                # This makes the folder of the run, and fails if the launcher has given this command up.
                _use(run_folder)
                # From its place between runs it moves into the folder of the run, unless it is there.
                os.rename(current, path)
        else:
            path = os.path.realpath(_resolved(str(tree["remote"])))
            # The lock is a file beside the folder, so before it is made, the folder must be one to replace.
            _check_replaceable(path)
            with _locked(path):
                # The folder may have changed while this process waited for the lock.
                _check_replaceable(path)
                _update(pipe, path)
        paths.append(path)
    for name in arguments["outputs"]:
        # This makes the folder of the run if no tree has done so.
        _use(run_folder)
        os.makedirs(f"{run_folder}/{OUTPUTS_FOLDER}/{name}", exist_ok=True)
        # The mode of a new folder would depend on the umask. Only permission bits of the number are used.
        os.chmod(f"{run_folder}/{OUTPUTS_FOLDER}/{name}", int(arguments["mode"]) & 0o777)
    return [*paths, f"{run_folder}/{OUTPUTS_FOLDER}"]


def _use(run_folder: str) -> None:
    """Make the folder of a run, and mark it as used by this process.

    The mark is a file that contains the identity of this process. Later it tells whether the folder of a run
    that was cut off may be removed: a process that can prove that this one is dead can also see all tasks
    that run here.

    Args:
        run_folder: The path of the folder.

    Raises:
        EOFError: The launcher has closed this remote command, because it removes the folder now.
    """
    # A poll without waiting tells whether the launcher has closed our stdin.
    poll = select.poll()
    # Only the end of stdin is of interest. Without any flag, poll reports it and nothing else: not the list
    # of the next tree, which may wait to be read.
    poll.register(0, 0)
    if poll.poll(0):
        raise EOFError
    os.makedirs(run_folder, mode=0o700, exist_ok=True)
    me = this_process()
    # Hosts that share a home folder each write a mark of their own.
    host_key = digest(f"{me.boot_id} {me.pid_namespace} {me.machine_id}")
    with open(f"{run_folder}/{_USE_MARK_PREFIX}{host_key}", "w", encoding="utf-8") as mark:
        mark.write(owner_text(me))


def _check_replaceable(path: str) -> None:
    """Check that a folder may be replaced: it does not exist, is empty, or was made by an earlier sync.

    A mount point, or a folder that contains the home folder or the launcher's cache, may never be replaced.

    Args:
        path: The folder, with links resolved.

    Raises:
        LaunchError: The folder may not be replaced.
    """
    protected = [os.path.realpath(folder) + "/" for folder in (os.path.expanduser("~"), _cache_path())]
    if os.path.ismount(path) or any(folder.startswith(path.rstrip("/") + "/") for folder in protected):
        fault = "is a mount point, or holds the home folder or the launcher's cache, so it is not replaced"
        raise LaunchError(f"{path} {fault}; give a folder of its own")
    sync_key, _ = _read_list(path)
    if not sync_key and os.path.exists(path) and os.listdir(path):
        fault = "holds files, and no sync made it, so it is not replaced"
        raise LaunchError(f"{path} {fault}; give another place, or empty it")


def _update(pipe: _LauncherPipe, root: str) -> None:
    """Update a tree to the state that it has at the launcher. No file is replaced before all have arrived.

    The order makes an update that is cut off harmless. Files arrive in a stage, a folder beside the tree.
    Then the tree is changed, and its list (a file in the tree that says what a sync has copied there) is
    written last.

    Args:
        pipe: The pipe to the launcher. The launcher sends the list of the tree, this side answers which
            entries it needs, and the launcher sends those and `FilesDone`.
        root: The path of the tree here. The tree may be missing or older.

    Raises:
        LaunchError: A task runs in the tree.
        OSError: A file cannot be written. The error contains an absolute path.
    """
    stage = f"{os.path.dirname(root)}/.tf-launcher-new-{digest(root)}"
    destination = DestinationTree(pipe, stage)
    packed = b"".join(destination.pieces(pipe.get(FileEntry)))
    # The key stands for the user's folder that is copied. Of a tree that no sync has made, it is empty.
    # The launcher compresses the list and sends it as if it were the content of one file.
    key, entries = parse_list(zlib.decompress(packed).decode("ascii"))
    old_key, old_entries = _read_list(root)
    # What tasks have changed in the tree since the last sync counts as missing.
    present = _unchanged(root, old_entries)
    same = {path: entry for path, entry in entries.items() if present.get(path) == entry}
    try:
        # An update that was cut off may have left its files.
        _remove(stage)
        _receive_missing(pipe, destination, entries, same)
        # What was copied earlier, has not changed since, and is no longer there or differs at the launcher.
        outdated = present.keys() - same.keys()
        is_up_to_date = old_key and not (destination.entries or outdated)
        if is_up_to_date:
            return
        # A task must not find a mixture of old and new files.
        process = _process_using(root)
        if process:
            raise LaunchError(f"{root} is in use by {process}; wait until it is over, or give another place")
        # A new tree gets an empty list before its first file, because others check the place without the
        # lock, and would refuse a folder with files that no sync has made.
        if not old_key:
            _write_list(root, stage, list_of(key, []))
        _merge(root, outdated, stage, destination.entries)
        _write_list(root, stage, list_of(key, {**same, **destination.entries}.values()))
    except OSError as error:
        # The paths of files that arrive are relative to a descriptor of their folder.
        if not os.path.isabs(error.filename or ""):
            error.filename, error.filename2 = root, None
        raise
    finally:
        _remove(stage)


def _receive_missing(
    pipe: _LauncherPipe,
    destination: DestinationTree,
    entries: Dict[str, FileEntry],
    same: Dict[str, FileEntry],
) -> None:
    """Tell the launcher which entries of a tree are missing here, and receive them into the stage.

    Args:
        pipe: The pipe to the launcher.
        destination: Writes what arrives into the stage.
        entries: The entries that the tree shall have.
        same: Those of them that are here already.

    Raises:
        OSError: The disk lacks the room, or a file cannot be written.
    """
    # This checks that the disk has room, and limits how many bytes the launcher may send.
    destination.expect(sum(entry.size for path, entry in entries.items() if path not in same))
    # One byte for each entry of the list: 1 if the launcher must send it.
    pipe.put(FilesNeeded(bytes(path not in same for path in entries)))
    while isinstance(message := pipe.get(FileEntry, FilesDone), FileEntry):
        # The content of the file follows the message, and is read here.
        destination.land(message)


def _merge(root: str, outdated: Iterable[str], stage: str, arrived: Dict[str, FileEntry]) -> None:
    """Remove entries from a tree, and move those that have arrived into it. All other files stay.

    Args:
        root: The path of the tree.
        outdated: The paths in the tree of the entries to remove.
        stage: The folder in which the entries have arrived.
        arrived: The entries that have arrived, by their paths in the tree.
    """
    # In reverse order the content of a folder comes before the folder.
    for path in sorted(outdated, reverse=True):
        # A folder is not removed if it contains files that no sync has copied.
        with contextlib.suppress(OSError):
            is_folder = stat.S_ISDIR(os.lstat(f"{root}/{path}").st_mode)
            (os.rmdir if is_folder else os.unlink)(f"{root}/{path}")
    # In this order a folder comes before its content.
    for path, entry in sorted(arrived.items()):
        if entry.kind == FOLDER:
            os.makedirs(f"{root}/{path}", exist_ok=True)
            os.chmod(f"{root}/{path}", entry.mode)
        else:
            os.rename(f"{stage}/{path}", f"{root}/{path}")


def _write_list(root: str, stage: str, text: str) -> None:
    """Write the list of a tree's entries into its file `SYNC_MARK`, so that no reader sees a part of it.

    Args:
        root: The path of the tree, which is made if it does not exist.
        stage: A folder beside the tree, in which the list is written first. It is made, too.
        text: The list, in JSON that escapes what is not ASCII.
    """
    for folder in (root, stage):
        os.makedirs(folder, exist_ok=True)
    with open(f"{stage}/{SYNC_MARK}", "w", encoding="ascii") as file:
        file.write(text)
    os.replace(file.name, f"{root}/{SYNC_MARK}")


def _read_list(root: str) -> Tuple[str, Dict[str, FileEntry]]:
    """Return the key of a tree, and its entries as they were copied there.

    Returns:
        The key, and the entries by their paths in the tree. An empty key and no entries if no sync has made
        the tree, or a task has spoiled its list.
    """
    try:
        with open(f"{root}/{SYNC_MARK}", encoding="ascii") as file:
            key, entries = parse_list(file.read())
        # The key becomes part of a path, so it must not contain a slash or dots.
        return (key, entries) if key.isalnum() else ("", {})
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ProtocolError, RecursionError):
        return "", {}


def _unchanged(root: str, entries: Dict[str, FileEntry]) -> Dict[str, FileEntry]:
    """Return the entries whose files have not changed since they were copied into a tree.

    Args:
        root: The path of the tree.
        entries: The entries as they were copied, by their paths in the tree.
    """
    unchanged = {}
    for path, entry in entries.items():
        # A file that is gone, or cannot be read, counts as changed.
        with contextlib.suppress(OSError):
            source = f"{root}/{path}"
            if entry_of(path, os.lstat(source), source) == entry:
                unchanged[path] = entry
    return unchanged


# ---------------------------------------------------------------------- --collect


@_remote_command
def send(pipe: _LauncherPipe, arguments: Any) -> List[str]:
    """Send the files that the launcher collects. This is a remote command.

    Links are sent as links. Only a link that the user has named is followed.

    Args:
        pipe: The pipe to the launcher. For each item, the launcher is sent a `FileNotice` for each problem,
            `FilesFollow` with the size of all files, the entries with the content of files, and `FilesDone`.
        arguments: ``{"items": [{"base": FOLDER, "path": PATH}]}``. The path may be a pattern, and is relative
            to the folder.

    Returns:
        An empty list, because `FilesDone` at the end of the command needs no paths.
    """

    def tell_problem(source: str, why: str) -> None:
        """Tell the launcher why a file is left out or not copied as it is."""
        pipe.put(FileNotice(f"{source}: {why}"))

    for item in arguments["items"]:
        path = str(item["path"])
        # A relative path begins in the working folder of the task.
        base = "/" if os.path.isabs(path) else _resolved(str(item["base"]))
        matches = _find(base, path)
        if not matches:
            # The user knows where an absolute path, or one in the home folder, was looked for.
            looked = "" if path.startswith(("/", "~")) else f" (looked in {base})"
            # The launcher tells the user that an item is missing, which is not just a file left out.
            pipe.put(FileNotice(f"{path!r} is not there{looked}", missing=True))
        entries: List[Tuple[str, FileEntry]] = []
        for source, name in matches:
            entries += entries_below(source, name, tell_problem)
        # This is the size of all files. The launcher first checks that its disk has room for them.
        pipe.put(FilesFollow(sum(entry.size for _, entry in entries)))
        send_entries(pipe, entries, tell_problem)
        pipe.put(FilesDone())
    return []


def _find(base: str, path: str) -> List[Tuple[str, str]]:
    """Return the files and folders that a path or pattern matches.

    Args:
        base: The folder that the pattern is relative to.
        path: A path, or a pattern such as ``runs/*/model``.

    Returns:
        For each match, its path on this host and its path in the copy. The latter begins where the wildcards
        of the pattern begin: ``a/model`` and ``b/model`` in this example. Without wildcards it is the last
        part of the path, or empty for ``.`` and ``..``, whose content is copied.
    """
    path = _resolved(path) if path.startswith("~") else path
    full_path = os.path.normpath(os.path.join(base, path))
    if os.path.lexists(full_path):
        name = os.path.basename(path.rstrip("/"))
        return [(full_path, "" if name in (".", "..") else name)]
    # The folders before the first wildcard are no part of the path in the copy.
    parts = path.split("/")
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), parts[:-1])
    # The empty part makes this end with a slash.
    top = os.path.join(base, "/".join([*fixed, ""]))
    pattern = os.path.join(base, path)[len(top) :].rstrip("/")
    return [(match, match[len(top) :]) for match in sorted(glob.glob(glob.escape(top) + pattern))]

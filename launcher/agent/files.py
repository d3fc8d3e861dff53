"""The host's end of ``--sync`` and ``--collect``.

::

    ~/.cache/tf-launcher/        (or below $XDG_CACHE_HOME)
      work/JOB/NAME              a tree of a run, which its tasks run in
      work/JOB/.tf-launcher-output/TASK     what a task makes (``--output-dirs``)
      work/JOB/.KEY/             the tree while it arrives, and the list of what was brought
      trees/KEY/                 the tree of an earlier run from the same folder: its files need not travel

Each remote command here is a function of its own: `receive`, `give`, `make_outputs`, `finish`.
"""

from __future__ import annotations

import glob
import itertools
import os
import select
import stat
import threading
import time
from typing import Any, Callable, Dict, List, Tuple

from launcher import protocol
from launcher.agent import trees
from launcher.agent.transfer import (
    FILE,
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
from launcher.agent.trees import Failed, Listing
from launcher.errors import ProtocolError
from launcher.protocol import FileEntry

#: Seconds without a byte from the launcher, or without it taking one, after which it is gone.
_SILENCE = 60.0
#: Seconds between two signs of life.
_PULSE = 1.0
#: Remarks about one thing that was asked for.
_MOST_REMARKS = 20
#: Matches of a pattern that are looked at.
_MOST_MATCHES = 100_000


class Gone(Exception):
    """The launcher is gone: nothing can be sent to it."""


class _Pipe(FileStream):
    """The launcher, at standard input and output. A thread says every second that this end is at work."""

    def __init__(self) -> None:
        super().__init__()
        self._writing = threading.Lock()
        os.set_blocking(1, False)
        threading.Thread(target=self._pulse, daemon=True).start()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._writing:
            while view:
                self._await(1, select.POLLOUT)
                try:
                    view = view[os.write(1, view) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError as error:
                    raise Gone from error

    def _wait(self) -> None:
        self._await(0, select.POLLIN)
        data = os.read(0, 256 * 1024)
        if not data:
            raise Gone
        self._received += self._decoder.feed(data)

    def _await(self, fd: int, event: int) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if not poll.poll(_SILENCE * 1000):
            raise Gone

    def _pulse(self) -> None:
        alive = b"".join(protocol.encode(protocol.FilesAlive()))
        while True:
            time.sleep(_PULSE)
            try:
                self._write(alive)
            except (Gone, OSError):
                return


def _serve(command: Callable[[_Pipe, Any], List[str]], arguments: Any) -> int:
    """Run a command; its answer, or why it failed, goes to the launcher."""
    try:
        pipe = _Pipe()
        try:
            answer: Any = protocol.FilesDone(tuple(command(pipe, arguments)))
        except Failed as error:
            answer = protocol.FilesFailed(str(error))
        except ProtocolError as error:
            answer = protocol.FilesFailed(f"the two ends do not understand each other: {error}")
        except OSError as error:
            answer = protocol.FilesFailed(trees.worded(error))
        pipe.put(answer)
        pipe.flush()
    except Gone:
        return 1
    return 0


# ---------------------------------------------------------------------- --sync


def receive(arguments: Any) -> int:
    """Remote command: make trees what they are on the launcher's machine.

    Args:
        arguments: ``{"job": JOB, "trees": [{"name": NAME, "remote": PLACE or None, "key": KEY}]}``. The host
            sends for each tree what it has, and gets what is missing; the answer has the paths of the trees.
    """
    return _serve(_receive, arguments)


def _receive(pipe: _Pipe, arguments: Any) -> List[str]:
    job = str(arguments["job"])
    trees.sweep()
    paths = []
    for number, tree in enumerate(arguments["trees"]):
        if tree["remote"] is None:
            paths.append(_receive_for_run(pipe, number, job, str(tree["name"]), str(tree["key"])))
        else:
            paths.append(_receive_to_stay(pipe, number, str(tree["remote"])))
    return paths


def _receive_for_run(pipe: _Pipe, number: int, job: str, name: str, key: str) -> str:
    """A tree in a folder of the run: built out of sight, from what is left of an earlier one, and renamed."""
    run = trees.run_folder(job)
    os.makedirs(run, mode=0o700, exist_ok=True)
    with trees.locked(f"{run}/.lock"):
        trees.used(run)
        with trees.begin(run, name, key) as listing:
            _exchange(pipe, number, listing, listing)
            os.rename(listing.root, f"{run}/{name}")
    return f"{run}/{name}"


def _receive_to_stay(pipe: _Pipe, number: int, remote: str) -> str:
    """A tree at a place that stays: all of it arrives beside the place before a file there is replaced."""
    path = trees.place(remote)
    with trees.locked(trees.beside(path, "lock")):
        brought = trees.brought_to(path)
        stage = trees.beside(path, "new")
        os.makedirs(f"{stage}/tree", mode=0o700, exist_ok=True)
        staged = Listing(f"{stage}/list", f"{stage}/tree")
        staged.keep_only_unchanged()
        gone = _exchange(pipe, number, brought, staged)
        trees.merge(path, brought, gone, staged)
        trees.remove(stage)
    return path


def _exchange(pipe: _Pipe, number: int, have: Listing, arrived: Listing) -> List[str]:
    """Send what there is, and take in what is missing.

    Args:
        pipe, number: the launcher, and its number of the tree.
        have: what is at the place.
        arrived: what has arrived; the same as ``have`` where files arrive at the place itself.

    Returns:
        Paths that are at the place and not in the tree as they are.
    """
    pipe.put(protocol.FilesFollow(number, len(have.entries), 0))
    for entry in {**have.entries, **arrived.entries}.values():
        pipe.put(protocol.FileHad(*entry))
    pipe.put(protocol.FilesListed())
    gone: List[str] = []
    file = FileEntry("", FILE)
    landing = Landing(arrived.root)
    try:
        while not isinstance(message := pipe.get(), protocol.FilesDone):
            if isinstance(message, protocol.FileGone):
                arrived.discard(message.path)
                gone.append(message.path)
            elif isinstance(message, protocol.FilesFollow):
                trees.check_room(arrived.root, message.size)
            elif isinstance(message, FileEntry):
                check_entry(message)
                file = message
                landing.put(file)
                if file.kind != FILE:
                    arrived.add(file)
            elif isinstance(message, protocol.FileData):
                landing.write(message.data)
            elif isinstance(message, protocol.FileEnd):
                landing.end()
                # A torn file gets a time in the list that it has not, so that the next sync brings it again.
                arrived.add(file._replace(mtime_ns=0) if message.torn else file)
            else:
                raise ProtocolError(f"{type(message).__name__} at the wrong moment")
        if have is arrived:
            landing.finish(arrived.entries.values())
    except OSError as error:
        error.filename = f"{arrived.root}/{file.path}"
        raise
    finally:
        landing.close()
        arrived.save()
    return gone


# ---------------------------------------------------------------------- --collect


def give(arguments: Any) -> int:
    """Remote command: send what was asked for.

    Args:
        arguments: ``{"job": JOB, "items": [{"number": N, "base": FOLDER, "path": PATH, "had": [[path, size,
            mtime_ns]]}]}``; ``had`` names files that came before, over a connection that broke.

    A tree is sent as it is, with links as links; only what the user named may be a link to what is meant.
    """
    return _serve(_give, arguments)


def _give(pipe: _Pipe, arguments: Any) -> List[str]:
    run = trees.run_folder(str(arguments["job"]))
    if os.path.isdir(run):
        trees.used(run)
    for item in arguments["items"]:
        _give_one(pipe, item)
    return []


def _give_one(pipe: _Pipe, item: Dict[str, Any]) -> None:
    number, path = int(item["number"]), str(item["path"])
    base = trees.resolved(str(item["base"]))
    had = frozenset(map(tuple, item["had"]))
    remarks: List[str] = []

    def remark(text: str) -> None:
        remarks.append(text)
        if len(remarks) <= _MOST_REMARKS:
            pipe.put(protocol.FileRemark(number, text))
        elif len(remarks) == _MOST_REMARKS + 1:
            pipe.put(protocol.FileRemark(number, "there is more of this kind"))

    found = _find(base, path)
    if not found:
        looked = "" if path.startswith(("/", "~")) else f" (looked in {base})"
        remark(f"{path!r} is not there{looked}")
    entries: List[Tuple[str, FileEntry]] = []
    for source, name in found:
        entries += _entries(source, name, MAX_ENTRIES - len(entries), remark)
    if len(entries) == MAX_ENTRIES:
        remark(f"{path!r} holds more than {MAX_ENTRIES} files: the others are left out")
    entries = [pair for pair in entries if (pair[1].path, pair[1].size, pair[1].mtime_ns) not in had]
    files = [entry.size for _, entry in entries if entry.kind == FILE]
    pipe.put(protocol.FilesFollow(number, len(files), sum(files)))
    send_entries(pipe, entries, lambda source, why: remark(f"{source}: {why}"), lambda _: None)


def _entries(source: str, name: str, most: int, remark: Callable[[str], None]) -> List[Tuple[str, FileEntry]]:
    """A file, or a tree with folders before what is in them.

    Args:
        source: where it is.
        name: its name here; empty: only what is in it is meant.
        most: how many entries.
        remark: called with what can't be sent, and why.
    """
    entries: List[Tuple[str, FileEntry]] = []
    ahead = [(source, name)]
    for path, relative in ahead:  # it grows
        if len(entries) >= most:
            break
        try:
            status = os.stat(path) if path == source and os.path.exists(path) else os.lstat(path)
            entry = entry_at(path, relative, status)
            if entry is None:
                remark(f"{path} is neither file, folder nor link: left out")
                continue
            inside = sorted(os.listdir(path)) if entry.kind == FOLDER else []
        except OSError as error:
            remark(f"{path}: {error.strerror}")
            continue
        if relative:
            entries.append((path, entry))
        prefix = f"{relative}/" if relative else ""
        ahead += [(f"{path}/{item}", prefix + item) for item in inside if item != SYNC_MARK]
    return entries


def _find(base: str, path: str) -> List[Tuple[str, str]]:
    """What a path or pattern means: where each thing is, and its name on the other side.

    What a pattern finds keeps the folders that the pattern left open: ``runs/*/model`` gives ``a/model``,
    ``b/model``.
    """
    path = trees.resolved(path) if path.startswith("~") else path
    whole = os.path.normpath(os.path.join(base, path))
    if os.path.lexists(whole):
        name = os.path.basename(path.rstrip("/"))
        name = "" if name in (".", "..") else name
        return [(whole, name or ("" if os.path.isdir(whole) else os.path.basename(whole)))]
    if not glob.has_magic(path):
        return []
    parts = path.split("/")
    fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts[:-1]))
    top = os.path.join(base, "/".join(fixed) or "/"[: path.startswith("/")])
    pattern = os.path.join(glob.escape(top), *parts[len(fixed) :])
    matches = itertools.islice(glob.iglob(pattern, recursive=True), _MOST_MATCHES)
    kept: Dict[str, str] = {}
    for match in sorted({os.path.normpath(match) for match in matches}):
        above = itertools.accumulate(match.split("/")[:-1], lambda head, part: f"{head}/{part}")
        if not any(folder in kept for folder in above):  # ``**`` finds a folder and what is in it
            name = os.path.relpath(match, top)
            kept[match] = "" if name == "." else name
    return list(kept.items())


# ---------------------------------------------------------------------- folders of a run


def make_outputs(arguments: Any) -> int:
    """Remote command: make a folder for what each task makes.

    Args:
        arguments: ``{"job": JOB, "names": [...], "mode": 448}``; the answer has the paths, in order.
    """
    return _serve(_make_outputs, arguments)


def _make_outputs(_: _Pipe, arguments: Any) -> List[str]:
    run = trees.run_folder(str(arguments["job"]))
    os.makedirs(f"{run}/{OUTPUTS}", mode=0o700, exist_ok=True)
    trees.used(run)
    paths = []
    for name in arguments["names"]:
        check_entry(FileEntry(str(name), FOLDER))
        paths.append(f"{run}/{OUTPUTS}/{name}")
        os.makedirs(paths[-1], exist_ok=True)
        os.chmod(paths[-1], stat.S_IMODE(int(arguments["mode"])) & 0o777)
    return paths


def finish(arguments: Any) -> int:
    """Remote command: remove the folders of a run. ``{"job": JOB}``."""
    return _serve(_finish, arguments)


def _finish(_: _Pipe, arguments: Any) -> List[str]:
    trees.discard(str(arguments["job"]))
    return []

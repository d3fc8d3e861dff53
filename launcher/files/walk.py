"""Which entries of a folder travel, looked at before any host is connected."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from launcher.agent.transfer import FILE, FOLDER, MAX_ENTRIES, SYNC_MARK, entry_at
from launcher.errors import Fault, JobError
from launcher.files.ignore import GIT_FOLDER, RULE_FILES, Rules, rules_above
from launcher.files.requests import SyncRequest
from launcher.protocol import FileEntry
from launcher.text import listed

#: Paths that a message names.
_MOST_NAMED = 20
#: Levels of a folder whose ignored entries are mentioned.
_LEVELS = 2


class Tree(NamedTuple):
    """A folder as it travels."""

    request: SyncRequest
    entries: dict[str, FileEntry]
    #: Paths of sockets, pipes and devices, which can't travel.
    left_out: list[str]
    #: What the ignore rules leave out at the top levels: path (folders with a slash), rule file.
    ignored: list[tuple[str, str]]

    @property
    def files(self) -> int:
        """How many files."""
        return sum(entry.kind == FILE for entry in self.entries.values())

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(entry.size for entry in self.entries.values())


class Packed(NamedTuple):
    """Folders that were looked at."""

    trees: Sequence[Tree]
    #: Where in the first folder the tasks run.
    subfolder: str

    @property
    def remarks(self) -> list[str]:
        """What the user should know: entries that can't travel."""
        return [
            f"--sync: sockets, pipes and devices are left out: {listed(tree.left_out)} in {tree.request.text}"
            for tree in self.trees
            if tree.left_out
        ]


def look(requests: Sequence[SyncRequest], cwd: str, without: Sequence[str] = ()) -> Packed:
    """Look at the folders: nothing travels yet.

    Args:
        requests: at least one; tasks run in the first.
        cwd: the launcher's folder; tasks run in the same one on the hosts, if it travels.
        without: paths that do not travel, whatever the rules say: the run's own folder.

    Raises:
        JobError: something can't be read; or the launcher's folder does not travel.
    """
    real = frozenset(os.fsencode(os.path.realpath(path)) for path in without)
    trees = [_walk(request, real) for request in requests]
    subfolder = requests[0].inside(cwd) or ""
    entry = trees[0].entries.get(subfolder)
    if subfolder and (entry is None or entry.kind != FOLDER):
        what = f"the current folder {subfolder!r} of {requests[0].text!r} is left out by its ignore rules"
        raise JobError([Fault("--sync", what, "start it from a folder that travels: tasks run there")])
    return Packed(trees, subfolder)


def _walk(request: SyncRequest, without: frozenset[bytes]) -> Tree:
    root = os.fsencode(request.folder)
    tree = Tree(request, {}, [], [])
    unreadable: list[str] = []
    rules, start = rules_above(root)
    ahead: list[tuple[bytes, Rules]] = [(b"", rules)]
    while ahead:
        folder, rules = ahead.pop()
        try:
            with os.scandir(root + b"/" + folder) as found:
                items = list(found)
        except FileNotFoundError:  # it went in this moment
            tree.entries.pop(os.fsdecode(folder), None)
            continue
        except OSError as error:
            unreadable.append(f"{os.fsdecode(root + b'/' + folder)!r} can't be read: {error.strerror}")
            continue
        rules = rules.inside((start + folder).rstrip(b"/"))
        for item in items:
            path = folder + b"/" + item.name if folder else item.name
            if item.name in (GIT_FOLDER, SYNC_MARK.encode()) or item.path in without:
                continue
            is_folder = item.is_dir(follow_symlinks=False)
            by = rules.ignored_by(start + path, is_folder)
            if by:
                if path.count(b"/") < _LEVELS and item.name != b"__pycache__":
                    tree.ignored.append((os.fsdecode(path) + "/" * is_folder, by))
                continue
            _add(tree, item, os.fsdecode(path), unreadable)
            if is_folder:
                ahead.append((path, rules))
        if len(tree.entries) > MAX_ENTRIES:
            advice = f"expected a smaller folder, or lines in {request.folder}/{RULE_FILES[-1]}"
            raise JobError(
                [Fault("--sync", f"{request.folder!r} holds more than {MAX_ENTRIES} files", advice)]
            )
    if unreadable:
        raise _error(request.folder, sorted(unreadable))
    return tree


def _add(tree: Tree, item: os.DirEntry[bytes], path: str, unreadable: list[str]) -> None:
    source = os.fsdecode(item.path)
    try:
        entry = entry_at(source, path, item.stat(follow_symlinks=False))
    except FileNotFoundError:  # it went in this moment
        return
    except OSError as error:
        unreadable.append(f"{source!r} can't be read: {error.strerror}")
        return
    if entry is None:
        tree.left_out.append(path)
    elif entry.kind == FILE and not os.access(source, os.R_OK):
        unreadable.append(f"{source!r} can't be read: Permission denied")
    else:
        tree.entries[path] = entry


def _error(folder: str, unreadable: Sequence[str]) -> JobError:
    advice = f"make them readable, or leave them out with a line in {folder}/{RULE_FILES[-1]}"
    more = len(unreadable) - _MOST_NAMED
    last = Fault("--sync", f"and {more} more" if more > 0 else f"nothing of {folder!r} travels", advice)
    return JobError([*(Fault("--sync", text) for text in unreadable[:_MOST_NAMED]), last])


def left_out(packed: Packed) -> list[str]:
    """What the ignore rules left out, a line a folder: ``left out by .gitignore: data/, venv/``."""
    lines = []
    for tree in packed.trees:
        ignored = sorted(tree.ignored, key=lambda pair: (pair[0].rstrip("/").count("/"), pair))
        kinds = []
        for rule_file in RULE_FILES:
            names = [path if path.isprintable() else ascii(path) for path, by in ignored if by == rule_file]
            if names:
                kinds.append(f"by {rule_file}: {listed(names)}")
        if kinds:
            of = f" of {tree.request.name}" if len(packed.trees) > 1 else ""
            first = next((path for path, by in ignored if by == RULE_FILES[0]), "")
            advice = f"; !{first} in {RULE_FILES[-1]} brings it back" if first.isprintable() and first else ""
            lines.append(f"left out{of} {'; '.join(kinds)}{advice}")
    return lines

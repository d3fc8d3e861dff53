"""Which entries of a folder travel, looked at before any host is connected.

``.gitignore``, and ``.launchignore`` of the same form, which wins, name what stays; pathspec reads them.
Nothing in a folder that is ignored can be brought back, but by a rule for the folder itself. Two things git
does otherwise: ``?`` stands for one character here, not for one byte of it, and patterns do not reach over a
newline in a name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from launcher.agent.transfer import FILE, FOLDER, MAX_ENTRIES, SYNC_MARK, entry_at
from launcher.errors import Fault, JobError
from launcher.files.requests import SyncRequest
from launcher.protocol import FileEntry
from launcher.text import listed, printable

#: The later wins.
RULE_FILES = (".gitignore", ".launchignore")
#: Belongs to git, and never travels.
_GIT = b".git"
#: Paths that a message names, and levels of a folder whose ignored entries are mentioned.
_MOST_NAMED, _LEVELS = 20, 2


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
        text = f"the current folder {subfolder!r} of {requests[0].text!r} is left out by its ignore rules"
        raise JobError([Fault("--sync", text, "start it from a folder that travels: tasks run there")])
    return Packed(trees, subfolder)


def _walk(request: SyncRequest, without: frozenset[bytes]) -> Tree:
    root = os.fsencode(request.folder)
    tree = Tree(request, {}, [], [])
    unreadable: list[str] = []
    rules, start = _rules_above(root)
    ahead: list[tuple[bytes, _Rules]] = [(b"", rules)]
    while ahead:
        folder, rules = ahead.pop()
        try:
            items = list(os.scandir(root + b"/" + folder))
        except FileNotFoundError:  # it went in this moment
            tree.entries.pop(os.fsdecode(folder), None)
            continue
        except OSError as error:
            unreadable.append(f"{os.fsdecode(root + b'/' + folder)!r} can't be read: {error.strerror}")
            continue
        rules = rules.inside((start + folder).rstrip(b"/"))
        for item in items:
            path = folder + b"/" + item.name if folder else item.name
            if item.name in (_GIT, SYNC_MARK.encode()) or item.path in without:
                continue
            is_folder = item.is_dir(follow_symlinks=False)
            by = rules.ignored_by(start + path, is_folder)
            if not by:
                _add(tree, item, os.fsdecode(path), unreadable)
                ahead += [(path, rules)] if is_folder else []
            elif path.count(b"/") < _LEVELS and item.name != b"__pycache__":
                tree.ignored.append((os.fsdecode(path) + "/" * is_folder, by))
        if len(tree.entries) > MAX_ENTRIES:
            advice = f"expected a smaller folder, or lines in {request.folder}/{RULE_FILES[-1]}"
            text = f"{request.folder!r} holds more than {MAX_ENTRIES} files"
            raise JobError([Fault("--sync", text, advice)])
    if unreadable:
        advice = f"make them readable, or leave them out with a line in {request.folder}/{RULE_FILES[-1]}"
        more = len(unreadable) - _MOST_NAMED
        last = f"and {more} more" if more > 0 else f"nothing of {request.folder!r} travels"
        named = [Fault("--sync", text) for text in sorted(unreadable)[:_MOST_NAMED]]
        raise JobError([*named, Fault("--sync", last, advice)])
    return tree


def _add(tree: Tree, item: os.DirEntry[bytes], path: str, unreadable: list[str]) -> None:
    source = os.fsdecode(item.path)
    try:
        entry = entry_at(source, path, item.stat(follow_symlinks=False))
    except FileNotFoundError:  # it went in this moment
        return
    if entry is None:
        tree.left_out.append(path)
    elif entry.kind == FILE and not os.access(source, os.R_OK):
        unreadable.append(f"{source!r} can't be read: Permission denied")
    else:
        tree.entries[path] = entry


def left_out(packed: Packed) -> list[str]:
    """What the ignore rules left out, a line a folder: ``left out by .gitignore: data/, venv/``."""
    lines = []
    for tree in packed.trees:
        ignored = sorted(tree.ignored, key=lambda pair: (pair[0].rstrip("/").count("/"), pair))
        kinds = []
        for rule_file in RULE_FILES:
            names = [printable(path) for path, by in ignored if by == rule_file]
            kinds += [f"by {rule_file}: {listed(names)}"] if names else []
        if kinds:
            of = f" of {tree.request.name}" if len(packed.trees) > 1 else ""
            lines.append(f"left out{of} {'; '.join(kinds)}; a line in .launchignore (!NAME) brings it back")
    return lines


# ---------------------------------------------------------------------- ignore rules


class _RuleFile(NamedTuple):
    """The rules of one file: they count for paths that begin with its folder."""

    #: Bytes of the path that lead to the file's folder, with the slash.
    start: int
    #: Each with its line; the last one first, since that is the one that decides.
    patterns: Sequence[tuple[str, Any]]

    def verdict(self, path: bytes, is_folder: bool) -> bool | None:
        """Whether the path is ignored; ``None``: no rule matches.

        A pattern of pathspec also matches all that is in a folder it matches. For git, and here, the folder
        was looked up before, and what is in it is looked up by itself.
        """
        text = os.fsdecode(path[self.start :]) + ("/" if is_folder else "")
        for line, pattern in self.patterns:
            found = pattern.match_file(text)
            if found is not None:
                whole = found.match.end() == len(text)
                if line.lstrip("!/") == "**" or whole != line.endswith("/**"):
                    return bool(pattern.include)
        return None


class _Rules(NamedTuple):
    """The rules that count in one folder."""

    #: The folder that paths are relative to.
    top: bytes
    #: For each of `RULE_FILES`, the rule files of this folder and of those above, the deepest first.
    kinds: tuple[tuple[_RuleFile, ...], ...] = ((), ())

    def inside(self, folder: bytes) -> _Rules:
        """The rules in a folder below; ``folder`` is its path, empty for the top itself."""
        files = [_read(self.top, folder, name) for name in RULE_FILES]
        both = zip(files, self.kinds, strict=True)
        return _Rules(self.top, tuple(above if file is None else (file, *above) for file, above in both))

    def ignored_by(self, path: bytes, is_folder: bool) -> str:
        """The name of the rule file that leaves a path out; empty: none does."""
        for name, files in reversed([*zip(RULE_FILES, self.kinds, strict=True)]):
            for file in files:
                verdict = file.verdict(path, is_folder)
                if verdict is not None:
                    return name if verdict else ""
        return ""


def _rules_above(root: bytes) -> tuple[_Rules, bytes]:
    """The rules in the folders above, up to the top of the git repository that a folder is in.

    Returns:
        The rules, and what leads from their top to the folder, with a slash at its end. Without a repository,
        and where the folder is ignored itself: no rules, and nothing.
    """
    top = root
    while top != b"/" and not os.path.lexists(top + b"/" + _GIT):
        top = os.path.dirname(top)
    rules, folder = _Rules(top), b""
    for part in root[len(top) + 1 :].split(b"/") if top not in (b"/", root) else ():
        rules = rules.inside(folder)
        folder = folder + b"/" + part if folder else part
        if rules.ignored_by(folder, True):
            return _Rules(root), b""
    return (rules, folder + b"/") if folder else (_Rules(root), b"")


def _read(top: bytes, folder: bytes, name: str) -> _RuleFile | None:
    """A folder's own rule file; a link does not count, as in git."""
    path = b"/".join(filter(None, (top, folder, name.encode())))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        text = file.read() if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    patterns = list(_patterns(os.fsdecode(text.removeprefix(b"\xef\xbb\xbf"))))
    return _RuleFile(len(folder) + 1 if folder else 0, patterns[::-1])


def _patterns(text: str) -> Iterator[tuple[str, Any]]:
    """The lines that git would not pass over, and their patterns."""
    from pathspec import GitIgnoreSpec, RegexPattern  # takes tens of milliseconds

    for line in text.split("\n"):
        rule = line.removesuffix("\r").partition("\0")[0]
        if not rule.strip("!/ ") or rule.startswith("#"):
            continue
        try:
            found = GitIgnoreSpec.from_lines([rule]).patterns
        except ValueError:
            continue
        yield from ((rule, pattern) for pattern in found if isinstance(pattern, RegexPattern))

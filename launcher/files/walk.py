"""The entries of a folder that ``--sync`` copies, listed before any host is connected.

``.gitignore``, and ``.launchignore`` of the same form, name what is not copied. ``.launchignore`` has
priority. pathspec parses both. The content of an ignored folder is copied only if a rule brings back the
folder itself. Git differs twice: there ``?`` matches one byte of a character, here the character, and
patterns match across a newline in a name.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from launcher.agent.transfer import FILE, FOLDER, SPECIAL_FILE_REASON, entries_below
from launcher.common.errors import Fault, JobError
from launcher.common.protocol import FileEntry
from launcher.common.record import Record
from launcher.common.text import escape_controls, join_names
from launcher.common.trusted_io import read_regular
from launcher.files.requests import SyncRequest

#: Lines of rules, and their patterns of pathspec.
Patterns = list[tuple[str, Any]]

#: The later one has priority.
RULE_FILES = (".gitignore", ".launchignore")
#: Paths that a message names, and levels of a folder whose ignored entries are mentioned.
_MAX_NAMED = 20
_MAX_LEVELS = 2


class SourceTree(Record):
    """The entries of a folder to copy."""

    request: SyncRequest
    entries: dict[str, FileEntry]
    #: By reason, the paths that are not copied (folders with a slash): sockets, pipes and devices, and what
    #: the ignore rules leave out at the top levels.
    left_out: dict[str, list[str]]

    @property
    def files(self) -> int:
        """Number of files."""
        return sum(entry.kind == FILE for entry in self.entries.values())

    @property
    def size(self) -> int:
        """Size of the files in bytes."""
        return sum(entry.size for entry in self.entries.values())


def read_trees(
    requests: Sequence[SyncRequest], cwd: str, without: str | None = None
) -> tuple[list[SourceTree], str]:
    """List the folders.

    Args:
        requests: Tasks run in the first folder.
        cwd: The launcher's current folder; tasks run in its copy.
        without: A path that is never copied: the folder of the run.

    Returns:
        The folders, and where in the first one the tasks run.

    Raises:
        JobError: A file cannot be read, or the current folder is not copied.
    """
    trees = [_tree(request, without and os.path.realpath(without)) for request in requests]
    subfolder = requests[0].inside(cwd) or ""
    entry = trees[0].entries.get(subfolder)
    if subfolder and (entry is None or entry.kind != FOLDER):
        text = f"the current folder {subfolder!r} of {requests[0].text!r} is left out by its ignore rules"
        raise JobError([Fault("--sync", text, "start it in a folder that is copied: tasks run there")])
    return trees, subfolder


def _tree(request: SyncRequest, without: str | None) -> SourceTree:
    tree, rules, unreadable = SourceTree(request, {}, defaultdict(list)), _Rules(request.folder), []

    def problem(source: str, why: str) -> None:
        if why == SPECIAL_FILE_REASON:
            tree.left_out["as sockets, pipes or devices"].append(os.path.relpath(source, request.folder))
        else:
            unreadable.append(f"{source!r} ({why})")

    def is_left_out(path: str, is_folder: bool) -> bool:
        source, name = f"{request.folder}/{path}", os.path.basename(path)
        if name == ".git" or source == without:
            return True
        by = rules.ignored_by(source, is_folder)
        if by and path.count("/") < _MAX_LEVELS and name != "__pycache__":
            tree.left_out[f"by {by}"].append(path + "/" * is_folder)
        return bool(by)

    for source, entry in entries_below(request.folder, "", problem, is_left_out):
        if entry.kind == FILE and not os.access(source, os.R_OK):
            problem(source, "Permission denied")
        else:
            tree.entries[entry.path] = entry
    if unreadable:
        text = f"can't be copied: {join_names(sorted(unreadable), _MAX_NAMED)}"
        advice = f"make them readable, or leave them out with a line in {request.folder}/{RULE_FILES[-1]}"
        raise JobError([Fault("--sync", text, advice)])
    return tree


def left_out(trees: Sequence[SourceTree]) -> list[str]:
    """A line a folder about what is not copied: ``left out by .gitignore: data/, venv/; ...``."""
    lines = []
    for tree in trees:
        reasons = sorted(tree.left_out.items())
        texts = [f"{reason}: {join_names([*map(escape_controls, paths)])}" for reason, paths in reasons]
        if texts:
            of = f" of {tree.request.name}" if len(trees) > 1 else ""
            hint = "a line in .launchignore (!NAME) brings back what is ignored"
            lines.append(f"left out{of} {'; '.join(texts)}; {hint}")
    return lines


class _Rules:
    """The ignore rules for what is in a folder: those in it, and those above it in its git repository.

    A folder that is ignored by rules above it has only its own.

    Args:
        root: The folder; absolute, links resolved.
    """

    def __init__(self, root: str) -> None:
        self._files: dict[str, Patterns] = {}
        self._top = root
        while self._top != "/" and not os.path.lexists(f"{self._top}/.git"):
            self._top = os.path.dirname(self._top)
        folder = root
        while folder != self._top:
            if self._top == "/" or self.ignored_by(folder, True):
                self._top = root
                break
            folder = os.path.dirname(folder)

    def ignored_by(self, path: str, is_folder: bool) -> str:
        """Return the name of the rule file that leaves a path out, or an empty text if none does."""
        for name in reversed(RULE_FILES):
            folder = path
            while folder != self._top:
                folder = os.path.dirname(folder)
                ignored = _verdict(
                    self._patterns(f"{folder}/{name}"), path[len(folder) + 1 :] + "/" * is_folder
                )
                if ignored is not None:
                    return name if ignored else ""
        return ""

    def _patterns(self, path: str) -> Patterns:
        """Return the lines of a rule file with their patterns, the last first. As in git, a link has none."""
        if path not in self._files:
            read = os.path.isfile(path) and not os.path.islink(path)
            self._files[path] = _read(path) if read else []
        return self._files[path]


def _read(path: str) -> Patterns:
    from pathspec import GitIgnoreSpec, RegexPattern  # noqa: PLC0415 - tens of milliseconds, for files of rules only

    patterns: Patterns = []
    try:
        text = read_regular(path).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        fault = Fault("--sync", f"can't read {escape_controls(path)!r}: {error.strerror}")
        raise JobError([fault]) from error
    for line in text.split("\n"):
        with suppress(ValueError):  # git passes over it, too
            found = GitIgnoreSpec.from_lines([line]).patterns
            patterns += [(line, pattern) for pattern in found if isinstance(pattern, RegexPattern)]
    return patterns[::-1]


def _verdict(patterns: Patterns, path: str) -> bool | None:
    """Return whether a path is ignored, or None if no rule matches.

    A pattern of pathspec also matches all that is in a folder it matches. For git, and here, the folder was
    looked up before, and what is in it is looked up by itself.
    """
    for line, pattern in patterns:
        found = pattern.match_file(path)
        if found is not None:
            whole = found.match.end() == len(path)
            if line.lstrip("!/") == "**" or whole != line.endswith("/**"):
                return bool(pattern.include)
    return None

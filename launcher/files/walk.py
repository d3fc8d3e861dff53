"""Lists the files that ``--sync`` copies. A launch calls `read_trees` before it connects to any host.

Files that ``.gitignore`` or ``.launchignore`` name are not copied. Both have the same form, pathspec parses
both, and ``.launchignore`` has priority. The content of an ignored folder must not be copied unless a rule
brings back the folder itself. Git differs in two points: its ``?`` matches one byte of a character and ours
the whole character, and its patterns match across a newline in a name.
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

#: Each line of a rule file that contains a rule, and the pattern of pathspec for it.
Patterns = list[tuple[str, Any]]

#: The names of rule files. The later one has priority.
RULE_FILES = (".gitignore", ".launchignore")
# The largest number of paths that one message names.
_MAX_NAMED = 20
# A message names only ignored files that lie in the folder or at most one folder below it.
_MAX_LEVELS = 2


class SourceTree(Record):
    """A folder to copy, and what it contains."""

    request: SyncRequest
    #: The files, folders and links to copy, by their paths in the folder.
    entries: dict[str, FileEntry]
    #: The paths that are not copied, by the reason for that. They are sockets, pipes and devices, and what
    #: rules leave out at the top levels. The path of a folder ends with a slash.
    left_out: dict[str, list[str]]

    @property
    def files(self) -> int:
        """The number of files to copy."""
        return sum(entry.kind == FILE for entry in self.entries.values())

    @property
    def size(self) -> int:
        """The size of all files together in bytes."""
        return sum(entry.size for entry in self.entries.values())


def read_trees(
    requests: Sequence[SyncRequest], cwd: str, without: str | None = None
) -> tuple[list[SourceTree], str]:
    """List what the folders to copy contain.

    Args:
        requests: The folders. Tasks run in the copy of the first one.
        cwd: The current folder of the launcher. If it is in the first folder, tasks run in the copy of it.
        without: A path that is not copied, which is the folder of the run.

    Returns:
        The content of each folder, and the path in the first one at which the tasks run.

    Raises:
        JobError: A file cannot be read, or the current folder is not copied.
    """
    trees = [_tree(request, without and os.path.realpath(without)) for request in requests]
    # If the current folder is not in the first folder, tasks run at the top of the copy.
    subfolder = requests[0].relative_path(cwd) or ""
    entry = trees[0].entries.get(subfolder)
    if subfolder and (entry is None or entry.kind != FOLDER):
        text = f"the current folder {subfolder!r} of {requests[0].text!r} is left out by its ignore rules"
        raise JobError([Fault("--sync", text, "start it in a folder that is copied: tasks run there")])
    return trees, subfolder


def _tree(request: SyncRequest, without: str | None) -> SourceTree:
    """List what one folder of ``--sync`` contains, without what ignore files (such as .gitignore) name.

    Args:
        request: The folder.
        without: A path that is not copied, with links resolved. None if there is no such path.

    Raises:
        JobError: Files cannot be read. The error names them.
    """
    tree, rules, unreadable = SourceTree(request, {}, defaultdict(list)), _Rules(request.folder), []

    def on_problem(source: str, why: str) -> None:
        """Record a path that cannot be copied, and the reason."""
        if why == SPECIAL_FILE_REASON:
            tree.left_out["as sockets, pipes or devices"].append(os.path.relpath(source, request.folder))
        else:
            unreadable.append(f"{source!r} ({why})")

    def is_left_out(path: str, is_folder: bool) -> bool:
        """Return whether to leave out a path, and record what the user should know about."""
        source, name = f"{request.folder}/{path}", os.path.basename(path)
        # The data of git and the folder of the run are never copied, and the user is not told so.
        if name == ".git" or source == without:
            return True
        rule_file = rules.ignored_by(source, is_folder)
        # A list of all ignored files would be long, and nobody misses the caches of Python.
        if rule_file and path.count("/") < _MAX_LEVELS and name != "__pycache__":
            tree.left_out[f"by {rule_file}"].append(path + "/" * is_folder)
        return bool(rule_file)

    # With an empty name, the folder itself is no entry. It exists wherever its copy is made.
    for source, entry in entries_below(request.folder, "", on_problem, is_left_out):
        if entry.kind == FILE and not os.access(source, os.R_OK):
            on_problem(source, "Permission denied")
        else:
            tree.entries[entry.path] = entry
    if unreadable:
        text = f"cannot be copied: {join_names(sorted(unreadable), _MAX_NAMED)}"
        advice = f"make them readable, or leave them out with a line in {request.folder}/{RULE_FILES[-1]}"
        raise JobError([Fault("--sync", text, advice)])
    return tree


def left_out(trees: Sequence[SourceTree]) -> list[str]:
    """Return messages for the user about what is not copied.

    Returns:
        One line for each folder of which something is left out, such as ``left out by .gitignore: data/,
        venv/; ...``.
    """
    lines = []
    for tree in trees:
        reasons = sorted(tree.left_out.items())
        texts = [f"{reason}: {join_names([*map(escape_controls, paths)])}" for reason, paths in reasons]
        if texts:
            of_folder = f" of {tree.request.name}" if len(trees) > 1 else ""
            hint = "a line in .launchignore (!NAME) brings back what is ignored"
            lines.append(f"left out{of_folder} {'; '.join(texts)}; {hint}")
    return lines


class _Rules:
    """The ignore rules for the content of a folder.

    They are in the rule files of the folder and of all folders below it, and in those above it up to the top
    of its git repository. If the rules above it ignore the folder itself, only its own rules count.

    Args:
        root: The folder, an absolute path with links resolved.
    """

    def __init__(self, root: str) -> None:
        """Find the topmost folder whose rule files count: that of the git repository, or this folder."""
        #: The content of the rule files that were read, by path.
        self._files: dict[str, Patterns] = {}
        #: The folder above which no rule files are read.
        self._top = root
        while self._top != "/" and not os.path.lexists(f"{self._top}/.git"):
            self._top = os.path.dirname(self._top)
        # From here on `_top` is "/" or the folder of a repository, and `folder` goes up to it.
        folder = root
        while folder != self._top:
            # There is no repository, or its rules ignore the folder itself or one above it.
            if self._top == "/" or self.ignored_by(folder, is_folder=True):
                self._top = root
                break
            folder = os.path.dirname(folder)

    def ignored_by(self, path: str, is_folder: bool) -> str:
        """Return the name of the rule file that leaves out a file or folder.

        Args:
            path: The path, which must be in the folder or on the way to it.
            is_folder: Whether it is a folder.

        Returns:
            An empty text if no rule leaves it out.
        """
        for name in reversed(RULE_FILES):
            folder = path
            # The nearest file of this name that has a rule for the path decides.
            while folder != self._top:
                folder = os.path.dirname(folder)
                relative_path = path[len(folder) + 1 :] + "/" * is_folder
                is_ignored = _verdict(self._patterns(f"{folder}/{name}"), relative_path)
                if is_ignored is not None:
                    return name if is_ignored else ""
        return ""

    def _patterns(self, path: str) -> Patterns:
        """Return the rules of a rule file, the last one first, because that decides.

        Returns:
            No rules if there is no such file or, as in git, if it is a link.
        """
        if path not in self._files:
            is_rule_file = os.path.isfile(path) and not os.path.islink(path)
            self._files[path] = _read_rules(path) if is_rule_file else []
        return self._files[path]


def _read_rules(path: str) -> Patterns:
    """Return the rules of a rule file, the last one first.

    Raises:
        JobError: The file cannot be read.
    """
    from pathspec import GitIgnoreSpec, RegexPattern  # noqa: PLC0415 - tens of milliseconds, for files of rules only

    patterns: Patterns = []
    try:
        text = read_regular(path).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        fault = Fault("--sync", f"cannot read {escape_controls(path)!r}: {error.strerror}")
        raise JobError([fault]) from error
    for line in text.split("\n"):
        # Git ignores a line that is no valid pattern, too.
        with suppress(ValueError):
            # An empty line has no pattern, and a comment has one that matches nothing.
            parsed = GitIgnoreSpec.from_lines([line]).patterns
            patterns += [(line, pattern) for pattern in parsed if isinstance(pattern, RegexPattern)]
    return patterns[::-1]


def _verdict(patterns: Patterns, path: str) -> bool | None:
    """Return whether the rules of one rule file ignore a path.

    A pattern of pathspec that matches a folder also matches everything in it. Such a match does not count
    here, as in git, because the folder itself was looked up before.

    Args:
        patterns: The rules, the last one first.
        path: The path relative to the folder of the rule file. That of a folder ends with a slash.

    Returns:
        None if no rule matches the path.
    """
    for line, pattern in patterns:
        result = pattern.match_file(path)
        if result is not None:
            is_whole_path = result.match.end() == len(path)
            # ``a/**`` matches what is in the folder, and not the folder itself. ``**`` matches everything.
            if line.lstrip("!/") == "**" or is_whole_path != line.endswith("/**"):
                return bool(pattern.include)
    return None

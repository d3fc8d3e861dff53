"""Ignore rules: ``.gitignore``, and ``.launchignore`` of the same form, which wins. pathspec reads them.

A folder that is ignored is never looked into, so nothing in it can be brought back, but by a rule for the
folder itself. Two things git does otherwise: ``?`` stands for one character here, not for one byte of it, and
patterns do not reach over a newline in a name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from pathspec import GitIgnoreSpec, RegexPattern

#: Belongs to git, and never travels.
GIT_FOLDER = b".git"
#: The later wins.
RULE_FILES = (".gitignore", ".launchignore")


class _Pattern(NamedTuple):
    """One line of a rule file."""

    line: str
    spec: RegexPattern

    def matches(self, text: str) -> bool:
        """Whether it means this path (a folder's ends in a slash), and not only a folder that the path is in.

        A pattern of pathspec also matches all that is in a folder it matches. For git, and here, the folder
        was looked up before, and what is in it is looked up by itself.
        """
        found = self.spec.match_file(text)
        if found is None or self.line.lstrip("!/") == "**":
            return found is not None
        whole = found.match.end() == len(text)
        return not whole if self.line.endswith("/**") else whole


class _RuleFile(NamedTuple):
    """The rules of one file: they count for paths that begin with its folder."""

    #: Bytes of the path that lead to the file's folder, with the slash.
    start: int
    #: The last one first, since that is the one that decides.
    patterns: tuple[_Pattern, ...]

    def verdict(self, path: bytes, is_folder: bool) -> bool | None:
        """Whether the path is ignored; ``None``: no rule matches."""
        text = os.fsdecode(path[self.start :]) + ("/" if is_folder else "")
        return next((found.spec.include for found in self.patterns if found.matches(text)), None)


class Rules:
    """The rules that count in one folder.

    Args:
        top: the folder that paths are relative to.
        kinds: for each of `RULE_FILES`, the rule files of this folder and of those above, the deepest first.
    """

    def __init__(self, top: bytes, kinds: tuple[tuple[_RuleFile, ...], ...] = ((), ())) -> None:
        self.top = top
        self._kinds = kinds

    def inside(self, folder: bytes) -> Rules:
        """The rules in a folder below; ``folder`` is its path, empty for the top itself."""
        files = (_read(self.top, folder, name) for name in RULE_FILES)
        both = zip(files, self._kinds, strict=True)
        return Rules(self.top, tuple(above if file is None else (file, *above) for file, above in both))

    def ignored_by(self, path: bytes, is_folder: bool) -> str:
        """The name of the rule file that leaves a path out; empty: none does."""
        for name, kind in zip(reversed(RULE_FILES), reversed(self._kinds), strict=True):
            for file in kind:
                verdict = file.verdict(path, is_folder)
                if verdict is not None:
                    return name if verdict else ""
        return ""


def rules_above(root: bytes) -> tuple[Rules, bytes]:
    """The rules in the folders above, up to the top of the git repository that a folder is in.

    Returns:
        The rules, and what leads from their top to the folder, with a slash at its end. Without a repository,
        and where the folder is ignored itself: no rules, and nothing.
    """
    above = [] if os.path.lexists(root + b"/" + GIT_FOLDER) else list(_up_to_repository(root))
    if not above:
        return Rules(root), b""
    rules = Rules(above[-1])
    for folder, below in zip(reversed(above), [*reversed(above[:-1]), root], strict=True):
        rules = rules.inside(folder[len(rules.top) + 1 :])
        if rules.ignored_by(below[len(rules.top) + 1 :], True):
            return Rules(root), b""
    return rules, root[len(rules.top) + 1 :] + b"/"


def _up_to_repository(root: bytes) -> Iterator[bytes]:
    """The folders above, from the nearest to the top of the repository; none if there is no repository."""
    above: list[bytes] = []
    folder = os.path.dirname(root)
    while folder != b"/":
        above.append(folder)
        if os.path.lexists(folder + b"/" + GIT_FOLDER):
            yield from above
            return
        folder = os.path.dirname(folder)


def _read(top: bytes, folder: bytes, name: str) -> _RuleFile | None:
    """A folder's own rule file; a link does not count, as in git."""
    path = b"/".join(filter(None, (top, folder, name.encode())))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        text = file.read() if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    patterns = [
        _Pattern(line, spec)
        for line in _sound_lines(os.fsdecode(text.removeprefix(b"\xef\xbb\xbf")))
        for spec in GitIgnoreSpec.from_lines([line]).patterns
        if isinstance(spec, RegexPattern)
    ]
    return _RuleFile(len(folder) + 1 if folder else 0, tuple(reversed(patterns)))


def _sound_lines(text: str) -> Iterator[str]:
    """The lines that git would not pass over."""
    for line in text.split("\n"):
        rule = line.removesuffix("\r").partition("\0")[0]
        if not rule.strip("!/ ") or rule.startswith("#"):
            continue
        try:
            GitIgnoreSpec.from_lines([rule])
        except ValueError:
            continue
        yield rule

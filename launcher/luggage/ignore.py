"""Ignore rules: ``.gitignore``, and ``.launchignore`` of the same form, which wins. pathspec reads them.

A folder that is ignored is never looked into, so nothing in it can be brought back, but by a rule for the
folder itself. Two things git does otherwise: ``?`` stands for one character here, not for one byte of it, and
patterns do not reach over a newline in a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from pathspec import GitIgnoreSpec, RegexPattern

#: What is never looked at: it belongs to git.
GIT_FOLDER = ".git"
#: The later wins.
RULE_FILES = (".gitignore", ".launchignore")


class Pattern(NamedTuple):
    """One line of a rule file."""

    line: str
    spec: RegexPattern

    def matches(self, text: str) -> bool:
        """Whether it means this path (a folder's ends in a slash), and not only a folder that it is in.

        A pattern of pathspec also matches all that is in a folder it matches. For git, and here, the folder
        was asked about before, and what is in it is asked about by itself.
        """
        found = self.spec.match_file(text)
        if found is None or self.line.lstrip("!/") == "**":
            return found is not None
        whole = found.match.end() == len(text)
        return not whole if self.line.endswith("/**") else whole


class Rules(NamedTuple):
    """The rules of one rule file, and where they count: from a depth of the path on."""

    #: Bytes of the path that lead to the rule file's folder, with the slash.
    start: int
    #: The last one first, since that is the one that decides.
    patterns: tuple[Pattern, ...] = ()

    def verdict(self, path: bytes, is_folder: bool) -> bool | None:
        """Whether it is ignored; ``None``: no rule says anything about it."""
        text = os.fsdecode(path[self.start :]) + ("/" if is_folder else "")
        return next((found.spec.include for found in self.patterns if found.matches(text)), None)


def read_rules(text: bytes, start: int) -> Rules:
    """The rules in a rule file; a line that git would pass over as well does not count.

    Args:
        text: what it says.
        start: see `Rules`.
    """
    lines = _sound_lines(os.fsdecode(text.removeprefix(b"\xef\xbb\xbf")))
    read = [(line, spec) for line in lines for spec in GitIgnoreSpec.from_lines([line]).patterns]
    return Rules(start, tuple(Pattern(line, p) for line, p in reversed(read) if isinstance(p, RegexPattern)))


def _sound_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        rule = line.removesuffix("\r").partition("\0")[0]
        if not rule.strip("!/ ") or rule.startswith("#"):
            continue
        try:
            GitIgnoreSpec.from_lines([rule])
        except ValueError:
            continue
        yield rule

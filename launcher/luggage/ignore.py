"""Ignore rules: ``.gitignore`` as git reads it, and ``.launchignore`` of the same form, which wins.

The patterns become regular expressions over bytes, since that is what git compares: names that are not
UTF-8, or hold a newline, are names like others. A folder that is ignored is never looked into, so nothing in
it can be brought back, but by a rule for the folder itself.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from typing import NamedTuple

#: What is never looked at: it belongs to git.
GIT_FOLDER = ".git"
#: The later wins.
RULE_FILES = (".gitignore", ".launchignore")

_SPECIAL = frozenset(b"*?[\\")
_CLASSES: dict[str, Callable[[str], bool]] = {
    "alnum": str.isalnum, "alpha": str.isalpha, "digit": str.isdigit, "lower": str.islower,
    "upper": str.isupper, "space": " \t\n\r\f\v".__contains__, "blank": " \t".__contains__,
    "xdigit": "0123456789abcdefABCDEF".__contains__, "punct": string.punctuation.__contains__,
    "print": lambda char: " " <= char <= "~",
    "cntrl": lambda char: char < " " or char == "\x7f",
    "graph": lambda char: "!" <= char <= "~",
}  # fmt: skip


class Rule(NamedTuple):
    """One line of a rule file."""

    matches: re.Pattern[bytes]
    #: Whether it ignores, or brings back (``!``).
    ignores: bool
    folders_only: bool
    #: Whether the name alone is compared, or the path from the rule file's folder.
    name_only: bool


class Rules(NamedTuple):
    """The rules of one rule file, and where they count: from a depth of the path on."""

    #: Bytes of the path that lead to the rule file's folder, with the slash.
    start: int
    #: The last one first, since that is the one that decides.
    rules: tuple[Rule, ...]

    def verdict(self, path: bytes, name: bytes, is_folder: bool) -> bool | None:
        """Whether it is ignored; ``None``: no rule says anything about it."""
        for rule in self.rules:
            if is_folder or not rule.folders_only:
                text = name if rule.name_only else path[self.start :]
                if rule.matches.fullmatch(text):
                    return rule.ignores
        return None


def read_rules(text: bytes, start: int) -> Rules:
    """The rules in a rule file.

    Args:
        text: what it says.
        start: see `Rules`.
    """
    lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rules = (rule for line in reversed(lines) if (rule := _rule(line)) is not None)
    return Rules(start, tuple(rules))


def _rule(line: bytes) -> Rule | None:
    line = _without_spaces(line.removesuffix(b"\r").partition(b"\0")[0])
    if not line or line.startswith(b"#"):
        return None
    ignores = not line.startswith(b"!")
    pattern = line if ignores else line[1:]
    folders_only = pattern.endswith(b"/")
    pattern = pattern[:-1] if folders_only else pattern
    name_only = b"/" not in pattern
    pattern = pattern.removeprefix(b"/")
    if not pattern:
        return None
    try:
        expression = b"".join(_name_pieces(pattern) if name_only else _path_pieces(pattern))
    except _NeverMatches:
        return None
    return Rule(re.compile(expression, re.DOTALL), ignores, folders_only, name_only)


def _without_spaces(line: bytes) -> bytes:
    """Without the spaces at the end, but those after a backslash."""
    end = 0
    at = 0
    while at < len(line):
        at += 2 if line[at : at + 1] == b"\\" else 1
        if line[at - 1 : at] != b" " or line[at - 2 : at - 1] == b"\\":
            end = at
    return line[:end]


class _NeverMatches(Exception):
    """Git finds fault with the pattern, and passes over it."""


def _name_pieces(pattern: bytes) -> Iterator[bytes]:
    """``*`` may match anything: there is no slash in a name."""
    at = 0
    while at < len(pattern):
        if pattern[at] == ord("*"):
            yield b".*"
            at += 1
        else:
            piece, at = _character(pattern, at)
            yield piece


def _path_pieces(pattern: bytes) -> Iterator[bytes]:
    """``*`` stays within a folder, ``**`` between slashes does not.

    Git compares what comes before the first special character by itself, and takes what is left as if it
    stood alone, so in ``a**/b`` the stars are at a beginning too.
    """
    plain = next((at for at, char in enumerate(pattern) if char in _SPECIAL), len(pattern))
    yield re.escape(pattern[:plain])
    at = start = plain
    while at < len(pattern):
        if pattern[at] != ord("*"):
            piece, at = _character(pattern, at)
            yield piece
            continue
        stars = at
        while pattern[at : at + 1] == b"*":
            at += 1
        bounded = stars == start or pattern[stars - 1 : stars] == b"/"
        if at - stars > 1 and bounded and pattern[at : at + 1] in (b"", b"/"):
            slash = pattern[at : at + 1] == b"/"
            yield b"(?:.*/)?" if slash else b".*"
            at += slash
        else:
            yield b"[^/]*"


def _character(pattern: bytes, at: int) -> tuple[bytes, int]:
    """What matches one character, and where the pattern goes on."""
    char = pattern[at : at + 1]
    if char == b"?":
        return b"[^/]", at + 1
    if char == b"[":
        return _char_set(pattern, at + 1)
    if char == b"\\":
        at += 1
        char = pattern[at : at + 1]
        if not char:
            raise _NeverMatches
    return re.escape(char), at + 1


def _char_set(pattern: bytes, at: int) -> tuple[bytes, int]:
    """``[...]``, read as git reads it, as the set of bytes it means."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    chars: set[int] = set()
    before: int | None = None
    first = True
    while first or pattern[at : at + 1] != b"]":
        first = False
        char = _byte(pattern, at)
        if char == ord("-") and before is not None and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            if pattern[at] == ord("\\"):
                at += 1
            chars.update(range(before, _byte(pattern, at) + 1))
            before = None
        elif char == ord("[") and pattern[at + 1 : at + 2] == b":":
            before, at = _named_class(pattern, at, chars)
        else:
            if char == ord("\\"):
                at += 1
                char = _byte(pattern, at)
            chars.add(char)
            before = char
        at += 1
    chars = (set(range(256)) - chars if negated else chars) - {ord("/")}
    return b"[" + b"".join(b"\\x%02x" % char for char in sorted(chars)) + b"]" if chars else b"(?!)", at + 1


def _byte(pattern: bytes, at: int) -> int:
    if at >= len(pattern):
        raise _NeverMatches
    return pattern[at]


def _named_class(pattern: bytes, at: int, chars: set[int]) -> tuple[int | None, int]:
    """``[:alpha:]`` within a set: adds to it; returns what stands before the next character, and where."""
    end = pattern.find(b"]", at + 2)
    if end < 0:
        raise _NeverMatches
    if end == at + 2 or pattern[end - 1 : end] != b":":  # a plain [ after all
        chars.add(ord("["))
        return ord("["), at
    test = _CLASSES.get(pattern[at + 2 : end - 1].decode("latin-1"))
    if test is None:
        raise _NeverMatches
    chars.update(code for code in range(128) if test(chr(code)))
    return None, end

"""What the ignore rules left out, in one line: who misses a folder on the hosts should know why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.luggage.ignore import RULE_FILES
from launcher.luggage.progress import human

#: Levels of a folder that are spoken of, and how much of them is remembered, measured and named.
_LEVELS, _MOST_NOTED, _MOST_MEASURED, _MOST_NAMED = 2, 200, 20, 5
#: Entries of a folder that are looked at to say how big it is.
_MOST_ENTRIES = 2000
#: Nobody misses it: Python makes it again.
_UNMISSED = "__pycache__"
#: A path that is a rule for itself, and for nothing else.
_PLAIN = re.compile(r"[\w+@=,./-]+")


class Ignored(NamedTuple):
    """Something that does not travel."""

    #: Relative to the folder that does.
    path: str
    is_folder: bool
    #: The kind of rule file that says so.
    rule_file: str

    def __str__(self) -> str:
        name = self.path + "/" * self.is_folder
        return name if name.isprintable() else ascii(name)


def is_worth_noting(path: str, noted: int) -> bool:
    """Whether anybody may wonder where it is.

    Args:
        path: relative to the folder that travels.
        noted: how much was noted before it.
    """
    parts = path.split("/")
    return len(parts) <= _LEVELS and parts[-1] != _UNMISSED and noted < _MOST_NOTED


def left_out_line(root: str, ignored: Iterable[Ignored], name: str = "") -> str:
    """``left out by .gitignore: data/ (41 MB); !data/ in .launchignore brings it back``.

    Args:
        root: the folder that travels.
        ignored: what did not.
        name: of the folder, where there are several.

    Returns:
        One line, the biggest first; empty if nothing was left out.
    """
    shallow = sorted(ignored, key=lambda one: (one.path.count("/"), not one.is_folder, one.path))
    sized = [(one, _size(f"{root}/{one.path}")) for one in shallow[:_MOST_MEASURED]]
    sized.sort(key=lambda pair: float("inf") if pair[1] is None else pair[1], reverse=True)
    named = sized[:_MOST_NAMED]
    if not named:
        return ""
    kinds = (_of_kind(kind, named) for kind in RULE_FILES)
    more = len(shallow) - len(named)
    uncounted = "" if len(shallow) == _MOST_NOTED else f"{more} "
    text = "; ".join(filter(None, kinds)) + (f" and {uncounted}more" if more else "")
    return f"left out{name and f' of {name}'} {text}{_advice([one for one, _ in named], name)}"


def _of_kind(rule_file: str, sized: Sequence[tuple[Ignored, int | None]]) -> str:
    words = [f"{one}{_shown(size)}" for one, size in sized if one.rule_file == rule_file]
    return f"by {rule_file}: {', '.join(words)}" if words else ""


def _shown(size: int | None) -> str:
    return "" if size is None else f" ({human(size) if size else 'empty'})"


def _advice(named: Sequence[Ignored], name: str) -> str:
    """How to have it all the same. What `.launchignore` leaves out was meant to be."""
    first = next((one for one in named if one.rule_file != RULE_FILES[-1]), None)
    if first is None or not _PLAIN.fullmatch(first.path):
        return ""
    return f"; !{first} in {os.path.join(name, RULE_FILES[-1])} brings it back"


def _size(path: str) -> int | None:
    """Bytes of a file, or of all in a folder; ``None``: it holds too much to be counted, or can't be read."""
    total = seen = 0
    ahead = [path]
    try:
        if os.path.islink(path) or not os.path.isdir(path):
            return os.lstat(path).st_size
        while ahead:
            with os.scandir(ahead.pop()) as found:
                for item in found:
                    seen += 1
                    if seen > _MOST_ENTRIES:
                        return None
                    if item.is_dir(follow_symlinks=False):
                        ahead.append(item.path)
                    else:
                        total += item.stat(follow_symlinks=False).st_size
    except OSError:
        return None
    return total

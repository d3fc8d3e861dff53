"""Extension of griffe: reads two forms of documentation that griffe itself does not know."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: ``ps, workers: text`` with the lines of its text.
_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+):(.*(?:\n\1 +.*)*)", re.M)


class Forms(griffe.Extension):
    """``#:`` comments beside an attribute are its docstring; ``a, b: text`` is a text for each name."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Split entries for several names."""
        if obj.docstring is not None:
            obj.docstring.value = _SEVERAL.sub(_entries, obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **others: Any) -> None:
        """Give an attribute without a docstring the text of its comments."""
        if attr.docstring is not None or attr.lineno is None or isinstance(attr.filepath, list):
            return
        lines = attr.lines_collection[attr.filepath]
        comments: list[str] = []
        line = attr.lineno - 1  # the one above, from 1
        while line > 0 and (found := re.match(r"\s*#: ?(.*)", lines[line - 1])):
            comments.insert(0, found[1])
            line -= 1
        if not comments and (found := re.search(r"  #: (.*)$", lines[attr.lineno - 1])):
            comments = [found[1]]
        if comments:
            attr.docstring = griffe.Docstring("\n".join(comments), parent=attr)


def _entries(several: re.Match[str]) -> str:
    return "\n".join(f"{several[1]}{name}:{several[3]}" for name in several[2].split(", "))

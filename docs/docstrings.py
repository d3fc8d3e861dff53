"""Extension of griffe: reads forms of documentation that griffe itself does not know."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: ``ps, workers: text`` with the lines of its text.
_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+):(.*(?:\n\1 +.*)*)", re.M)
#: The mark of an example, a line of its own.
_EXAMPLE = re.compile(r"^ *::\n\n?", re.M)
#: A page of the documentation: from the page of Python names, which is one folder down.
_PAGE = re.compile(r"\bdocs/([\w-]+)\.md")


class Forms(griffe.Extension):
    """Turns our docstrings into Google's form.

    ``a, b: text`` is a text for each name. ``::`` before an example is left out. ``#:`` comments of an
    attribute, and its text below ``Attributes:`` of its class, are its docstring.
    """

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Split entries for several names, and remove ``::``."""
        if obj.docstring is not None:
            text = _SEVERAL.sub(_entries, obj.docstring.value)
            obj.docstring.value = _PAGE.sub(r"[\1](../\1.md)", _EXAMPLE.sub("", text))

    def on_class_members(self, *, cls: griffe.Class, **others: Any) -> None:
        """Give attributes the text that the docstring of their class has for them."""
        sections = cls.docstring.parse("google", warnings=False) if cls.docstring is not None else []
        for section in sections:
            if isinstance(section, griffe.DocstringSectionAttributes):
                for entry in section.value:
                    if entry.name not in cls.members:
                        cls.set_member(entry.name, griffe.Attribute(entry.name, lineno=cls.lineno))
                    cls.members[entry.name].docstring = griffe.Docstring(entry.description)

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

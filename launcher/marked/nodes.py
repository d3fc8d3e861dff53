"""What a YAML file is made of, each piece with its line.

Our own three records rather than PyYAML's: values stay the text that was written (a host
called ``no`` is no boolean), and whoever reads them need not import PyYAML.
"""

from __future__ import annotations

from typing import NamedTuple

#: Plain words that mean "no value" in YAML.
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))


class Scalar(NamedTuple):
    """One value, as it was written; ``plain``: without quotes."""

    text: str
    line: int
    plain: bool = True

    @property
    def null(self) -> bool:
        """Whether it says that there is no value (``key:``, ``~``, ``null``; not ``""``)."""
        return self.plain and self.text in _NULLS


class Items(NamedTuple):
    """A list."""

    items: tuple[Node, ...]
    line: int


class Table(NamedTuple):
    """A mapping, in the order written; no key is there twice."""

    entries: tuple[tuple[Scalar, Node], ...]
    line: int


Node = Scalar | Items | Table


def kind(node: Node) -> str:
    """What to call a node in a fault: ``a list``."""
    if isinstance(node, Scalar):
        return "text"
    return "a list" if isinstance(node, Items) else "a mapping"

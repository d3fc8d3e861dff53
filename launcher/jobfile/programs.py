"""The program of a job file: ``program:`` (or ``command:``), one text or a list of words."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from launcher.job import Program
from launcher.marked.faults import MOST_FAULTS, MOST_QUOTED, Faults, quoted
from launcher.marked.fields import Fields, as_text
from launcher.marked.nodes import Items, Node, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Two names for the same key.
PROGRAM_KEYS = ("program", "command")


def says_program(fields: Fields) -> bool:
    """Whether a program is written here, right or wrong."""
    return any(fields.node(key) is not None for key in PROGRAM_KEYS)


def program_line(fields: Fields) -> int:
    """The line of it; that of the mapping, where none is written here."""
    return next((fields.line_of(key) for key in PROGRAM_KEYS if fields.node(key) is not None), fields.line)


def misspells(table: Table, known: Sequence[str], meant: Sequence[str]) -> bool:
    """Whether a key that nobody knows was probably meant to be one of ``meant``.

    It is a fault already, and what it was to say is no second one.
    """
    unknown = [key.text[:MOST_QUOTED] for key, _ in table.entries if key.text not in known]
    if not unknown:
        return False
    from difflib import get_close_matches  # 5 ms that only a fault costs

    near = (get_close_matches(word, known, n=1) for word in unknown[:MOST_FAULTS])
    return any(word in meant for words in near for word in words)


def read_program(fields: Fields) -> Program | None:
    """The program written here; ``None``: there is none, or a fault."""
    said = [(key, node) for key in PROGRAM_KEYS if (node := fields.node(key)) is not None]
    if len(said) > 1:
        fields.faults.add(fields.line_of("command"), '"program" and "command" both', "expected one of them")
    return _program(*said[0], fields.faults) if said else None


def _program(key: str, node: Node, faults: Faults) -> Program | None:
    if isinstance(node, Items):
        return _of_list(key, node, faults)
    text = as_text(node, key, faults)
    return None if text is None else faults.check(node.line, key, text, _of_text)


def _of_text(text: str) -> Program:
    """Split as a shell would: quotes and backslashes, but nothing is expanded."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("expected quotes in pairs, as in a shell") from None
    return Program.of(words)


def _of_list(key: str, node: Items, faults: Faults) -> Program | None:
    words = [as_text(item, key, faults) for item in node.items]
    known = [word for word in words if word is not None]
    if len(known) < len(words):
        return None
    try:
        return Program.of(known)
    except ValueError as error:
        faults.add(node.line, f"{key} is {quoted(' '.join(known))}", str(error))
        return None

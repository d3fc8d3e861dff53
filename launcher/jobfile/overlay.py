"""Roles that a program lays over those of a job file (``--roles-fd``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.jobfile.programs import PROGRAM_KEYS
from launcher.marked.nodes import Items, Node, Scalar, Table

_Fields = dict[str, tuple[Scalar, Node]]


def overlaid(table: Table, roles: Mapping[str, Any]) -> Table:
    """A job file with these roles.

    A field of a role replaces that of the file's role. A role of the file that is not named here is kept if
    it has a program of its own.

    Args:
        table: the file.
        roles: by name, a count or the fields of a role, as a job file has them.
    """
    fields = _fields(table)
    key, old = fields.get("roles", (Scalar("roles", 0), Table((), table.line)))
    if not isinstance(old, Table):  # a fault of the file, which its reader reports
        return table
    theirs = _fields(old)
    kept = {name: entry for name, entry in theirs.items() if name in roles or _has_program(entry[1])}
    for name, role in roles.items():
        word, node = theirs.get(name, (Scalar(name, 0), Table((), 0)))
        kept[name] = word, _merged(node, role if isinstance(role, Mapping) else {"count": role})
    fields["roles"] = key, Table(tuple(kept.values()), old.line)
    return Table(tuple(fields.values()), table.line)


def _merged(node: Node, role: Mapping[str, Any]) -> Node:
    if isinstance(node, Scalar):
        node = Table(((Scalar("count", node.line), node),), node.line)
    if not isinstance(node, Table):
        return node
    fields = _fields(node)
    if "command" in role:
        fields = {name: entry for name, entry in fields.items() if name not in PROGRAM_KEYS}
    fields.update({name: (Scalar(name, 0), _node(value)) for name, value in role.items()})
    return Table(tuple(fields.values()), node.line)


def _fields(table: Table) -> _Fields:
    return {key.text: (key, node) for key, node in table.entries}


def _has_program(node: Node) -> bool:
    return isinstance(node, Table) and any(key.text in PROGRAM_KEYS for key, _ in node.entries)


def _node(value: Any) -> Node:
    """A value of JSON as a node without a line."""
    if isinstance(value, Mapping):
        return Table(tuple((Scalar(str(name), 0), _node(each)) for name, each in value.items()), 0)
    if isinstance(value, list):
        return Items(tuple(map(_node, value)), 0)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return Scalar("" if value is None else text, 0, plain=value is None)

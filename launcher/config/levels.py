"""A mapping of YAML or TOML -> the level of settings that a file gives, by the rows of the table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from launcher.common.record import replace
from launcher.common.text import did_you_mean
from launcher.config import schema, values
from launcher.config.documents import ConfigNode
from launcher.config.schema import Keys, KeySpec, MappingValues, Read, by_role, several, single
from launcher.config.settings import FileSection, Given, Level, Setting, SourceKind
from launcher.config.table import ROWS


def keys_of(rows: Sequence[Setting[Any]], kind: SourceKind, sections: Sequence[FileSection] = ()) -> Keys:
    """Return the keys that a mapping in a file may have.

    Args:
        rows: The rows of the table.
        kind: The kind of file.
        sections: Those that the file may have.
    """
    found = (KeySpec(row.key, _reader(row), row.key_help) for row in rows if kind in row.given_in)
    return schema.key_table(*found, *(KeySpec(section.name, help=section.help) for section in sections))


def file_level(
    written: MappingValues,
    sections: Sequence[FileSection],
    role_names: Sequence[str],
    kind: SourceKind,
    folder: str,
) -> Level:
    """Return what a file gives.

    Args:
        written: The file, read by `keys_of`.
        sections, kind: As for `keys_of`.
        role_names: The roles that sections may name; empty: any.
        folder: The folder of the file: its paths are relative to it.

    Returns:
        If there are faults, without sections: what they ask for is not known.
    """
    by_key = {row.key: row for row in ROWS if kind in row.given_in}
    by_name = {section.name: section for section in sections}
    level: dict[str, Given] = {}
    of_sections: dict[str, Given] = {}
    for key in written.nodes:
        if key in by_name:
            of_sections.update(_section_level(by_name[key], written, role_names, kind, folder))
            level.update(of_sections)
        elif key in written:
            level[by_key[key].name] = _given(written, by_key[key], kind, folder)
    if written.faults:
        return {name: given for name, given in level.items() if name not in of_sections}
    return level


def _section_level(
    section: FileSection, file: MappingValues, role_names: Sequence[str], kind: SourceKind, folder: str
) -> Level:
    """Return what a section gives. Its head is given even if it has nothing else."""
    node, faults = file.nodes[section.name], file.faults
    text = written_text(node)
    if isinstance(node.value, str) and section.short:
        node = replace(node, value={section.short: node})
    node = replace(node, value=schema.mapping_of(node, section.name, faults, section.expected))
    written = schema.read_mapping(node, keys_of(section.rows, kind), faults)
    given = [row for row in section.rows if row.key in written]
    for row in given:
        for role, _ in written[row.key] if row.by_role else ():
            if role and role_names and role not in role_names:
                problem = f"{row.key}: there is no role {role!r}"
                written.add(row.key, problem, did_you_mean(role, role_names))
    level = {row.name: _given(written, row, kind, folder) for row in given}
    head = level.get(section.head.name, Given(section.head.without_value, "", kind))
    level[section.head.name] = replace(head, source=faults.where(file.line_of(section.name)), text=text)
    return level


def _given(written: MappingValues, row: Setting[Any], kind: SourceKind, folder: str) -> Given:
    """Return what a mapping gives for a row."""
    value, source = _resolved(row, written[row.key], folder), written.faults.where(written.line_of(row.key))
    return Given(value, source=source, kind=kind, text=written_text(written.nodes[row.key]))


def _resolved(row: Setting[Any], value: Any, folder: str) -> Any:
    """Return a value whose paths are absolute."""
    if row.path is None:
        return value
    if isinstance(value, str):
        return row.path(value, folder)
    return tuple(row.path(path, folder) for path in value) if row.repeatable else value


def written_text(node: ConfigNode) -> str:
    """Return a value as it is written; of a list its items, of a mapping its keys."""
    if isinstance(node.value, (dict, list)):
        return ",".join(item if isinstance(item, str) else written_text(item) for item in node.value)
    return str(node.value)


# ---------------------------------------------------------------------- readers


def _reader(row: Setting[Any]) -> Read:
    """Return what reads the value of a key.

    Blocks of text and control characters are mistakes in a file. Where the option may have no value, ``true``
    is a setting without a value, and ``false`` is none.
    """
    if row.read is not None:
        return row.read

    def parse(text: str) -> Any:
        if row.value_optional and not row.takes_next_word:
            with suppress(ValueError):
                return "" if values.flag(text) else None
        value = row.parse(text)
        values.one_line(text)
        return value

    if row.by_role:
        return by_role(single(parse))
    return several(parse) if row.repeatable else single(parse)

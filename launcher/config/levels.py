"""Turns the mapping of a job file or a project file into a level of settings, by the rows of the table.

`launcher.config.jobfile` calls it for both kinds of files. Every key comes from a `Setting`, so this module
must not know any setting by name.
"""

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
    """Return the table of keys that a mapping in a file may contain.

    Args:
        rows: The settings. Those that this kind of file cannot set are left out.
        kind: The kind of file.
        sections: The sections that the mapping may contain.
    """
    of_rows = (KeySpec(row.key, _reader(row), row.key_help) for row in rows if kind in row.given_in)
    of_sections = (KeySpec(section.name, help=section.help) for section in sections)
    return schema.key_table(*of_rows, *of_sections)


def file_level(
    written: MappingValues,
    sections: Sequence[FileSection],
    role_names: Sequence[str],
    kind: SourceKind,
    folder: str,
) -> Level:
    """Return the settings in a file.

    Args:
        written: The mapping of the file, read by the table of `keys_of`.
        sections: The sections that the file may contain.
        role_names: The roles that sections may name. Empty means any role.
        kind: The kind of file.
        folder: The folder of the file, to which its paths are relative.

    Returns:
        The values. If the file has faults, those in sections are left out, because a section with a fault may
            be incomplete.
    """
    row_by_key = {row.key: row for row in ROWS if kind in row.given_in}
    section_by_key = {section.name: section for section in sections}
    level: dict[str, Given] = {}
    names_in_sections: set[str] = set()
    for key in written.nodes:
        if key in section_by_key:
            section = _section_level(section_by_key[key], written, role_names, kind, folder)
            level.update(section)
            names_in_sections.update(section)
        elif key in written:  # The value has no fault.
            level[row_by_key[key].name] = _given(written, row_by_key[key], kind, folder)
    if written.faults:
        return {name: given for name, given in level.items() if name not in names_in_sections}
    return level


def _section_level(
    section: FileSection, file: MappingValues, role_names: Sequence[str], kind: SourceKind, folder: str
) -> Level:
    """Return the settings in a section of a file, such as ``docker:``, and add its faults.

    The presence of the section alone sets the setting that is its head, such as ``--docker``.

    Args:
        section: The section.
        file: The mapping of the file, which receives the faults.
        role_names: The roles that the section may name. Empty means any role.
        kind: The kind of file.
        folder: The folder of the file, to which its paths are relative.
    """
    node, faults = file.nodes[section.name], file.faults
    text = written_text(node)
    # A text such as `docker: IMAGE` is short for a mapping with one key.
    if isinstance(node.value, str) and section.short:
        node = replace(node, value={section.short: node})
    node = replace(node, value=schema.mapping_of(node, section.name, faults, section.expected))
    written = schema.read_mapping(node, keys_of(section.rows, kind), faults)
    written_rows = [row for row in section.rows if row.key in written]
    for row in written_rows:
        for role, _ in written[row.key] if row.by_role else ():
            if role and role_names and role not in role_names:  # An empty role means all roles.
                problem = f"{row.key}: there is no role {role!r}"
                written.add(row.key, problem, did_you_mean(role, role_names))
    level = {row.name: _given(written, row, kind, folder) for row in written_rows}
    # The head may also be a key of the section. Otherwise its value is that of the option without a value.
    head = level.get(section.head.name, Given(section.head.without_value, "", kind))
    level[section.head.name] = replace(head, source=faults.where(file.line_of(section.name)), text=text)
    return level


def _given(written: MappingValues, row: Setting[Any], kind: SourceKind, folder: str) -> Given:
    """Return the value of a setting in a mapping of a file, with its source and its text."""
    source = written.faults.where(written.line_of(row.key))
    text = row.masked(written_text(written.nodes[row.key]))
    return Given(_resolved(row, written[row.key], folder), source=source, kind=kind, text=text)


def _resolved(row: Setting[Any], value: Any, folder: str) -> Any:
    """Return the value of a setting with absolute paths, if it is a path or a list of paths."""
    if row.path is None:
        return value
    if isinstance(value, str):
        return row.path(value, folder)
    # Anything else, such as the hosts of a list below ``hosts:``, contains no path.
    return tuple(row.path(path, folder) for path in value) if row.repeatable else value


def written_text(node: ConfigNode) -> str:
    """Return a value as a text. A list becomes its items with commas, and a mapping its keys."""
    if isinstance(node.value, (dict, list)):
        return ",".join(item if isinstance(item, str) else written_text(item) for item in node.value)
    return str(node.value)


# ---------------------------------------------------------------------- readers


def _reader(row: Setting[Any]) -> Read:
    """Return the reader for the key of a setting.

    It accepts what the option accepts, but no control characters or texts of several lines, which are
    mistakes in a file. For an option such as ``--tensorboard[=DIR]``, which may stand without a value, the
    key may be ``true``, which means the same, or ``false``, which leaves the setting unset. An option that
    takes the next word, such as ``--docker IMAGE``, has a section instead, which sets it without a value.
    """
    if row.read is not None:
        return row.read

    def parse(text: str) -> Any:
        """Convert the text of the key. None leaves the setting unset."""
        if row.value_optional and not row.takes_next_word:
            with suppress(ValueError):  # The text is not a boolean, but a value.
                return "" if values.flag(text) else None
        value = row.parse(text)
        values.one_line(text)  # It is called only for its error.
        return value

    if row.by_role:
        return by_role(single(parse))
    return several(parse) if row.repeatable else single(parse)

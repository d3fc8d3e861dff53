"""The help text of a parser in 80 columns, with one line for each option."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence

from launcher.common.record import Record

#: The width of help texts, and the last column where descriptions begin.
TEXT_WIDTH = 80
_MAX_DESCRIPTION_COLUMN = 25


class Row(Record):
    """One line of a help text."""

    #: As it is typed, with the name of its value: ``--ps N``.
    name: str
    description: str


class HelpSection(Record):
    """Rows with a title."""

    title: str
    rows: Sequence[Row]


def option_sections(parser: argparse.ArgumentParser, common: Collection[str] = ()) -> Iterator[HelpSection]:
    """The options and arguments of a parser by group; those without a group of their own come last.

    Args:
        parser: of a command.
        common: only these options, as one section; default: all.
    """
    groups = [group for group in parser._action_groups if group is not parser._optionals]
    sections = []
    for group in [*groups, parser._optionals]:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        rows = [_row(each) for each in shown if not common or set(common).intersection(each.option_strings)]
        if rows:
            sections.append(HelpSection(group.title or "", rows))
    if common:
        yield HelpSection("common options", [row for section in sections for row in section.rows])
    else:
        yield from sections


def _row(action: argparse.Action) -> Row:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return Row(value, action.help or "")
    if action.nargs == "?":
        value = f"[{value}]"
    names = ", ".join(action.option_strings)
    if action.nargs == 0:  # a switch: its value, if it may have one, is written with the "="
        return Row(f"{names}{action.metavar or ''}", action.help or "")
    return Row(f"{names} {value}", action.help or "")


def section_text(section: HelpSection) -> str:
    """A title and its rows; a description that is too long goes on below itself."""
    import textwrap

    lines = [f"{section.title}:"]
    column = min(_MAX_DESCRIPTION_COLUMN, 4 + max(len(row.name) for row in section.rows))
    for name, description in section.rows:
        row = f"  {name:{column - 4}}  {description}"
        lines += textwrap.wrap(row, TEXT_WIDTH, subsequent_indent=" " * column)
    return "\n".join(lines)

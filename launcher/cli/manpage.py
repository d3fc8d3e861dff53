"""Writes the man page of ``launch``: ``python -m launcher.cli.manpage > launch.1``.

The build calls it. The page has the same content as the help texts, in the format of roff.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher import __version__
from launcher.cli.arguments import command_parser
from launcher.cli.commands import COMMANDS, DOCUMENTATION, SYNOPSIS, command_module
from launcher.cli.help_text import EXIT_CODES, Row, sections_of


def man_page() -> str:
    """Return the man page launch(1) as roff: the texts of ``launch --help-all`` and of each command.

    In roff, ``.TH`` is the title, ``.SH`` a section and ``.SS`` a section below it.
    """
    run = command_module("run")
    lines = [f'.TH LAUNCH 1 "" "launch {__version__}" "User Commands"']
    lines += [".SH NAME", f"launch \\- {_text(run.SUMMARY)}"]
    lines += [".SH SYNOPSIS", *_verbatim(line.strip() for line in SYNOPSIS.split("\n")), ".SH OPTIONS"]
    for section in sections_of("run"):
        lines += [f'.SS "{_text(section.title)}"', *_rows(section.rows)]
    lines += [".SH EXAMPLES", *_verbatim(run.EXAMPLES.split("\n")), ".SH COMMANDS"]
    for name in COMMANDS:
        if name != "run":
            lines += _command(name)
    where = f"{DOCUMENTATION} below the prefix of its Python"
    lines += [".SH EXIT STATUS", *_rows(EXIT_CODES.rows), ".SH DOCUMENTATION", _text(where)]
    return "\n".join(lines) + "\n"


def _command(name: str) -> list[str]:
    """Return the lines of roff about a command: summary, usage, options and examples."""
    command = command_module(name)
    summary = f"{command.SUMMARY[:1].upper()}{command.SUMMARY[1:]}."
    # argparse wraps a long usage, which roff will wrap itself.
    usage = " ".join(command_parser(name).format_usage().removeprefix("usage: ").split())
    lines = [f'.SS "launch {name}"', _text(summary), ".PP", _text(usage)]
    for section in sections_of(name):
        lines += _rows(section.rows)
    return [*lines, ".PP", *_verbatim(command.EXAMPLES.split("\n"))]


def _rows(rows: Iterable[Row]) -> list[str]:
    """Return the lines of roff for options: a paragraph for each, with its name in bold."""
    return [line for row in rows for line in (".TP", f"\\fB{_text(row.name)}\\fR", _text(row.description))]


def _verbatim(lines: Iterable[str]) -> list[str]:
    """Return the lines of roff for a text whose lines must not be joined, such as an example."""
    return [".nf", *map(_text, lines), ".fi"]


def _text(text: str) -> str:
    """Return a text with escapes for what roff interprets.

    Without them roff would replace quotes and hyphens by typographic ones, which cannot be pasted into a
    shell.
    """
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    # A period at the beginning of a line would be a request to roff.
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    print(man_page(), end="")

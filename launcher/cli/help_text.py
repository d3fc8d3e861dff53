"""Writes help texts from the rows of the table of settings: 80 columns, one line for each option.

The parser prints them for ``--help`` and ``--help-all``. The man page contains the same sections. Hidden
options, whose rows have no help, are never shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from launcher.cli.commands import COMMANDS, command_module, documentation, groups_of
from launcher.common.record import Record
from launcher.config.settings import COMMAND_LINE, Setting

#: The width of help texts, in characters.
TEXT_WIDTH = 80
#: Descriptions start in this column at the latest, however long the names of options are.
_MAX_DESCRIPTION_COLUMN = 25
#: The options that ``launch --help`` shows; ``launch --help-all`` shows every option.
_COMMON = (
    "--ps", "--workers", "--chief", "--evaluator", "--gpus", "--hosts", "--flags", "-x", "--python",
    "--venv", "--tensorboard", "--sync", "--docker", "--restarts", "--timeout", "--detach", "--dry-run",
    "--report", "--quiet", "--verbose",
)  # fmt: skip


class Row(Record):
    """One line of a help text: an option, an argument, a command or an exit code."""

    #: What is typed, with a word for its value, such as ``--ps N``.
    name: str
    description: str


class HelpSection(Record):
    """A section of a help text: a title and the rows below it."""

    title: str
    rows: Sequence[Row]


HELP = Row("-h, --help", "show this help, and exit")
HELP_ALL = Row("--help-all", "show every option, and exit")
VERSION = Row("--version", "show the version, and exit")
PROGRAM = HelpSection(
    "program to run",
    [
        Row("-m MODULE [ARGS...]", "a Python module and its arguments"),
        Row("-c CODE [ARGS...]", "Python code and its arguments"),
        Row("PROGRAM [ARGS...]", "a .py file, an executable, a job file or TFJob (.yaml)"),
    ],
)
EXIT_CODES = HelpSection(
    "exit codes",
    [
        Row("0", "the job succeeded"),
        Row("1 to 255", "the exit code of the first task that failed; 128+N: signal N"),
        Row("2", "bad input: nothing was started"),
        Row("124", "--timeout was over, or --stall stopped a task that hangs"),
        Row("125", "launch itself or a host failed"),
        Row("126, 127", "the program cannot be run, or was not found"),
        Row("130, 143", "Ctrl-C, or SIGTERM to launch"),
    ],
)


def sections_of(name: str) -> Iterator[HelpSection]:
    """Yield the sections with the options and arguments of a command, in the order of its help.

    Options that belong to no special group come last.
    """
    general = [HELP]  # The options of no special group.
    for group in groups_of(name):
        rows = list(map(_row_of, _shown(group.rows)))
        if group.title == "options":
            general += rows
        else:
            yield HelpSection(group.title, rows)
    if name == "run":
        general += [HELP_ALL, VERSION]
        yield PROGRAM
    yield HelpSection("options", general)


def help_text(name: str, usage: str, *, common: bool = False) -> str:
    """Return the whole help text of a command: usage, summary, options and examples.

    That of ``launch`` itself also lists the commands and the exit codes.

    Args:
        name: The command.
        usage: The usage of the command, as argparse writes it.
        common: Whether to show only the most common options.
    """
    module = command_module(name)
    summary = f"{module.SUMMARY[:1].upper()}{module.SUMMARY[1:]}."
    sections = [_common_options()] if common else list(sections_of(name))
    if name == "run":
        others = [Row(other, command_module(other).SUMMARY) for other in COMMANDS if other != "run"]
        sections.append(HelpSection("commands (launch help COMMAND)", others))
    examples = "\n".join(f"  {line}".rstrip() for line in module.EXAMPLES.split("\n"))
    parts = [usage.rstrip(), summary, *map(section_text, sections), f"examples:\n{examples}"]
    if name == "run":
        parts += [section_text(EXIT_CODES), f"documentation: {documentation()}"]
    return "\n\n".join(parts) + "\n"


def section_text(section: HelpSection) -> str:
    """Return a section as text: its title, and below it a row for each option, with its description.

    The descriptions are in a column of their own, and a long one is continued below itself.

    Args:
        section: The section, which has at least one row.
    """
    import textwrap  # noqa: PLC0415 - 3 ms, for the help only

    lines = [f"{section.title}:"]
    column = min(_MAX_DESCRIPTION_COLUMN, 4 + max(len(row.name) for row in section.rows))
    for row in section.rows:
        text = f"  {row.name:{column - 4}}  {row.description}"
        lines += textwrap.wrap(text, TEXT_WIDTH, subsequent_indent=" " * column)
    return "\n".join(lines)


def _common_options() -> HelpSection:
    """Return the options that ``launch --help`` shows, with the one that shows all."""
    rows = [row for group in groups_of("run") for row in group.rows if {*_COMMON}.intersection(row.flags)]
    return HelpSection("common options", [*map(_row_of, _shown(rows)), HELP_ALL])


def _shown(rows: Collection[Setting[Any]]) -> list[Setting[Any]]:
    """Return the settings that can be given on the command line and are not hidden."""
    return [row for row in rows if row.help and COMMAND_LINE in row.given_in]


def _row_of(setting: Setting[Any]) -> Row:
    """Return the line of a setting in a help text, such as ``-n, --lines N`` with its description."""
    if setting.positional is not None:
        return Row(setting.metavar, setting.help)
    # A metavar such as [=DIR] follows the option without a space, and has its brackets already.
    value = f"[{setting.metavar}]" if setting.value_optional and setting.takes_next_word else setting.metavar
    space = " " if value and setting.takes_next_word else ""
    return Row(f"{', '.join(setting.flags)}{space}{value}", setting.help)

"""``launch help``: how ``launch`` or one of its commands is used."""

from __future__ import annotations

import argparse

from launcher.cli.completion import completes
from launcher.cli.parser import COMMANDS, command_parser, no_command

SUMMARY = "show how launch or one of its commands is used"

EXAMPLES = """\
launch help          common options, commands and examples, as launch --help
launch help logs     the options of a command, as launch logs --help"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch help``."""
    text = "a command (default: launch itself)"
    topic = parser.add_argument("topic", metavar="COMMAND", nargs="?", help=text)
    completes(topic, lambda: list(COMMANDS))


def run(args: argparse.Namespace) -> int:
    """Print the help text.

    Raises:
        InputError: there is no such command.
    """
    name = args.topic or "run"
    if name not in COMMANDS:
        raise no_command(name)
    print(command_parser(name).format_help(), end="")
    return 0

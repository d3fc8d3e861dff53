"""``launch``: finds the command, reads its arguments, prints errors, returns the exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from launcher.cli.commands import COMMANDS
from launcher.cli.parser import Parser
from launcher.errors import HostsError, InputError, LaunchError, NotRunnableError, ProgramError
from launcher.text import printable

if TYPE_CHECKING:
    from typing import Any

_SYNOPSIS = """launch [OPTIONS] PROGRAM [ARGS...]
       launch [OPTIONS] -m MODULE [ARGS...]
       launch [OPTIONS] -c CODE [ARGS...]
       launch [OPTIONS] JOB.yaml
       launch COMMAND ..."""


def main(argv: Sequence[str]) -> int:
    """Run a command line.

    Args:
        argv: without the program's own name.

    Returns:
        The exit code; every fault of ours is printed by then.
    """
    name = argv[0] if argv and argv[0] in COMMANDS else "run"
    rest = argv[1:] if argv and argv[0] == name else argv
    try:
        command = importlib.import_module(COMMANDS[name])
        return int(command.run(_parser(name, command).parse_args(list(rest))))
    except LaunchError as error:
        print_error(error)
        return error.exit_code


def print_error(error: LaunchError) -> None:
    """Each fault on a line of its own, and nothing in it that a terminal would act on."""
    faults: Sequence[object] = (error,)
    if isinstance(error, (InputError, HostsError)):
        faults = error.faults
    elif isinstance(error, (ProgramError, NotRunnableError)):
        faults = str(error).split("\n")  # a line for each program
    for fault in faults:
        text = "\n".join(map(printable, str(fault).split("\n")))
        print(f"launch: {text}", file=sys.stderr)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal. argparse would import ``shutil`` to ask, at every launch: 4 ms."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{**settings, "width": _columns() - 2})


def _columns() -> int:
    """Columns of the terminal, as ``shutil`` finds them, but no more than are read with ease."""
    said = os.environ.get("COLUMNS", "")
    try:
        return min(int(said) if said.isdigit() and int(said) else os.get_terminal_size(1).columns or 80, 112)
    except OSError:
        return 80


def _parser(name: str, command: ModuleType) -> argparse.ArgumentParser:
    parser = Parser(
        prog="launch" if name == "run" else f"launch {name}",
        usage=_SYNOPSIS if name == "run" else None,
        description=command.SUMMARY[:1].upper() + command.SUMMARY[1:] + ".",
        epilog=_epilog(name, command),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    return parser


def _epilog(name: str, command: ModuleType) -> str:
    text = "examples:\n" + "\n".join(f"  {line}" for line in command.EXAMPLES.splitlines())
    if name != "run":
        return text
    names = ", ".join(other for other in COMMANDS if other != "run")
    how = "(launch COMMAND --help; a program of such a name: launch run NAME)"
    return f"{text}\n\ncommands: {names}\n{how}"


def build_parser() -> argparse.ArgumentParser:
    """The whole command line in one parser: what shell completion is made from."""
    parser = argparse.ArgumentParser(prog="launch", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = importlib.import_module(module)
        command.add_arguments(commands.add_parser(name, help=command.SUMMARY, allow_abbrev=False))
    importlib.import_module("launcher.cli.options").add_options(parser)
    return parser

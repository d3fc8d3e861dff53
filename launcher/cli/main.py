"""``launch``: selects the command, parses its arguments, prints errors, returns the exit code."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from launcher.errors import Fault, HostsError, InputError, LaunchError, NotRunnableError, ProgramError
from launcher.text import nearest, printable

#: Command -> module, imported when it is used. Any other first argument belongs to ``run``.
COMMANDS = {
    "run": "launcher.cli.run",
    "hosts": "launcher.cli.hosts",
    "check": "launcher.cli.check",
    "attach": "launcher.cli.attach",
    "logs": "launcher.cli.logs",
    "ps": "launcher.cli.ps",
    "restart": "launcher.cli.restart",
    "stop": "launcher.cli.stop",
    "clean": "launcher.cli.clean",
    "completion": "launcher.cli.completion",
}
#: Commands of other programs that are options of ``launch``.
_OPTIONS = ("help", "version")

#: The beginning of argparse's message about unknown arguments.
_UNRECOGNIZED = "unrecognized arguments: "
#: Options of other launchers -> options of ``launch``.
_ALIASES = {
    "--container": "--docker",
    "--image": "--docker",
    "--np": "--workers",
    "-np": "--workers",
    "-n": "--workers",
    "--env": "-x",
    "-e": "-x",
}

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
        The exit code, after errors were printed.
    """
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        from launcher.cli.completion import complete

        complete(_parser, list(COMMANDS))
    name = argv[0] if argv and argv[0] in COMMANDS else "run"
    rest = argv[1:] if argv and argv[0] == name else argv
    command = importlib.import_module(COMMANDS[name])
    args = argparse.Namespace(events_fd=None)
    try:
        _parser(name).parse_args(list(rest), args)
        return int(command.run(args))
    except LaunchError as error:
        if args.events_fd is not None:  # the program at its other end raises the error
            import pickle

            line = b'{"event": "Failed", "error": "%s"}\n'
            os.write(args.events_fd, line % pickle.dumps(error).hex().encode())
            return error.exit_code
        hint = _suggested_command(args) if isinstance(error, ProgramError) and name == "run" else ""
        print_error(error, hint)
        return error.exit_code


def print_error(error: LaunchError, hint: str = "") -> None:
    """Print each fault on a line of its own, with escapes for control characters."""
    faults: Sequence[object] = (error,)
    if isinstance(error, (InputError, HostsError)):
        faults = error.faults
    elif isinstance(error, (ProgramError, NotRunnableError)):
        faults = str(error).split("\n")  # a line for each program
    for fault in faults:
        text = "\n".join(map(printable, str(fault).split("\n")))
        print(f"launch: {text}{hint}", file=sys.stderr)


def _suggested_command(args: argparse.Namespace) -> str:
    """For a program that does not exist: a hint to the command of ``launch`` with a similar name."""
    arguments = [argument for argument in args.program if argument != "--"]
    if args.module is not None or args.code is not None or not arguments or "/" in arguments[0]:
        return ""
    near = nearest(arguments[0], (*COMMANDS, *_OPTIONS))
    return f"; did you mean launch {'--' if near in _OPTIONS else ''}{near}?" if near else ""


# ---------------------------------------------------------------------- the parser of every command


def _parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    command = importlib.import_module(COMMANDS[name])
    epilog = "examples:\n" + "\n".join(f"  {line}" for line in command.EXAMPLES.splitlines())
    if name == "run":
        names = ", ".join(other for other in COMMANDS if other != "run")
        epilog += f"\n\ncommands: {names}\n(launch COMMAND --help; a program of such a name: launch run NAME)"
    parser = _Parser(
        prog="launch" if name == "run" else f"launch {name}",
        usage=_SYNOPSIS if name == "run" else None,
        description=command.SUMMARY[:1].upper() + command.SUMMARY[1:] + ".",
        epilog=epilog,
    )
    command.add_arguments(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are a line each, without the usage."""

    def __init__(self, **settings: Any) -> None:
        # Without a width argparse imports shutil at every launch to get the size of the terminal.
        formatter = functools.partial(argparse.RawDescriptionHelpFormatter, width=_columns() - 2)
        super().__init__(formatter_class=formatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise an error with all faults."""
        faults = [message.removeprefix("argument ")]
        if message.startswith(_UNRECOGNIZED):
            faults = _unrecognized(message.removeprefix(_UNRECOGNIZED).split(), self._option_string_actions)
        hint = f"({self.prog} --help shows all options)"
        raise InputError(Fault("", f"{fault} {hint}") for fault in faults)


def _columns() -> int:
    """The columns of the terminal; at most 112."""
    columns = os.environ.get("COLUMNS", "")
    try:
        found = int(columns) if columns.isdecimal() and int(columns) else os.get_terminal_size(1).columns
    except OSError:
        found = 80
    return min(found or 80, 112)


def _unrecognized(arguments: list[str], known: Iterable[str]) -> list[str]:
    """A fault for each unknown option; an argument after an option may be its value."""
    options = [
        argument.partition("=")[0] for argument in arguments if argument.startswith("-") and argument != "--"
    ]
    if not options:
        extra = " ".join(argument for argument in arguments if argument != "--")
        return [f"unexpected argument {extra!r}; expected options only"]
    names = [name.lstrip("-") for name in known]
    faults = []
    for option in options:
        guess = nearest(option.lstrip("-"), names, 0.75)
        meant = _ALIASES.get(option) or (f"--{guess}" if guess else "")
        faults.append(f"unrecognized option {option}{f'; did you mean {meant}?' if meant else ''}")
    return faults

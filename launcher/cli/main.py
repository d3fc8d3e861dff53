"""The entry of ``launch``: selects the command, parses its arguments, prints errors, returns the exit code.

It is the only place that prints errors of the command line. No `LaunchError` leaves it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from launcher.cli import foreign_options
from launcher.cli.arguments import parse_command
from launcher.cli.commands import COMMANDS, SYNOPSIS, command_module, no_command
from launcher.common.errors import Fault, HostsError, InputError, LaunchError, NotRunnableError, ProgramError
from launcher.common.text import closest_match, escape_controls
from launcher.config.table import EVENTS_FD

_BARE_USAGE = f"""\
usage: {SYNOPSIS}

`launch train.py` runs a program as one task, `launch --workers 2 train.py` as two.
`launch --help` shows the common options, the commands and examples."""


def main(argv: Sequence[str]) -> int:
    """Run a command line, and print its errors on stderr.

    Args:
        argv: The words after ``launch``.

    Returns:
        The exit code.
    """
    # A shell that asks for completions sets this variable.
    if "_ARGCOMPLETE" in os.environ:
        from launcher.cli.completion import complete  # noqa: PLC0415 - of this command only

        complete()  # It exits.
    if not argv:
        print(f"launch: expected a program, a job file or a command\n{_BARE_USAGE}", file=sys.stderr)
        return InputError.exit_code
    # Any first word that is no command belongs to a launch, and so does all that follows.
    name = argv[0] if argv[0] in COMMANDS else "run"
    words = argv[1:] if argv[0] == name else argv
    parsed = argparse.Namespace()
    try:
        if argv[0] in foreign_options.COMMANDS:
            problem = no_command(argv[0])
            raise InputError([Fault("", f"{problem}; a program of that name: `launch run {argv[0]}`")])
        module = command_module(name)
        return int(module.run(words, parsed) if name == "run" else module.run(parse_command(name, words)))
    except LaunchError as error:
        descriptor = getattr(parsed, EVENTS_FD.name, None)
        if descriptor is not None:
            # The program at the other end of the descriptor raises the error, so it is not printed here.
            import pickle  # noqa: PLC0415 - only for the Python API

            line = b'{"event": "Failed", "error": "%s"}\n'
            os.write(EVENTS_FD.parse(descriptor), line % pickle.dumps(error).hex().encode())
            return error.exit_code
        hint = _suggested_command(parsed) if isinstance(error, ProgramError) and name == "run" else ""
        print_error(error, hint)
        return error.exit_code


def print_error(error: LaunchError, hint: str = "") -> None:
    """Print each fault of an error on a line of its own, with escapes for control characters.

    Args:
        error: The error.
        hint: A text that follows each fault.
    """
    faults: Sequence[object] = (error,)
    if isinstance(error, (InputError, HostsError)):
        faults = error.faults
    elif isinstance(error, (ProgramError, NotRunnableError)):
        # The text contains a line for each program.
        faults = str(error).split("\n")
    for fault in faults:
        text = "\n".join(map(escape_controls, str(fault).split("\n")))
        print(f"launch: {text}{hint}", file=sys.stderr)


def _suggested_command(parsed: argparse.Namespace) -> str:
    """Return a hint for a user who misspelt a command, so that launch took it for a program.

    Args:
        parsed: What the parser has found in the command line.

    Returns:
        The hint, or an empty text if no command has a name like that of the program.
    """
    words = [word for word in parsed.program if word != "--"]
    # With -m or -c, or by its path, the user means a program.
    if parsed.module is not None or parsed.code is not None or not words or "/" in words[0]:
        return ""
    similar = closest_match(words[0], COMMANDS)
    return f"; did you mean launch {similar}?" if similar else ""

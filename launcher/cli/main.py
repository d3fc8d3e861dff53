"""The entry of ``launch``: selects the command, parses its arguments, prints errors, returns the exit code.

It is the only place that prints errors of the command line. No `LaunchError` leaves it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from launcher.cli.arguments import parse_command
from launcher.cli.commands import COMMANDS, SYNOPSIS, command_module, refuse_mistaken_command
from launcher.common.errors import HostsError, InputError, LaunchError, NotRunnableError, ProgramError
from launcher.common.text import escape_controls
from launcher.config.table import EVENTS_FD
from launcher.messages import message_prefix

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
        from launcher.cli.completion import complete  # noqa: PLC0415 - for completion only

        complete()  # It exits.
    if not argv:
        print(f"launch: expected a program, a job file or a command\n{_BARE_USAGE}", file=sys.stderr)
        return InputError.exit_code
    # Any first word that is no command belongs to a launch, and so does all that follows.
    name = argv[0] if argv[0] in COMMANDS else "run"
    words = argv[1:] if argv[0] == name else argv
    parsed = argparse.Namespace()
    try:
        if argv[0] not in COMMANDS:
            refuse_mistaken_command(argv)
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
        print_error(error)
        return error.exit_code


def print_error(error: LaunchError) -> None:
    """Print each fault of an error on a line of its own, with escapes for control characters."""
    faults: Sequence[object] = (error,)
    if isinstance(error, (InputError, HostsError)):
        faults = error.faults
    elif isinstance(error, (ProgramError, NotRunnableError)):
        # The text contains a line for each program.
        faults = str(error).split("\n")
    for fault in faults:
        text = "\n".join(map(escape_controls, str(fault).split("\n")))
        print(f"{message_prefix()}{text}", file=sys.stderr)

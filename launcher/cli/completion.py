"""``launch completion``: the script by which a shell completes the arguments of ``launch``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.runs.run import RunState, all_runs, tasks

if TYPE_CHECKING:  # it imports the commands
    from launcher.cli.parser import Parser

SUMMARY = "print the completion script of a shell"

EXAMPLES = """\
launch completion bash > ~/.local/share/bash-completion/completions/launch
launch completion zsh > ~/.zfunc/_launch
eval "$(launch completion bash)"              for this shell only

zsh needs fpath+=(~/.zfunc) before compinit in ~/.zshrc."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch completion``."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["launch"], shell=args.shell))
    return 0


def complete(parser_of: Callable[[str], Parser], commands: list[str]) -> None:
    """Print the completions of a command line to the shell, and end this process.

    Args:
        parser_of: gives the parser of a command.
        commands: all of them.
    """
    import argcomplete
    from argcomplete.completers import FilesCompleter

    before = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    typed = [part for part in before[:-1] if part]
    if len(typed) > 1 and typed[1] in commands:
        parser = parser_of(typed[1])
        divided = next((number for number, word in enumerate(typed) if word in parser.divided_at), 1)
        # argcomplete ignores the arguments before this number: the command.
        os.environ["_ARGCOMPLETE"] = str(divided + 1)
        argcomplete.autocomplete(parser if divided == 1 else parser_of("run"), always_complete_options=False)
        return

    def commands_and_files(prefix: str, **_: object) -> list[str]:
        names = commands if len(typed) == 1 else []
        return [*names, *FilesCompleter()(prefix)]

    parser = parser_of("run")
    program = next(action for action in parser._actions if action.dest == "program")
    program.completer = commands_and_files  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def completes(action: argparse.Action, names: Callable[[], list[str]]) -> None:
    """Complete the values of an argument with these names."""
    action.completer = lambda **_: names()  # type: ignore[attr-defined]  # where argcomplete looks for it


def unfinished_runs() -> list[str]:
    """The names of runs that have no report."""
    return [run.name for run in all_runs() if run.state is not RunState.ENDED]


def runs_and_tasks() -> list[str]:
    """The names of all runs, and of the tasks of the newest."""
    return [*(run.name for run in all_runs()), *newest_tasks()]


def newest_tasks() -> list[str]:
    """The names of the tasks of the newest run."""
    return [task for run in all_runs()[-1:] for task in tasks(run)]

"""``launch completion``: print the script by which a shell completes the arguments of ``launch``.

The script starts ``launch`` for each Tab. `launcher.cli.main` then calls `complete`, which starts no job.
"""

from __future__ import annotations

import os

from argcomplete import autocomplete, completers, shell_integration

from launcher.cli.arguments import command_parser
from launcher.cli.commands import COMMANDS
from launcher.cli.export import FORMS
from launcher.config.settings import Group, Setting, Settings
from launcher.config.values import OneOf

SUMMARY = "print the completion script of a shell"

EXAMPLES = """\
launch completion bash > ~/.local/share/bash-completion/completions/launch
launch completion zsh > ~/.zfunc/_launch
eval "$(launch completion bash)"              for this shell only

zsh needs fpath+=(~/.zfunc) before compinit in ~/.zshrc."""


SHELL = Setting("shell", OneOf("bash", "zsh"), "which shell", default="", positional="1")
GROUPS = (Group("positional arguments", (SHELL,)),)


def run(settings: Settings) -> int:
    """Print the completion script of the shell that the user names."""
    print(shell_integration.shellcode(["launch"], shell=settings[SHELL]))
    return 0


def complete() -> None:
    """Print the completions of the command line that a shell passes in variables, and exit.

    argcomplete completes by a parser, so the parser must be that of the command on the line. ``launch
    export`` is special: the words after the form of the file are those of a launch.
    """
    before_cursor = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    # The last word is the one to complete. The first is `launch` itself.
    words = [word for word in before_cursor[:-1] if word]

    def commands_and_files(prefix: str, **_: object) -> list[str]:
        """Return what may follow: after `launch` alone a command, and always a file."""
        names = COMMANDS if len(words) == 1 else ()
        return [*names, *completers.FilesCompleter()(prefix)]

    if len(words) > 1 and words[1] in COMMANDS:
        last_of_command, name = 1, words[1]
        for form in FORMS if name == "export" else ():
            if form in words:
                last_of_command, name = words.index(form), "run"
        # argcomplete ignores the words before this number.
        os.environ["_ARGCOMPLETE"] = str(last_of_command + 1)
        parser = command_parser(name)
    else:
        parser = command_parser("run")
        program = next(action for action in parser._actions if action.dest == "program")
        program.completer = commands_and_files  # type: ignore[attr-defined]
    autocomplete(parser, always_complete_options=False)

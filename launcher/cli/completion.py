"""``launch completion``: what makes a shell complete the words of ``launch``."""

from __future__ import annotations

import argparse

SUMMARY = "print the completion script of a shell"

EXAMPLES = """\
launch completion bash > ~/.local/share/bash-completion/completions/launch
launch completion zsh > ~/.zfunc/_launch      with fpath+=(~/.zfunc) before compinit in ~/.zshrc
eval "$(launch completion bash)"              for this shell only"""

#: What shtab's FILE is, without importing it for every command.
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}


def completes_files(action: argparse.Action) -> None:
    """Let a shell complete the value of this argument with names of files."""
    action.complete = _FILES  # type: ignore[attr-defined]  # where shtab looks for it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch completion``."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Print the script; it is static, so that a shell does not start Python at every Tab."""
    import shtab

    from launcher.cli.main import build_parser

    print(shtab.complete(build_parser(), args.shell))
    return 0

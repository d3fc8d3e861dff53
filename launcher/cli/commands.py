"""The commands of ``launch``, by name: whoever reads a command line, and whoever doubts one, knows them."""

from __future__ import annotations

from launcher.text import nearest

#: Command -> module, imported when it is used. What is none of these is a program to run.
COMMANDS = {
    "run": "launcher.cli.run",
    "hosts": "launcher.cli.hosts",
    "check": "launcher.cli.check",
    "logs": "launcher.cli.logs",
    "ps": "launcher.cli.ps",
    "stop": "launcher.cli.stop",
    "clean": "launcher.cli.clean",
    "completion": "launcher.cli.completion",
}

#: What other programs have as commands, and this one as options.
_OPTIONS = ("help", "version")


def meant_command(word: str) -> str:
    """The command line that a word was probably meant to be, ``launch logs`` for ``log``; empty: none."""
    near = nearest(word, (*COMMANDS, *_OPTIONS))
    return f"launch {'--' if near in _OPTIONS else ''}{near}" if near else ""

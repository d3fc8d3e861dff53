"""The argument parser of every command, and types of values that several commands read."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterable
from typing import Any, NoReturn

from launcher.text import nearest

#: How argparse begins its message about arguments that no option takes.
_UNRECOGNIZED = "unrecognized arguments: "
#: Names that other launchers give to options of ours.
_ALIASES = {
    "--container": "--docker",
    "--image": "--docker",
    "--np": "--workers",
    "-np": "--workers",
    "-n": "--workers",
    "--env": "-x",
    "-e": "-x",
}


class Parser(argparse.ArgumentParser):
    """argparse with an error of one line: the usage would hide it."""

    def __init__(self, **settings: Any) -> None:
        # Without a width, argparse imports shutil at every launch to ask for the size of the terminal.
        formatter = functools.partial(argparse.RawDescriptionHelpFormatter, width=_columns() - 2)
        super().__init__(formatter_class=formatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong; leave with exit code 2."""
        faults = [message.removeprefix("argument ")]
        if message.startswith(_UNRECOGNIZED):
            faults = _unrecognized(message.removeprefix(_UNRECOGNIZED).split(), self._option_string_actions)
        hint = f"({self.prog.removesuffix(' JOB.yaml')} --help shows all)"
        self.exit(2, "".join(f"launch: {_on_one_line(fault)} {hint}\n" for fault in faults))


def _columns() -> int:
    """Columns of the terminal; at most what is easy to read."""
    columns = os.environ.get("COLUMNS", "")
    try:
        found = int(columns) if columns.isdigit() and int(columns) else os.get_terminal_size(1).columns
    except OSError:
        found = 80
    return min(found or 80, 112)


def _unrecognized(words: list[str], known: Iterable[str]) -> list[str]:
    """A fault for each unknown option; a word after one may be its value."""
    options = [word.partition("=")[0] for word in words if word.startswith("-") and word != "--"]
    if not options:
        extra = " ".join(word for word in words if word != "--")
        return [f"unexpected argument {extra!r}; only options may stand there"]
    names = [name.lstrip("-") for name in known]
    faults = []
    for option in options:
        guess = nearest(option.lstrip("-"), names, 0.75)
        meant = _ALIASES.get(option) or (f"--{guess}" if guess else "")
        faults.append(f"unrecognized option {option}{f'; did you mean {meant}?' if meant else ''}")
    return faults


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


# ---------------------------------------------------------------------- types of values


class Once(argparse.Action):
    """An option that may be given once: the last of several would silently win."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: object,
        option: object = None,
    ) -> None:
        if getattr(namespace, self.dest) not in (None, value):
            raise argparse.ArgumentError(self, "expected once; several hosts are host,host,...")
        setattr(namespace, self.dest, value)


def descriptor(text: str) -> int:
    """The number of an open descriptor, inherited from the program that started this one."""
    try:
        os.fstat(int(text))
    except (ValueError, OSError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected the number of an open descriptor") from None
    return int(text)

"""The parser of every command: what is wrong is one line, with what was probably meant."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from launcher.text import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, NoReturn

    from _typeshed import SupportsWrite

#: How argparse begins to tell of words that nobody takes.
_NOBODY = "unrecognized arguments: "

#: Other launchers' names for options of ours.
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
    """argparse, but for its errors: all of them, and without the usage, whose four lines would hide them."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._wrong: list[str] = []

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """See argparse; a value that is wrong is kept for later, that others may be found too."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self._wrong.append(str(error))
            return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """See `_get_value`."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            self._wrong.append(str(error))

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See argparse."""
        found = super().parse_args(args, namespace)
        if self._wrong:
            self.error("")
        return found

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """See argparse, which would hide that a help could not be written."""
        if file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, on a line for each fault; leave with exit code 2."""
        faults = [fault.removeprefix("argument ") for fault in self._wrong]
        if message.startswith(_NOBODY):
            faults += _unknown(message.removeprefix(_NOBODY).split(), self._option_string_actions)
        elif message:
            faults.append(message.removeprefix("argument "))
        more = f"({self.prog.removesuffix(' JOB.yaml')} --help shows all)"
        self.exit(2, "".join(f"launch: {_on_one_line(fault)} {more}\n" for fault in faults))


def _unknown(words: list[str], known: Iterable[str]) -> Iterator[str]:
    """What to say of words that nobody takes; those after an unknown option may be its value."""
    options = [word.partition("=")[0] for word in words if word.startswith("-") and word != "--"]
    if not options:
        yield f"nothing takes {' '.join(word for word in words if word != '--')!r}; expected options only"
    for option in options:
        yield f"unrecognized option {option}{_meant(option, known)}"


def _meant(option: str, known: Iterable[str]) -> str:
    guess = nearest(option.lstrip("-"), [name.lstrip("-") for name in known], 0.75)
    meant = _ALIASES.get(option) or (f"--{guess}" if guess else "")
    return f"; did you mean {meant}?" if meant else ""


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)

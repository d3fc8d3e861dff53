"""The parser of every command: what is wrong is one line, with what was probably meant."""

from __future__ import annotations

import argparse

from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import NoReturn

#: How argparse begins to tell of words that nobody takes.
_NOBODY = "unrecognized arguments: "

#: Options of the launchers that start containers; ours does not.
_CONTAINERS = ("--docker", "--container", "--image")


class Parser(argparse.ArgumentParser):
    """argparse, but for its errors: four lines of usage would hide the one that says what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, on a line for each fault; leave with exit code 2."""
        if message.startswith(_NOBODY):
            faults = list(_unknown(message.removeprefix(_NOBODY).split(), self._option_string_actions))
        else:
            faults = [message.removeprefix("argument ")]
        more = f"({self.prog.removesuffix(' JOB.yaml')} --help shows all)"
        self.exit(2, "".join(f"launch: {_on_one_line(fault)} {more}\n" for fault in faults))


def _unknown(words: list[str], known: Iterable[str]) -> Iterator[str]:
    """What to say of words that nobody takes; those after an unknown option may be its value."""
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not options:
        yield f"nothing takes {' '.join(words)!r}; expected options only"
    for option in options:
        yield f"unrecognized option {option}{_meant(option, known)}"


def _meant(option: str, known: Iterable[str]) -> str:
    if option in _CONTAINERS:
        return "; containers are not in this version"
    from launcher.planning.wording import nearest

    near = nearest(option, known)
    return f"; did you mean {near}?" if near else ""


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)

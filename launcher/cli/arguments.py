"""The command line of ``launch``, read by argparse, which is built from the rows of the table of settings.

argparse finds the options and the program; it converts nothing. Texts become values in
`launcher.config.settings.command_line_level`, which reports all wrong values at once. Options that do not
exist are reported one at a time, as by every tool.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from launcher.cli import foreign_options
from launcher.cli.help_text import TEXT_WIDTH
from launcher.common.errors import Fault, InputError
from launcher.common.record import Record
from launcher.common.text import closest_match, escape_controls
from launcher.config.settings import COMMAND_LINE, Group, Setting, command_line_level

#: Options of Python, which name the program.
_PROGRAM_OPTIONS = {"module": "-m", "code": "-c"}
#: Options that are no settings.
_ACTIONS = ("-h", "--help", "--help-all", "--version", *_PROGRAM_OPTIONS.values())


class CommandLine(Record):
    """The words of a command line."""

    #: The texts of the options, see `launcher.config.settings.command_line_level`.
    texts: dict[str, Any]
    #: The program and its arguments, as in ``["train.py", "--epochs", "3"]`` or ``["-m", "package.train"]``.
    command: list[str]
    #: Whether ``--`` is written before the program, which may then have any name.
    is_marked: bool = False


class UsageError(InputError):
    """The words are no command line; there is one fault."""


class RowParser(argparse.ArgumentParser):
    """A parser whose options are rows of the table.

    Args:
        prog: The command, as in ``launch ps``.
        groups: The rows. Those without the command line among their places are left out.
        hint: How the user sees all options.
    """

    def __init__(self, prog: str, groups: Sequence[Group], hint: str, **more: Any) -> None:
        width = functools.partial(argparse.HelpFormatter, width=TEXT_WIDTH - 2)
        super().__init__(prog=prog, formatter_class=width, allow_abbrev=False, add_help=False, **more)
        # The same texts on each Python: 3.14 would colour the usage, 3.15 add guesses to faults.
        vars(self).update(color=False, suggest_on_error=False)
        self.hint = hint
        self.rows = [row for group in groups for row in group.rows if COMMAND_LINE in row.given_in]
        for group in groups:
            titled = self.add_argument_group(group.title)
            for row in group.rows:
                if COMMAND_LINE in row.given_in:
                    titled.add_argument(*row.flags, dest=row.name, **_argparse_settings(row))

    def error(self, message: str) -> NoReturn:
        """Raise a usage error in place of exiting."""
        raise UsageError([Fault("", escape_controls(f"{message.removeprefix('argument ')} ({self.hint})"))])

    def parse_words(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse words once.

        Returns:
            The texts of the options that are given, and the options that do not exist.
        """
        self._add_values_after_equals(words)
        namespace, others = self.parse_known_args(words)
        unknown = [word for word in others if word.startswith("-") and word.strip("-")]
        if others and not unknown:
            self.error(f"unexpected argument {' '.join(others)!r}")
        return namespace, unknown

    def refuse(self, option: str, words: Sequence[str]) -> NoReturn:
        """Raise the fault of an option that does not exist, with what to type instead."""
        name, equals, value = option.partition("=")
        following = [value] if equals else list(words[words.index(option) + 1 :]) if option in words else []
        attached = re.fullmatch(r"(-[A-Za-z])(\d+)", option)  # -n4
        if attached and foreign_options.option(attached[1]):
            name, following = attached[1], [attached[2]]
        peer = foreign_options.option(name)
        if peer is not None and self._has_all(peer.answer):
            raise UsageError([Fault("", escape_controls(peer.fault(name, following[: peer.values])))])
        # --no-verbose is not a misspelt --verbose.
        known = {flag.lstrip("-"): flag for row in self.rows for flag in row.flags if row.help}
        if name.startswith("--no-"):
            known = {word: flag for word, flag in known.items() if word.startswith("no-")}
        meant = known.get(closest_match(name.lstrip("-"), known), "")
        self.error(f"unrecognized option {name}" + (f"; did you mean {meant}?" if meant else self.advice))

    #: Follows the fault of an option that is similar to none.
    advice = ""

    def refuse_one_dash(self) -> None:
        """Make ``-hosts`` an option that does not exist: argparse would read it as ``-h`` and ``osts``."""
        letters = {flag[1] for flag in self._flags() if len(flag) == 2}
        names = {flag[1:] for flag in self._flags() if flag.startswith("--")}
        names |= {name for name in foreign_options.OPTIONS if not name.startswith("--") and len(name) > 2}
        misread = sorted(name for name in names if name[1] in letters)
        hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        self.add_argument(*misread, dest="refused", action=_Refuse, nargs="*", **hidden)

    def _flags(self) -> list[str]:
        return [*_ACTIONS, *(flag for row in self.rows for flag in row.flags)]

    def _add_values_after_equals(self, words: Sequence[str]) -> None:
        """Let ``--tensorboard=DIR`` have a value. Of argparse's options with one, all take the next word."""
        for row in self.rows:
            if row.value_optional and not row.takes_next_word:
                for word in {word for word in words if word.startswith(f"{row.flag}=")}:
                    settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
                    value = word.partition("=")[2]
                    self.add_argument(word, dest=row.name, action="store_const", const=value, **settings)

    def _has_all(self, answer: str) -> bool:
        """Return whether this command has all options that an answer names."""
        return {*self._flags()}.issuperset(re.findall(r"(?<![\w-])--?[a-z-]+", answer))


class _Refuse(argparse.Action):
    """Refuses an option."""

    def __call__(self, parser: Any, _: object, values: Any, option: str | None = None) -> None:
        parser.refuse(option or "", [option or "", *values])


def _argparse_settings(row: Setting[Any]) -> dict[str, Any]:
    """Return how argparse reads the option of a row: into a text, a list of texts, or True."""
    settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": row.help or argparse.SUPPRESS}
    if row.is_switch:
        return {**settings, "action": "store_true"}
    if not row.takes_next_word:
        return {**settings, "action": "store_const", "const": ""}
    if row.value_optional:
        settings.update(nargs="?", const="")
    if row.repeatable or row.by_role or row.once:
        settings["action"] = "append"
    return {**settings, "metavar": row.metavar}


def launch_parser(groups: Sequence[Group], **more: Any) -> RowParser:
    """Return the parser of ``launch`` itself."""
    parser = RowParser("launch", groups, "launch --help-all shows all options", **more)
    parser.advice = "; an option of the program comes after the program"
    program = parser.add_argument_group("program to run")
    for name, option in _PROGRAM_OPTIONS.items():
        program.add_argument(option, dest=name, nargs=argparse.REMAINDER)
    program.add_argument("program", nargs=argparse.REMAINDER)
    parser.refuse_one_dash()
    return parser


def parse_launch(
    words: Sequence[str], groups: Callable[[], Sequence[Group]], add_installed: Callable[[], bool]
) -> CommandLine:
    """Parse the words of a launch.

    Args:
        words: Without ``launch`` itself.
        groups: Returns the rows.
        add_installed: Adds the rows of backends of installed packages; returns whether there are any.

    Raises:
        UsageError: An option does not exist, or lacks its value.
    """
    parser = launch_parser(groups())
    found, unknown = parser.parse_words(words)
    if unknown and add_installed():
        parser = launch_parser(groups())
        found, unknown = parser.parse_words(words)
    texts = dict(vars(found))
    if unknown:
        # The wrong value may be the program, whose options then seem to be ours: --ps train.py --epochs 3.
        if faults := command_line_level(texts, parser.rows)[1]:
            raise UsageError(faults)
        parser.refuse(unknown[0], words)
    program = texts.pop("program")
    named = {option: texts.pop(name) for name, option in _PROGRAM_OPTIONS.items()}
    for option, given in named.items():
        if given is not None:
            return CommandLine(texts, [option, *given, *program])  # argparse ends `given` at a "--"
    is_marked = program[:1] == ["--"]
    return CommandLine(texts, program[1:] if is_marked else program, is_marked)

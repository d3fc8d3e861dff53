"""The command line of ``launch`` and its commands, read by argparse, which is built from rows of settings.

argparse finds the options and the program; it converts nothing. Texts become values in
`launcher.config.settings.command_line_level`, which reports all wrong values at once. Options that do not
exist are reported one at a time, as by every tool.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from launcher import __version__, backends
from launcher.cli import foreign_options
from launcher.cli.commands import SYNOPSIS, command_module, groups_of
from launcher.cli.help_text import TEXT_WIDTH, help_text
from launcher.common.errors import Fault, InputError
from launcher.common.text import closest_match, escape_controls
from launcher.config.settings import COMMAND_LINE, Setting, Settings, command_line_level, merge
from launcher.config.values import names_job_file
from launcher.launch.options import LaunchWords

#: Options of Python, which name the program.
_PROGRAM_OPTIONS = {"module": "-m", "code": "-c"}
#: Options that are no settings.
_ACTIONS = ("-h", "--help", "--help-all", "--version", *_PROGRAM_OPTIONS.values())


def parse_launch(words: Sequence[str], namespace: argparse.Namespace | None = None) -> LaunchWords:
    """Parse the words of a launch, also those after a job file: options, and for a TFJob perhaps a program.

    Args:
        words: Without ``launch`` itself.
        namespace: Gets the texts before the program as they are found, also if an error is raised.

    Raises:
        InputError: An option does not exist, or lacks its value.
    """
    texts, command, is_marked = _parse(words, argparse.Namespace() if namespace is None else namespace)
    job_file = command[0] if command and names_job_file(command[0]) else ""
    program: list[str] = []
    if job_file and command[1:]:
        more, program, is_marked = _parse(command[1:], argparse.Namespace())
        for name, text in more.items():
            texts[name] = [*texts.get(name, []), *text] if isinstance(text, list) else text
    level, faults = command_line_level(texts, backends.rows())
    return LaunchWords(
        level,
        faults=faults,
        command=command,
        job_file=job_file,
        program=[] if faults else program,
        is_marked=is_marked,
    )


def _parse(words: Sequence[str], namespace: argparse.Namespace) -> tuple[dict[str, Any], list[str], bool]:
    """Return the texts of options, the program with its arguments, and whether ``--`` is before it."""
    parser = launch_parser(words)
    unknown = parser.parse_words(words, namespace)
    if unknown and backends.find_installed():
        vars(namespace).clear()
        parser = launch_parser(words)
        unknown = parser.parse_words(words, namespace)
    texts = dict(vars(namespace))
    if unknown:
        # The wrong value may be the program, whose options then seem to be ours: --ps train.py --epochs 3.
        if faults := command_line_level(texts, parser.rows)[1]:
            raise InputError(faults)
        parser.refuse(unknown[0], words)
    program = texts.pop("program")
    named = {option: texts.pop(name) for name, option in _PROGRAM_OPTIONS.items()}
    for option, given in named.items():
        if given is not None:
            return texts, [option, *given, *program], False  # argparse ends `given` at a "--"
    is_marked = program[:1] == ["--"]
    return texts, program[1:] if is_marked else program, is_marked


def parse_command(name: str, words: Sequence[str]) -> Settings:
    """Parse the words of a command other than ``run``.

    Raises:
        InputError: The words are no command line; or values are wrong, then all of them.
    """
    parser, namespace = command_parser(name), argparse.Namespace()
    unknown = parser.parse_words(words, namespace)
    if unknown:
        parser.refuse(unknown[0], words)
    level, faults = command_line_level(vars(namespace), parser.rows)
    settings, more = merge([level], parser.rows)
    if faults or more:
        raise InputError([*faults, *more])
    return settings


def command_parser(name: str) -> RowParser:
    """Return the parser of a command."""
    return launch_parser() if name == "run" else RowParser(name)


def launch_parser(words: Sequence[str] = ()) -> RowParser:
    """Return the parser of ``launch`` itself, for these words."""
    parser = RowParser("run", SYNOPSIS)
    parser.advice = "; an option of the program comes after the program"
    for name, option in _PROGRAM_OPTIONS.items():
        parser.add_argument(option, dest=name, nargs=argparse.REMAINDER)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    parser.add_argument("--help-all", action=_Print, text=lambda: help_text("run", parser.format_usage()))
    parser.add_argument("--version", action=_Print, text=_version)
    parser.refuse_one_dash(words)
    return parser


class RowParser(argparse.ArgumentParser):
    """A parser whose options are rows of the table. It parses once, and raises its first error.

    Args:
        name: The command.
        usage: How it is used; default: as its module says, or argparse writes it.
    """

    #: Follows the fault of an option that is similar to none.
    advice = ""

    def __init__(self, name: str, usage: str | None = None) -> None:
        super().__init__(
            prog="launch" if name == "run" else f"launch {name}",
            usage=usage or getattr(command_module(name), "USAGE", None),
            formatter_class=functools.partial(argparse.HelpFormatter, width=TEXT_WIDTH - 2),
            allow_abbrev=False,
            add_help=False,
        )
        # The same texts on each Python: 3.14 would colour the usage, 3.15 add guesses to faults.
        vars(self).update(color=False, suggest_on_error=False)
        self.command = name
        self._help_option = "--help-all" if name == "run" else "--help"
        groups = sorted(groups_of(name), key=lambda group: group.title != "options")  # first in the usage
        self.rows = [row for group in groups for row in group.rows if COMMAND_LINE in row.given_in]
        self.add_argument("-h", "--help", action=_Print, text=self.format_help)
        for row in self.rows:
            names = row.flags if row.positional is None else (row.name,)
            action = self.add_argument(*names, **_argparse_settings(row))
            if row.complete or row.choices:  # where argcomplete looks for it
                action.completer = functools.partial(_completions, row)  # type: ignore[attr-defined]

    def format_help(self) -> str:
        """Return the help text: of ``launch`` itself with the common options only."""
        return help_text(self.command, self.format_usage(), common=self.command == "run")

    def error(self, message: str) -> NoReturn:
        """Raise an error instead of exiting."""
        text = f"{message.removeprefix('argument ')} ({self.prog} {self._help_option} shows all options)"
        raise InputError([Fault("", escape_controls(text))])

    def parse_words(self, words: Sequence[str], namespace: argparse.Namespace) -> list[str]:
        """Parse words into texts by the names of the rows.

        Returns:
            The options that do not exist.
        """
        self._add_values_after_equals(words)
        _, others = self.parse_known_args(words, namespace)
        unknown = [word for word in others if word.startswith("-") and word.strip("-")]
        arguments = [word for word in others if word != "--"]
        if arguments and not unknown:
            self.error(f"unexpected argument {' '.join(arguments)!r}")
        return unknown

    def refuse(self, option: str, words: Sequence[str]) -> NoReturn:
        """Raise the fault of an option that does not exist, with what to type instead."""
        name, equals, value = option.partition("=")
        if not name.strip("-"):
            name = option
        following = [value] if equals else list(words[words.index(option) + 1 :])
        attached = re.fullmatch(r"(-[A-Za-z])(\d+)", option)  # -n4
        if attached and foreign_options.option(attached[1]):
            name, following = attached[1], [attached[2]]
        peer = foreign_options.option(name)
        if peer is not None and self._has_all(peer.answer):
            raise InputError([Fault("", escape_controls(peer.fault(name, following[: peer.values])))])
        # --no-verbose is not a misspelt --verbose.
        known = {flag.lstrip("-"): flag for row in self.rows for flag in row.flags if row.help}
        if name.startswith("--no-"):
            known = {word: flag for word, flag in known.items() if word.startswith("no-")}
        meant = known.get(closest_match(name.lstrip("-"), known), "")
        self.error(f"unrecognized option {name}" + (f"; did you mean {meant}?" if meant else self.advice))

    def refuse_one_dash(self, words: Sequence[str]) -> None:
        """Make ``-hosts`` an option that does not exist: argparse would read it as ``-h`` and ``osts``."""
        flags = self._flags()
        letters = {flag[1] for flag in flags if len(flag) == 2}
        names = {word.partition("=")[0] for word in words if re.match("-[A-Za-z][A-Za-z-]", word)}
        for name in sorted(names):
            if name[1] in letters and (f"-{name}" in flags or foreign_options.option(name)):
                self.add_argument(name, dest="refused", action=_Refuse, nargs="*", default=argparse.SUPPRESS,
                                  help=argparse.SUPPRESS)  # fmt: skip

    def _add_values_after_equals(self, words: Sequence[str]) -> None:
        """Let ``--tensorboard=DIR`` have a value. Of argparse's options with one, all take the next word."""
        for row in self.rows:
            if row.value_optional and not row.takes_next_word:
                for word in {word for word in words if word.startswith(f"{row.flag}=")}:
                    value: Any = word.partition("=")[2]
                    self.add_argument(word, dest=row.name, action="store_const", const=value,
                                      default=argparse.SUPPRESS)  # fmt: skip

    def _flags(self) -> list[str]:
        return [*_ACTIONS, *(flag for row in self.rows for flag in row.flags)]

    def _has_all(self, answer: str) -> bool:
        """Return whether this command has all options that an answer names."""
        return {*self._flags()}.issuperset(re.findall(r"(?<![\w-])--?[a-z-]+", answer))


class _Refuse(argparse.Action):
    """Refuses an option."""

    def __call__(self, parser: Any, _: object, values: Any, option: str | None = None) -> None:
        parser.refuse(option or "", [option or "", *values])


class _Print(argparse.Action):
    """Prints a text, and ends the process."""

    def __init__(self, text: Callable[[], str], **settings: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **settings)
        self.text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(self.text(), end="")
        parser.exit()


def _version() -> str:
    return f"launch {__version__}, Python {sys.version.split()[0]}\n"


def _completions(row: Setting[Any], **_: object) -> list[str]:
    return row.complete() if row.complete else [*row.choices]


def _argparse_settings(row: Setting[Any]) -> dict[str, Any]:
    """Return how argparse reads the words of a row: into a text, a list of texts, or True."""
    settings: dict[str, Any] = {"default": argparse.SUPPRESS}
    if not row.help:
        settings["help"] = argparse.SUPPRESS
    if row.positional is not None:
        nargs = {} if row.positional == "1" else {"nargs": row.positional}
        return {**settings, **nargs, "metavar": row.metavar}
    settings["dest"] = row.name
    if row.is_switch:
        return {**settings, "action": "store_true"}
    if not row.takes_next_word:
        return {**settings, "action": "store_const", "const": ""}
    if row.value_optional:
        settings.update(nargs="?", const="")
    if row.repeatable or row.by_role or row.once:
        settings["action"] = "append"
    return {**settings, "metavar": row.metavar}

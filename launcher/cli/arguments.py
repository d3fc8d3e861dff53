"""Parses the command line of ``launch`` and its commands with argparse, by the rows of the table of settings.

`launcher.cli.main` and the commands call it. argparse finds the options and the program, but converts
nothing: texts become values in `launcher.config.settings.command_line_level`, which reports all wrong values
at once. Options that do not exist are reported one at a time, as every tool does.
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
from launcher.config.settings import COMMAND_LINE, Setting, Settings, command_line_level, merge, option_words
from launcher.config.values import names_job_file
from launcher.launch.options import LaunchWords

#: Options that name the program as those of Python do, by their names in a namespace.
_PROGRAM_OPTIONS = {"module": "-m", "code": "-c"}
#: Options that are not settings.
_ACTIONS = ("-h", "--help", "--help-all", "--version", *_PROGRAM_OPTIONS.values())


def parse_launch(words: Sequence[str], namespace: argparse.Namespace | None = None) -> LaunchWords:
    """Parse the command line of a launch into settings and a program.

    The words after a job file are parsed as well: they are options, and for a TFJob perhaps a program.

    Args:
        words: The words after ``launch``.
        namespace: Receives the texts of the options before the program as argparse finds them. It contains
            them even if an error is raised.

    Returns:
        The settings with the faults of wrong values, and the program or job file.

    Raises:
        InputError: An option does not exist, or lacks its value.
    """
    texts, command, is_marked = _parse(words, argparse.Namespace() if namespace is None else namespace)
    job_file = command[0] if command and names_job_file(command[0]) else ""
    program: list[str] = []
    if job_file and command[1:]:
        texts_after, program, is_marked = _parse(command[1:], argparse.Namespace())
        # A list belongs to an option that may be repeated, before and after the job file.
        for name, text in texts_after.items():
            texts[name] = [*texts.get(name, []), *text] if isinstance(text, list) else text
    level, faults = command_line_level(texts, backends.rows())
    return LaunchWords(
        level,
        faults=faults,
        command=command,
        job_file=job_file,
        # A wrong value may be the program itself. Then the words after it are not the program either.
        program=[] if faults else program,
        is_marked=is_marked,
        options=tuple(option_words(texts, backends.rows(), recorded=True)),
    )


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Parse options of a launch that stand without a program, as after ``launch rerun RUN``.

    Returns:
        The texts of the options by the names of their settings.

    Raises:
        InputError: An option does not exist or lacks its value, or there is a program.
    """
    texts, program, _ = _parse(words, argparse.Namespace())
    if program:
        expected = "expected only options; the program is that of the run"
        raise InputError([Fault("", f"unexpected argument {program[0]!r}", expected)])
    return texts


def _parse(words: Sequence[str], namespace: argparse.Namespace) -> tuple[dict[str, Any], list[str], bool]:
    """Find the options and the program in words.

    Installed backends are loaded only if an option is unknown without them, because that takes time.

    Args:
        words: The words after ``launch``, or after a job file.
        namespace: Receives the texts of the options as argparse finds them.

    Returns:
        Three values: the texts of options by the names of their rows, the program with its arguments, and
        whether ``--`` stands before the program.

    Raises:
        InputError: An option does not exist, or lacks its value.
    """
    parser = launch_parser(words)
    unknown = parser.parse_words(words, namespace)
    if unknown and backends.find_installed():
        vars(namespace).clear()
        parser = launch_parser(words)
        unknown = parser.parse_words(words, namespace)
    texts = dict(vars(namespace))
    if unknown:
        # In `--ps train.py --epochs 3` the wrong value of --ps is the program, and --epochs seems to be ours.
        if faults := command_line_level(texts, parser.rows)[1]:
            raise InputError(faults)
        parser.refuse(unknown[0], words)
    program = texts.pop("program")
    words_by_option = {option: texts.pop(name) for name, option in _PROGRAM_OPTIONS.items()}
    for option, words_after in words_by_option.items():
        if words_after is not None:
            # argparse has split the words of the program at a "--".
            return texts, [option, *words_after, *program], False
    is_marked = program[:1] == ["--"]
    return texts, program[1:] if is_marked else program, is_marked


def parse_command(name: str, words: Sequence[str]) -> Settings:
    """Parse the command line of a command other than ``run`` into its settings.

    Args:
        name: The command, such as ``logs``.
        words: The words after the command.

    Raises:
        InputError: The command does not accept a word, or values are wrong. The error lists all wrong values.
    """
    parser, namespace = command_parser(name), argparse.Namespace()
    unknown = parser.parse_words(words, namespace)
    # The option may belong to an installed backend. These are loaded only here, because that takes time.
    if unknown and backends.find_installed():
        parser, namespace = command_parser(name), argparse.Namespace()
        unknown = parser.parse_words(words, namespace)
    if unknown:
        parser.refuse(unknown[0], words)
    level, faults = command_line_level(vars(namespace), parser.rows)
    settings, contradictions = merge([level], parser.rows)
    if faults or contradictions:
        raise InputError([*faults, *contradictions])
    return settings


def command_parser(name: str) -> RowParser:
    """Return the parser of a command, for its help and for completion."""
    return launch_parser() if name == "run" else RowParser(name)


def launch_parser(words: Sequence[str] = ()) -> RowParser:
    """Return the parser of a launch.

    Args:
        words: The words that it will parse. Some kinds of words need options of their own in argparse.
    """
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
    """A parser whose options are rows of the table of settings. It raises its errors instead of exiting.

    Args:
        name: The command.
        usage: The usage that the help shows. By default it is the ``USAGE`` of the command's module, or else
            what argparse writes.
    """

    def __init__(self, name: str, usage: str | None = None) -> None:
        super().__init__(
            prog="launch" if name == "run" else f"launch {name}",
            usage=usage or getattr(command_module(name), "USAGE", None),
            formatter_class=functools.partial(argparse.HelpFormatter, width=TEXT_WIDTH - 2),
            allow_abbrev=False,
            add_help=False,
        )
        # Each Python shall print the same texts: 3.14 would colour the usage, and 3.15 would add guesses to
        # faults. Earlier versions have no arguments for that.
        vars(self).update(color=False, suggest_on_error=False)
        #: Advice that follows the fault of an option if no option of the command is similar.
        self.advice: str = getattr(command_module(name), "ADVICE", "")
        #: The name of the command, for its help.
        self.command = name
        #: The option that shows all options of the command, for messages.
        self._help_option = "--help-all" if name == "run" else "--help"
        # The usage lists options in the order in which they are added.
        # So the command's own options, the group "options", come first.
        groups = sorted(groups_of(name), key=lambda group: group.title != "options")
        #: The settings that have an option or an argument of this command.
        self.rows = [row for group in groups for row in group.rows if COMMAND_LINE in row.given_in]
        self.add_argument("-h", "--help", action=_Print, text=self.format_help)
        for row in self.rows:
            names = row.flags if row.positional is None else (row.name,)
            action = self.add_argument(*names, **_argparse_settings(row))
            if row.positional == argparse.REMAINDER:
                action.required = False  # Earlier versions of Python would say that it is missing.
            if row.complete or row.choices:
                # argcomplete looks for this attribute.
                action.completer = functools.partial(_completions, row)  # type: ignore[attr-defined]

    def format_help(self) -> str:
        """Return the help text of the command. That of ``launch`` itself shows only the common options."""
        return help_text(self.command, self.format_usage(), common=self.command == "run")

    def error(self, message: str) -> NoReturn:
        """Raise an `InputError` for a message of argparse, which would print it and exit."""
        text = f"{message.removeprefix('argument ')} ({self.prog} {self._help_option} shows all options)"
        raise InputError([Fault("", escape_controls(text))])

    def parse_words(self, words: Sequence[str], namespace: argparse.Namespace) -> list[str]:
        """Put the texts of all options in words into a namespace, by the names of their rows.

        Args:
            words: The command line.
            namespace: Receives the texts.

        Returns:
            The options that do not exist.

        Raises:
            InputError: An option lacks its value, or there is an argument too many.
        """
        self._add_values_after_equals(words)  # Such as --tensorboard=DIR, which argparse cannot express.
        # Arguments may stand between options, unless the last argument is all words that follow.
        takes_rest = self.command == "run" or any(row.positional == argparse.REMAINDER for row in self.rows)
        parse = self.parse_known_args if takes_rest else self.parse_known_intermixed_args
        _, rest = parse(words, namespace)
        # A word of dashes alone is no option.
        unknown = [word for word in rest if word.startswith("-") and word.strip("-")]
        arguments = [word for word in rest if word != "--"]
        # An argument too many may be the value of an unknown option, so that one is reported instead.
        if arguments and not unknown:
            self.error(f"unexpected argument {' '.join(arguments)!r}")
        return unknown

    def refuse(self, option: str, words: Sequence[str]) -> NoReturn:
        """Raise the fault of an option that does not exist, with what to type instead.

        Other launchers may have the option, or the user may have misspelt one of this command.

        Args:
            option: The option as it is typed, perhaps with its value: ``-n4``, ``--hostfile=FILE``.
            words: The command line that contains the option.

        Raises:
            InputError: Always.
        """
        name, equals, value = option.partition("=")
        if not name.strip("-"):  # Such as "--=4", of which no name is left.
            name = option
        following = [value] if equals else list(words[words.index(option) + 1 :])
        # The value may be attached to the option, as in -n4.
        attached = re.fullmatch(r"(-[A-Za-z])(\d+)", option)
        if attached and foreign_options.option(attached[1]):
            name, following = attached[1], [attached[2]]
        foreign = foreign_options.option(name)
        # An answer is of no use if it advises options that this command does not have.
        if foreign is not None and self._has_all(foreign.answer):
            raise InputError([Fault("", escape_controls(foreign.fault(name, following[: foreign.values])))])
        advice_by_word = {
            flag.lstrip("-"): f"did you mean {flag}?" if row.positional is None
            else f"write {row.metavar} without an option before it"
            for row in self.rows for flag in row.flags if row.help
        }  # fmt: skip
        # An option such as --no-verbose is not a misspelt --verbose.
        if name.startswith("--no-"):
            advice_by_word = {word: text for word, text in advice_by_word.items() if word.startswith("no-")}
        advice = advice_by_word.get(closest_match(name.lstrip("-"), advice_by_word))
        self.error(f"unrecognized option {name}" + (f"; {advice}" if advice else self.advice))

    def refuse_one_dash(self, words: Sequence[str]) -> None:
        """Refuse long names after a single dash: argparse would read ``-hosts`` as ``-h`` and ``osts``.

        Args:
            words: The words that the parser will parse. Each such name in them becomes an option that raises
                a fault.
        """
        flags = self._flags()
        letters = {flag[1] for flag in flags if len(flag) == 2}
        names = {word.partition("=")[0] for word in words if re.match("-[A-Za-z][A-Za-z-]", word)}
        for name in sorted(names):
            # Without such a letter argparse reports the name itself, and an unknown name may be a value, as
            # in -nfoo.
            if name[1] in letters and (f"-{name}" in flags or foreign_options.option(name)):
                self.add_argument(name, dest="refused", action=_Refuse, nargs="*", default=argparse.SUPPRESS,
                                  help=argparse.SUPPRESS)  # fmt: skip

    def _add_values_after_equals(self, words: Sequence[str]) -> None:
        """Let options such as ``--tensorboard`` accept a value after ``=``, but never the next word.

        argparse cannot express that, so each ``--tensorboard=DIR`` in the words becomes an option of its own.

        Args:
            words: The words that the parser will parse.
        """
        for row in self.rows:
            if row.value_optional and not row.takes_next_word:
                for word in {word for word in words if word.startswith(f"{row.flag}=")}:
                    value: Any = word.partition("=")[2]
                    self.add_argument(word, dest=row.name, action="store_const", const=value,
                                      default=argparse.SUPPRESS)  # fmt: skip

    def _flags(self) -> list[str]:
        """Return all spellings of all options that this command accepts."""
        return [*_ACTIONS, *(flag for row in self.rows if row.positional is None for flag in row.flags)]

    def _has_all(self, answer: str) -> bool:
        """Return whether this command accepts all options that an answer advises the user to type."""
        return {*self._flags()}.issuperset(re.findall(r"(?<![\w-])--?[a-z-]+", answer))


class _Refuse(argparse.Action):
    """The action of an option that only exists to be refused, because argparse would misread it."""

    def __call__(self, parser: Any, _: object, values: Any, option: str | None = None) -> None:
        """Raise the fault of the option, whose message may contain the values after it."""
        parser.refuse(option or "", [option or "", *values])


class _Print(argparse.Action):
    """The action of an option such as ``--version``, which prints a text and exits.

    Args:
        text: Returns the text. It is called only if the option is typed.
        settings: Further arguments of `argparse.Action`.
    """

    def __init__(self, text: Callable[[], str], **settings: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **settings)
        self.text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the text when argparse finds the option, and exit with 0."""
        print(self.text(), end="")
        parser.exit()


def _version() -> str:
    """Return the line that ``launch --version`` prints."""
    return f"launch {__version__}, Python {sys.version.split()[0]}\n"


def _completions(row: Setting[Any], **_: object) -> list[str]:
    """Return the values that a shell completes for a setting. argcomplete passes arguments by name."""
    return row.complete() if row.complete else [*row.choices]


def _argparse_settings(row: Setting[Any]) -> dict[str, Any]:
    """Return the arguments of `ArgumentParser.add_argument` for a row of the table of settings.

    With them argparse stores a text, a list of texts if more than the last one matters, or True for a switch.
    It stores nothing for an option that is not typed.
    """
    settings: dict[str, Any] = {"default": argparse.SUPPRESS}
    if not row.help:
        settings["help"] = argparse.SUPPRESS
    if row.positional is not None:
        nargs = {} if row.positional == "1" else {"nargs": row.positional}
        return {**settings, **nargs, "metavar": row.metavar}
    settings["dest"] = row.name
    if row.is_switch:
        return {**settings, "action": "store_true"}
    if not row.takes_next_word:  # Its forms with a value are added by `_add_values_after_equals`.
        return {**settings, "action": "store_const", "const": ""}
    if row.value_optional:
        settings.update(nargs="?", const="")
    # All texts of an option are kept if each counts, for example for a role of its own. They are also kept
    # if the option must not be given twice (`once`), which is checked later. Of any other option only the
    # last text counts.
    if row.repeatable or row.by_role or row.once:
        settings["action"] = "append"
    return {**settings, "metavar": row.metavar}

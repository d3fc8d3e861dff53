"""The commands of ``launch`` and their parsers, which find all faults of a command line at once."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import re
import site
import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any, NoReturn

from launcher.cli import foreign_options
from launcher.cli.help_text import TEXT_WIDTH, HelpSection, Row, option_sections, section_text
from launcher.common.errors import Fault, InputError
from launcher.common.text import closest_match, escape_controls

#: Command -> module, imported when it is used. Any other first argument belongs to ``run``.
COMMANDS = {
    "run": "launcher.cli.run",
    "ps": "launcher.cli.ps",
    "logs": "launcher.cli.logs",
    "attach": "launcher.cli.attach",
    "stop": "launcher.cli.stop",
    "restart": "launcher.cli.restart",
    "hosts": "launcher.cli.hosts",
    "check": "launcher.cli.check",
    "prepare": "launcher.cli.prepare",
    "export": "launcher.cli.export",
    "clean": "launcher.cli.clean",
    "completion": "launcher.cli.completion",
    "help": "launcher.cli.help",
}
#: The largest number of attempts to parse a command line; each finds at least one fault.
_MAX_ATTEMPTS = 50
#: Where an installed launch has the documentation, below the prefix of its Python.
DOCUMENTATION = "share/doc/tf-launcher/docs"

SYNOPSIS = """launch [OPTIONS] PROGRAM [ARGS...]
       launch [OPTIONS] -m MODULE [ARGS...]
       launch [OPTIONS] -c CODE [ARGS...]
       launch [OPTIONS] JOB.yaml
       launch COMMAND ..."""

#: The options that ``launch --help`` shows; ``launch --help-all`` shows every option.
COMMON_OPTIONS = (
    "--ps", "--workers", "--chief", "--evaluator", "--gpus", "--hosts", "--flags", "-x", "--python",
    "--venv", "--tensorboard", "--sync", "--docker", "--restarts", "--timeout", "--detach", "--dry-run",
    "--report", "--quiet", "--verbose", "--help-all",
)  # fmt: skip
EXIT_CODES = HelpSection(
    "exit codes",
    [
        Row("0", "the job succeeded"),
        Row("1 to 255", "the exit code of the first task that failed; 128+N: signal N"),
        Row("2", "bad input: nothing was started"),
        Row("124", "--timeout was over, or --stall stopped a task that hangs"),
        Row("125", "launch itself or a host failed"),
        Row("126, 127", "the program can't be run, or was not found"),
        Row("130, 143", "Ctrl-C, or SIGTERM to launch"),
    ],
)


def _documentation() -> str:
    """Return the folder of the documentation: that of the source of launch, or where pip has installed it."""
    source = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "docs")
    installed = [os.path.join(prefix, DOCUMENTATION) for prefix in (sys.prefix, site.getuserbase())]
    folders = [folder for folder in (source, *installed) if os.path.isfile(os.path.join(folder, "start.md"))]
    return folders[0] if folders else "docs/ of the source; `make docs` builds the site"


def command_module(name: str) -> ModuleType:
    """The module of a command; it has ``SUMMARY``, ``EXAMPLES``, ``add_arguments`` and ``run``."""
    return importlib.import_module(COMMANDS[name])


def command_parser(name: str) -> Parser:
    """The parser of a command."""
    command = command_module(name)
    parser = Parser(
        prog="launch" if name == "run" else f"launch {name}",
        usage=SYNOPSIS if name == "run" else None,
        description=f"{command.SUMMARY[:1].upper()}{command.SUMMARY[1:]}.",
        epilog=command.EXAMPLES,
        formatter_class=functools.partial(argparse.HelpFormatter, width=TEXT_WIDTH - 2),
        allow_abbrev=False,
        add_help=False,
        exit_on_error=False,
    )
    # The same texts on each Python: 3.14 would colour the usage, 3.15 add guesses to faults.
    vars(parser).update(color=False, suggest_on_error=False)
    parser.add_argument("-h", "--help", action="help", help="show this help, and exit")
    command.add_arguments(parser)
    return parser


def no_command(name: str) -> InputError:
    """The error that ``launch`` has no command of this name."""
    guess = closest_match(name, COMMANDS)
    meant = foreign_options.COMMANDS.get(name) or (f"launch {guess}" if guess else "")
    known = f"expected one of {', '.join(COMMANDS)}; options: `launch --help-all`"
    expected = f"type `{meant}`" if meant else known
    return InputError([Fault("", f"launch has no command {name!r}: {expected}")])


#: The beginnings of messages of argparse.
_AMBIGUOUS = "ambiguous option: "
_NO_VALUE = "ignored explicit argument "


class Parser(argparse.ArgumentParser):
    """A parser that goes on after a fault: its `parse_args` stores all of them as ``faults``."""

    #: In this attempt: the faults that actions have found, and unknown options.
    refused: list[str]
    unknown: list[str]
    #: Adds options that are looked for only if one is not known; returns whether there are more.
    add_more: Callable[[argparse.ArgumentParser], bool] = staticmethod(lambda parser: False)

    #: The words after the first one of these are for another parser: the namespace has them as ``rest``.
    divided_at: Collection[str] = ()

    # ------------------------------------------------------------------ help

    def format_help(self) -> str:
        """The help text: of ``launch`` itself with the common options only."""
        return self.help_text(COMMON_OPTIONS if self.usage is not None else ())

    def help_text(self, common: Collection[str] = ()) -> str:
        """The help text, with these options only; default: all."""
        parts = [self.format_usage().rstrip(), self.description or ""]
        parts += map(section_text, option_sections(self, common))
        if self.usage is not None:  # launch itself
            names = [name for name in COMMANDS if name != "run"]
            rows = [Row(name, command_module(name).SUMMARY) for name in names]
            parts.append(section_text(HelpSection("commands (launch help COMMAND)", rows)))
        parts.append(
            "examples:\n" + "\n".join(f"  {line}".rstrip() for line in (self.epilog or "").split("\n"))
        )
        if self.usage is not None:
            parts.append(section_text(EXIT_CODES))
            parts.append(f"documentation: {_documentation()}")
        return "\n\n".join(parts) + "\n"

    # ------------------------------------------------------------------ faults

    def error(self, message: str) -> NoReturn:
        """Raise the error, as argparse does for most faults with ``exit_on_error=False``."""
        raise argparse.ArgumentError(None, message)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; ``faults`` of the namespace are all their faults.

        Each fault is found in an attempt of its own: after it, its option takes any value, and an unknown
        option is known. The last attempt has no new fault.
        """
        end = next((number for number, word in enumerate(args, 1) if word in self.divided_at), len(args))
        namespace.rest = args[end:]
        words = args[:end]
        self._refuse_one_dash()
        self._add_values(words)
        faults: list[str] = []
        extras: list[str] = []
        unknown: list[str] = []
        for _ in range(_MAX_ATTEMPTS):
            self.refused, self.unknown, unknown = [], [], []
            attempt = argparse.Namespace(**vars(namespace))
            try:
                extras = self.parse_known_args(words, attempt)[1]
            except argparse.ArgumentError as error:
                if error.message.startswith(_AMBIGUOUS):  # of names with one dash
                    self._add_unknown(error.message.removeprefix(_AMBIGUOUS).split()[0], words)
                    continue
                fault = self._fault(error)
                if fault in faults:
                    break
                faults.append(fault)
                self._accept_all(error)
                words = _without_arguments(words, error.message)
                continue
            options = (word for word in extras if word.startswith("-") and word.strip("-"))
            unknown = [*self.unknown, *options]
            if not unknown:
                break
            if self.add_more(self):
                self._refuse_one_dash()
                continue
            self._add_unknown(unknown[0], words)
        else:
            faults.append(f"too many faults {self._hint()}")
        for name, value in vars(attempt).items():
            kept = [each for each in value if each is not None] if isinstance(value, list) else value
            setattr(namespace, name, kept)
        faults += self.refused
        faults += [f"unrecognized option {word} {self._hint()}" for word in unknown]
        arguments = [word for word in extras if word != "--"]
        if arguments and not faults:
            faults = [f"unexpected argument {' '.join(arguments)!r} {self._hint()}"]
        namespace.faults = [Fault("", escape_controls(fault)) for fault in dict.fromkeys(faults)]
        return namespace

    def _hint(self) -> str:
        return f"({self.prog} {'--help' if self.usage is None else '--help-all'} shows all options)"

    def _fault(self, error: argparse.ArgumentError) -> str:
        """The message of an error of argparse."""
        message = error.message
        if message.startswith(_NO_VALUE):
            message = f"{message.removeprefix(_NO_VALUE)}: the option takes no value"
        elif message == "expected one argument":
            message = "expected a value"
        name = f"{error.argument_name}: " if error.argument_name else ""
        return f"{name}{message} {self._hint()}"

    def _accept_all(self, error: argparse.ArgumentError) -> None:
        """Make the argument of an error, or all that are required, accept any value, or none."""
        for action in self._actions:
            names = ("/".join(action.option_strings) or None, action.metavar, action.dest)
            if error.argument_name in names if error.argument_name else action.required:
                action.type, action.choices, action.required = lambda _: None, None, False
                if action.nargs not in ("*", argparse.REMAINDER):
                    action.nargs = "*" if action.nargs == "+" else "?"

    def _add_values(self, words: Sequence[str]) -> None:
        """Let a switch that may have a value after ``=`` accept those of the command line.

        With ``nargs="?"`` argparse would also take the next word, which may be the program.
        """
        switches = {name: each for name, each in self._option_string_actions.items() if each.nargs == 0}
        for word in {*words}:
            name, equals, value = word.partition("=")
            if equals and name in switches and switches[name].metavar:
                hidden: Any = {"dest": switches[name].dest, "help": argparse.SUPPRESS}
                self._refusing.add_argument(word, action="store_const", const=value, **hidden)

    # ------------------------------------------------------------------ unknown options

    def _long_names(self) -> list[str]:
        """The names of the options that help shows."""
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return [name for action in shown for name in action.option_strings if name.startswith("--")]

    def _refuse_one_dash(self) -> None:
        """Make ``-hosts`` unknown: argparse reads it as ``-h`` and ``osts``, ``-chief`` as ``-c hief``."""
        self.conflict_handler = "resolve"  # an option that is added later replaces one of the same name
        self._refusing = self.add_argument_group()
        names = {name[1:] for name in self._long_names()}
        names |= {name for name in foreign_options.OPTIONS if not name.startswith("--") and len(name) > 2}
        self._add_hidden(sorted(names), "?", None)

    def _add_hidden(
        self, names: Sequence[str], values: int | str, answer: Callable[[str, list[str]], str] | None
    ) -> None:
        hidden: Any = {"dest": "unknown", "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        self._refusing.add_argument(*names, action=_Unknown, nargs=values, answer=answer, **hidden)

    def _add_unknown(self, word: str, words: Sequence[str]) -> None:
        """Add an option that is refused, with what to type instead."""
        name, equals, _ = _as_written(word, words).partition("=")
        if not name.strip("-"):
            name = word
        attached = re.fullmatch(r"(-[A-Za-z])\d+", name)  # -n4
        if attached and foreign_options.option(attached[1]):
            name = attached[1]
        peer = foreign_options.option(name)
        if peer is not None and self._has_all(peer.answer):
            values = "?" if equals or peer.values == 1 else peer.values
            self._add_hidden([name], values, peer.fault)
            return
        negated = name.startswith("--no-")  # --no-verbose is not a misspelt --verbose
        names = (name for name in self._long_names() if not negated or name.startswith("--no-"))
        known = {name.lstrip("-"): name for name in names}
        meant = known.get(closest_match(name.lstrip("-"), known), "")
        takes_value = self._option_string_actions[meant].nargs != 0 if meant else _has_value(name, words)
        # The parser of `launch PROGRAM` has a usage of its own, each command has the default one.
        of_program = "; an option of the program comes after the program" if self.usage is not None else ""
        guess = f"; did you mean {meant}?" if meant else of_program
        fault = f"unrecognized option {name}{guess} {self._hint()}"
        self._add_hidden([name], "?" if equals or takes_value else 0, lambda *_: fault)

    def _has_all(self, answer: str) -> bool:
        """Whether this parser has all options that an answer names."""
        return all(
            name in self._option_string_actions for name in re.findall(r"(?<![\w-])--?[a-z-]+", answer)
        )


def _without_arguments(words: list[str], message: str) -> list[str]:
    """The words up to a wrong value that is a program: those after it are arguments of the program."""
    value = message.partition(": ")[0].strip("'")
    return words[: words.index(value) + 1] if value.endswith(".py") and value in words else words


def _as_written(option: str, words: Sequence[str]) -> str:
    """The word that argparse has read as this option: the beginning of a name with one dash is enough."""
    if option in words:
        return option
    name = option.partition("=")[0]
    starts = (w for w in words if len(start := w.partition("=")[0]) > 1 and name.startswith(start))
    return next(starts, option)


def _has_value(option: str, words: Sequence[str]) -> bool:
    """Whether the word after an unknown option is its value: more words follow, and it is not a program."""
    index = words.index(option) if option in words else len(words)
    following = words[index + 1 : index + 3]
    if len(following) < 2 or following[0].startswith("-"):
        return False
    import shutil  # 4 ms, needed only for a fault

    word = following[0]
    return not (os.path.splitext(word)[1] or os.path.isfile(word) or shutil.which(word))


class _Unknown(argparse.Action):
    """Refuses an option that ``launch`` does not have.

    Args:
        answer: makes the fault from the option and its values; ``None``: the parser has to find one.
    """

    def __init__(self, *, answer: Callable[[str, list[str]], str] | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.answer = answer

    def __call__(self, parser: Any, _: object, values: Any, name: str | None = None) -> None:
        if self.answer is None:
            parser.unknown.append(name or "")
        else:
            given = values if isinstance(values, list) else [] if values is None else [values]
            parser.refused.append(self.answer(name or "", given))

"""Finds options of ``launch`` that stand after the program, which would get them as its arguments.

`launcher.launch.option_faults` calls it. An option is refused only if the text of a Python program shows that
it cannot have an option of that name. In any other case there is at most a note.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence

from launcher import backends
from launcher.common.errors import Fault, Note
from launcher.common.trusted_io import read_regular
from launcher.config import table
from launcher.config.settings import COMMAND_LINE, Setting, Settings

#: Options of launch that few programs have. A note warns if they follow the program and are not refused.
TYPICAL_OPTIONS = (
    "--ps", "--workers", "--chief", "--evaluator", "--hosts", "--docker", "--restarts", "--timeout", "--sync",
    "--detach", "--dry-run",
)  # fmt: skip
#: Python's unittest gives these to every program that calls its ``main``.
_OPTIONS_OF_TESTS = (table.VERBOSE, table.QUIET)
#: Packages that define no options for a program. Any other may, such as a module of the program's own folder.
_HARMLESS_PACKAGES = {
    "PIL", "absl", "keras", "matplotlib", "numpy", "pandas", "scipy", "sklearn", "tensorflow", "tf_keras",
    "tqdm",
}  # fmt: skip
#: Modules and functions of Python that run other programs and modules, which may get the arguments.
_RUNNING_MODULES = {"importlib", "runpy", "subprocess"}
_RUNNING_FUNCTIONS = {"exec", "__import__"}
_HARMLESS_MODULES = (sys.stdlib_module_names | _HARMLESS_PACKAGES) - _RUNNING_MODULES
_MAX_SCRIPT_BYTES = 256 * 1024


def misplaced_options(settings: Settings, command: Sequence[str]) -> Iterator[Fault | Note]:
    """Yield the faults of options of launch after the program, or notes if the program may have them.

    Args:
        settings: The settings of the launch.
        command: The program and its arguments.
    """
    name = command[0] if command[0] != "-c" else "the code"  # What messages call the program.
    if command[0] == "-m":
        name = " ".join(command[:2])
    script = os.path.join(os.path.expanduser(settings[table.WORKDIR] or "."), name)
    arguments = [*itertools.takewhile(lambda word: word != "--", command[1:])]
    # A user who has written the same option before the program, too, knows what belongs where.
    rows = {
        flag: row
        for row in backends.rows()
        if row.help and COMMAND_LINE in row.given_in and settings.source_kind(row) != COMMAND_LINE
        for flag in row.flags
    }
    found = {flag: index for index, word in enumerate(arguments) if (flag := word.partition("=")[0]) in rows}
    names = _possible_names(script) if found and name.endswith(".py") else None
    refused = [flag for flag in found if _must_be_ours(rows[flag], flag, names)]
    if refused:
        moved = [word for flag in refused for word in _with_value(rows[flag], arguments[found[flag] :])]
        yield Fault(
            ", ".join(refused),
            f"options of launch come before the program, and {name} has no such option",
            f"type `{' '.join(moved)} {name} ...`, or `-- {name} ...` to pass it on",
        )
    for flag in found:
        if flag in TYPICAL_OPTIONS and flag not in refused:
            yield Note(f"{flag} is an argument of {name}: the options of launch come before the program")


def _must_be_ours(row: Setting[object], flag: str, names: set[str] | None) -> bool:
    """Return whether an option that follows a program can only be meant for launch.

    argparse takes the beginning of an option for the option, as ``--workers`` for ``--workers-per-host``.

    Args:
        row: The option.
        flag: The option as it is typed.
        names: The names in the program, or None if it may have any option.
    """
    if names is None or row in _OPTIONS_OF_TESTS:
        return False
    option = flag.lstrip("-")
    is_letter = len(option) == 1
    written = (name.replace("_", "-") for name in names)
    return not any(name == option if is_letter else name.startswith(option) for name in written)


def _with_value(row: Setting[object], words: Sequence[str]) -> Sequence[str]:
    """Return the first word, which is an option, and the word after it if that is its value.

    The value of a variable may be secret, so a message must not contain it.
    """
    has_own_value = "=" not in words[0] and row.takes_next_word
    option, *value = words[:2] if has_own_value else words[:1]
    return [option, *(re.sub("=.*", "=...", word) if row is table.VARIABLES else word for word in value)]


def _possible_names(script: str) -> set[str] | None:
    """Return the names in a Python program that may be those of its options.

    Returns:
        The names, without dashes at their beginning. None if the program may have any option, because it
        imports modules that may define some, passes its arguments on, or cannot be read.
    """
    import ast  # noqa: PLC0415 - takes some ms, and few command lines need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about odd texts in the program.
            nodes = [*ast.walk(ast.parse(read_regular(script, _MAX_SCRIPT_BYTES)))]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    modules: set[str] = set()
    for node in nodes:
        match node:
            case ast.Import():
                modules.update(alias.name.partition(".")[0] for alias in node.names)
            case ast.ImportFrom():
                # The name is empty if the module is one of the program's own folder.
                modules.add("" if node.level else (node.module or "").partition(".")[0])
            case ast.Subscript(value=ast.Attribute(attr="argv") | ast.Name(id="argv"), slice=ast.Slice()):
                return None  # All arguments go somewhere, perhaps to another program.
            case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.Call(args=arguments):
                constants = [part.value for part in arguments if isinstance(part, ast.Constant)]
                names.update(value for value in constants if isinstance(value, str))
            case ast.Constant(value=str(text)) if text.startswith("-"):
                names.add(text.lstrip("-"))
    is_alone = modules <= _HARMLESS_MODULES and not names & _RUNNING_FUNCTIONS
    return names if is_alone else None

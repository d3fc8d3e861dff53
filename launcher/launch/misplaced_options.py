"""Finds options of ``launch`` that stand after the program, which would get them as its arguments.

`launcher.launch.option_faults` calls it. An option is refused only if the text of a Python program shows that
it cannot have an option of that name. In any other case there is at most a note.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence

from launcher import backends
from launcher.common.errors import Fault, Note
from launcher.common.trusted_io import read_regular
from launcher.config import table
from launcher.config.settings import COMMAND_LINE, Settings

#: Options of launch that few programs have. A note warns if they follow the program and are not refused.
TYPICAL_OPTIONS = (
    "--ps", "--workers", "--chief", "--evaluator", "--hosts", "--docker", "--restarts", "--timeout", "--sync",
    "--detach", "--dry-run",
)  # fmt: skip
#: Modules that define no options for a program. Any other may, such as one of the program's own folder.
_HARMLESS_MODULES = sys.stdlib_module_names | {"absl", "keras", "numpy", "pandas", "tensorflow", "tf_keras"}
#: The modules that a line imports: ``os, flags as f`` or ``tensorflow.keras``.
_IMPORTED = re.compile(r"(?:^|[;:])[ \t]*(?:from|import)\b(.+?)(?:\bimport\b|[;#]|$)", re.MULTILINE)
#: What may pass arguments on to another program, to the code of another file, or to a second parser.
_PASSING_ON = re.compile(r"\.\w*argv|from sys|subprocess|runpy|importlib|__import__|\bexec[lv(]|known_")


def misplaced_options(settings: Settings, command: Sequence[str]) -> Iterator[Fault | Note]:
    """Yield a fault if options of launch stand after a program that has no such options.

    A typical option of launch that the program may have is no fault. A note says that the program gets it.

    Args:
        settings: The settings of the launch.
        command: The program and its arguments, at least one word.
    """
    name = "the program" if command[0] in ("-c", "-m") else command[0]
    words = {word.partition("=")[0] for word in itertools.takewhile(lambda word: word != "--", command[1:])}
    rows = {
        flag: row
        for row in backends.rows()
        if row.help and COMMAND_LINE in row.given_in
        for flag in sorted(words.intersection(row.flags))
    }
    script = os.path.join(os.path.expanduser(settings[table.WORKDIR] or "."), name)
    refused = _not_in_program(script, [*rows]) if rows and name.endswith(".py") else []
    if refused:
        problem = f"options of launch come before the program, and {name} has no such option"
        expected = f"type `launch {refused[0]} ... {name}`, or `launch -- {name} ...` to pass it on"
        yield Fault(", ".join(refused), problem, expected)
    for flag in TYPICAL_OPTIONS:
        # A user who has written the same option before the program, too, knows what belongs where.
        if flag in rows and flag not in refused and settings.source_kind(rows[flag]) != COMMAND_LINE:
            yield Note(f"{flag} is an argument of {name}: the options of launch come before the program")


def _not_in_program(script: str, flags: Sequence[str]) -> Sequence[str]:
    """Return the options that a Python program cannot have, as a look at its text shows.

    An option that is the beginning of one of the program counts as one that it has, because argparse accepts
    beginnings: ``--workers`` for ``--workers-per-host``.

    Args:
        script: The path of the program.
        flags: The options.

    Returns:
        The options. Empty if the program cannot be read, imports modules that may define options, or may
        pass its arguments on.
    """
    try:
        text = read_regular(script).decode(errors="replace")
    except OSError:
        return []
    names = [name.strip() for names in _IMPORTED.findall(text) for name in names.split(",")]
    modules = {re.split(r"\W", name)[0] for name in names}
    if not modules <= _HARMLESS_MODULES or _PASSING_ON.search(text):
        return []
    text += " -v --verbose -q --quiet"  # Python's unittest and absl have these.
    return [flag for flag in flags if not _contains_name(text, flag)]


def _contains_name(text: str, flag: str) -> bool:
    """Return whether a text contains the name of an option, or a longer name that begins with it."""
    name = flag.lstrip("-").replace("-", "[-_]")
    # Most programs have other words that begin with the letter of -d.
    return bool(re.search(rf"\b{name}\b" if len(name) == 1 else rf"\b{name}", text))

"""The commands of ``launch``: their names, their modules and their options.

The parser, the help and completion use it. A command's module is imported only when it is needed, so that a
launch starts fast.
"""

from __future__ import annotations

import importlib
import os
import re
import site
import sys
from collections.abc import Sequence
from types import ModuleType

from launcher.agent.lookup import is_command
from launcher.cli import foreign_options
from launcher.common.errors import Fault, InputError
from launcher.common.text import closest_match
from launcher.config.settings import Group

#: The commands. For each there is a module of its name. Any other first word belongs to ``run``.
COMMANDS = (
    "run", "ps", "top", "page", "stacks", "logs", "report", "attach", "stop", "restart", "rerun", "rm",
    "hosts", "check", "prepare", "export", "clean", "completion", "help",
)  # fmt: skip
#: Options of a launch that several commands have, too. They do not show that a program follows.
_OUTPUT_OPTIONS = ("-q", "--quiet", "-v", "--verbose", "--json")
#: Where an installed launch has the documentation, below the prefix of its Python.
DOCUMENTATION = "share/doc/tf-launcher/docs"

SYNOPSIS = """launch [OPTIONS] PROGRAM [ARGS...]
       launch [OPTIONS] -m MODULE [ARGS...]
       launch [OPTIONS] -c CODE [ARGS...]
       launch [OPTIONS] JOB.yaml
       launch COMMAND ..."""


def command_module(name: str) -> ModuleType:
    """Import and return the module of a command.

    Each module contains ``SUMMARY`` and ``EXAMPLES`` for the help, its options as ``GROUPS`` or ``groups()``,
    and a function ``run``. It contains ``USAGE`` if the usage that argparse writes would be wrong.
    """
    return importlib.import_module(f"launcher.cli.{name}")


def groups_of(name: str) -> Sequence[Group]:
    """Return the options and arguments of a command in the groups that its help shows.

    A module computes its groups by a function if they contain options of backends.
    """
    module = command_module(name)
    found: Sequence[Group] = module.groups() if hasattr(module, "groups") else module.GROUPS
    return found


def no_command(name: str) -> InputError:
    """Return the error for a name that is no command.

    It says what to type instead of a command of another launcher or a misspelt one. For any other name it
    lists the commands.
    """
    expected = f"expected one of {', '.join(COMMANDS)}; options: `launch --help-all`"
    if meant := _meant_command(name):
        expected = f"type `{meant}`"
    return InputError([Fault("", f"launch has no command {name!r}: {expected}")])


def refuse_mistaken_command(words: Sequence[str]) -> None:
    """Refuse a launch whose program is probably meant as a command: ``launch rm``, ``launch lgos``.

    Options other than those about output show that a program is meant, and so do ``run`` and ``--``. A
    misspelt command may be a program as well, if there is one of that name on this machine.

    Args:
        words: The words after ``launch``, the first of which is no command.

    Raises:
        InputError: The program is a command of another launcher or a shell, a misspelt command of launch, or
            a command of launch that follows an option.
    """
    first = next((word for word in words if word not in _OUTPUT_OPTIONS), "")
    is_misspelt = re.fullmatch("[A-Za-z]+", first) and not is_command(first) and not os.path.exists(first)
    if first in COMMANDS:
        problem = f"the command {first} comes first, before {words[0]}"
    elif first in foreign_options.COMMANDS or (is_misspelt and _meant_command(first)):
        meant = _meant_command(first)
        problem = f"launch has no command {first!r}" + (f": type `{meant}`" if meant else "")
    else:
        return
    raise InputError([Fault("", f"{problem}; for a program of that name type `launch -- {first}`")])


def _meant_command(name: str) -> str:
    """Return what to type for a name that is no command, or an empty text if nobody can tell."""
    similar = closest_match(name, COMMANDS)
    return foreign_options.COMMANDS.get(name, f"launch {similar}" if similar else "")


def documentation() -> str:
    """Return where the user finds the documentation: a folder, or a hint if this machine has none.

    The folder is ``docs`` in the source of launch, or the one where pip has installed it.
    """
    source = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "docs")
    installed = [os.path.join(prefix, DOCUMENTATION) for prefix in (sys.prefix, site.getuserbase())]
    folders = [folder for folder in (source, *installed) if os.path.isfile(os.path.join(folder, "start.md"))]
    return folders[0] if folders else "docs/ of the source; `make docs` builds the site"

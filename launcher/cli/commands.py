"""The commands of ``launch``: their modules, which are imported when they are used, and their options."""

from __future__ import annotations

import importlib
import os
import site
import sys
from collections.abc import Sequence
from types import ModuleType

from launcher.cli import foreign_options
from launcher.common.errors import Fault, InputError
from launcher.common.text import closest_match
from launcher.config.settings import Group

#: Each has a module of its name. Any other first word belongs to ``run``.
COMMANDS = (
    "run", "ps", "logs", "attach", "stop", "restart", "hosts", "check", "prepare", "export", "clean",
    "completion", "help",
)  # fmt: skip
#: Where an installed launch has the documentation, below the prefix of its Python.
DOCUMENTATION = "share/doc/tf-launcher/docs"

SYNOPSIS = """launch [OPTIONS] PROGRAM [ARGS...]
       launch [OPTIONS] -m MODULE [ARGS...]
       launch [OPTIONS] -c CODE [ARGS...]
       launch [OPTIONS] JOB.yaml
       launch COMMAND ..."""


def command_module(name: str) -> ModuleType:
    """Return the module of a command.

    It has ``SUMMARY``, ``EXAMPLES``, ``GROUPS`` or ``groups``, and ``run``; also ``USAGE`` if that which
    argparse writes is not right.
    """
    return importlib.import_module(f"launcher.cli.{name}")


def groups_of(name: str) -> Sequence[Group]:
    """Return the options of a command, as its help shows them."""
    module = command_module(name)
    found: Sequence[Group] = module.groups() if hasattr(module, "groups") else module.GROUPS
    return found


def no_command(name: str) -> InputError:
    """Return the error that ``launch`` has no command of this name."""
    guess = closest_match(name, COMMANDS)
    meant = foreign_options.COMMANDS.get(name) or (f"launch {guess}" if guess else "")
    known = f"expected one of {', '.join(COMMANDS)}; options: `launch --help-all`"
    expected = f"type `{meant}`" if meant else known
    return InputError([Fault("", f"launch has no command {name!r}: {expected}")])


def documentation() -> str:
    """Return the folder of the documentation: that of the source of launch, or where pip has installed it."""
    source = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "docs")
    installed = [os.path.join(prefix, DOCUMENTATION) for prefix in (sys.prefix, site.getuserbase())]
    folders = [folder for folder in (source, *installed) if os.path.isfile(os.path.join(folder, "start.md"))]
    return folders[0] if folders else "docs/ of the source; `make docs` builds the site"

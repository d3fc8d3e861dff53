"""Programs that can't be run, put into words: all of them at once, and what to try."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import LaunchError
from launcher.job import ProgramKind
from launcher.text import listed

if TYPE_CHECKING:
    from launcher.cli.request import Request
    from launcher.job import Placed


class Trouble(NamedTuple):
    """Why a task can't be started."""

    #: ``file:line`` or the option that names the program; empty: the command line does.
    where: str
    #: The first task of its role; empty: it is no matter of a role.
    task: str
    #: Says what is wrong, and owns the exit code.
    error: LaunchError


def all_of(found: Sequence[Trouble]) -> LaunchError:
    """One error for all, a line each, with the exit code of the first; what several roles share is said once.

    Args:
        found: at least one.
    """
    roles: dict[tuple[str, str], dict[str, str]] = {}
    for trouble in found:
        role = trouble.task.partition("/")[0]
        roles.setdefault((trouble.where, str(trouble.error)), {}).setdefault(role, trouble.task)
    lines = (_line(where, listed([*tasks.values()]), why) for (where, why), tasks in roles.items())
    return type(found[0].error)("\n".join(lines))


def _line(*parts: str) -> str:
    return ": ".join(filter(None, parts))


def not_in(name: str, folder: str) -> str:
    """A path that leads to no file from the folder that was looked in."""
    return f"program not found: {name!r} (looked in {os.path.abspath(folder)!r})"


def nowhere(name: str, folder: str, by_hand: bool) -> str:
    """A name that no folder of the PATH has.

    Args:
        by_hand: it is the first word of a command line, so it may have been meant for a command of ours.
    """
    hint = ""
    if os.path.exists(os.path.join(folder, name)):
        hint = " (a file of that name is in the working folder: write ./ before it)"
    elif by_hand:
        hint = _meant(name)
    return f"program not found: {name!r} is nowhere along PATH{hint}"


def _meant(name: str) -> str:
    from launcher.cli.commands import meant_command

    if name.isdigit():
        return "; --chief and --evaluator take no number"
    meant = meant_command(name)
    return f"; did you mean {meant}?" if meant else ""


def beside_the_file(wanted: Request, placed: Placed, folder: str) -> str:
    """What to try if a job file's program lies beside it, and that is not where it runs; else empty.

    Args:
        folder: where the task runs.
    """
    role = placed.role
    name, file = role.program.name, (role.program_source or role.source).rpartition(":")[0]
    there = os.path.dirname(os.path.abspath(file))
    is_there = bool(file) and os.path.isfile(os.path.join(there, name))
    if not is_there or os.path.exists(os.path.join(folder, name)):
        return ""
    way = "`workdir: .` there"
    if role.workdir or placed.host.workdir:
        way = "`workdir: .` in its role"
    elif wanted.workdir_source == "--workdir":
        way = f"--workdir {there!r}"
    if role.program.kind is ProgramKind.EXECUTABLE and "/" not in name:
        what, more = "a file of that name", ", and ./ before the name finds it"
    else:
        what, more = "it", ""
    return f"; {what} lies beside the job file: {way} makes that its folder{more}"

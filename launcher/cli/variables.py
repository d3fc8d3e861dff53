"""What the ``-x`` options carry, as Open MPI's ``-x`` does; only where there are some."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from launcher.errors import Fault
from launcher.job import RESERVED_VARIABLES
from launcher.marked.checks import env_name


def carried(
    words: Sequence[str],
    here: Mapping[str, str],
    taken: Collection[str],
    faults: list[Fault],
    notes: list[str],
) -> dict[str, str]:
    """The variables that these words set.

    Args:
        words: ``NAME``, ``NAME=VALUE`` and ``PRE*``.
        here: the launcher's environment.
        taken: names that other options give a value to.
        faults, notes: what is wrong, and what the user should know.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name.endswith("*") and not equals:
            found.update(_matching(name, here, notes))
        elif fault := _fault(name, equals, word, here, taken):
            faults.append(fault)
        else:
            found[name] = value if equals else here[name]
    return found


def _matching(pattern: str, here: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """What is set here and begins so, but for what is each task's own."""
    found = {name: value for name, value in here.items() if name.startswith(pattern[:-1])}
    if not found:
        notes.append(f"-x {pattern}: no variable that is set here begins so")
    return {name: value for name, value in found.items() if name not in RESERVED_VARIABLES}


def _fault(
    name: str, equals: str, word: str, here: Mapping[str, str], taken: Collection[str]
) -> Fault | None:
    """What is wrong with one word, its value unsaid: it may be secret."""
    where = f"-x {name}"
    if not name or "\0" in word:
        return Fault(where, "no variable is named", "expected NAME, NAME=VALUE or PRE*")
    try:
        env_name(name)
    except ValueError as error:
        return Fault(where, f"{name!r} can't be set", str(error))
    if name in taken:
        return Fault(where, f"{name!r} can't be set", "expected another: an option of this launch sets it")
    if not equals and name not in here:
        return Fault(where, f"{name} is not set here", "expected NAME=VALUE, or a variable that is set")
    return None

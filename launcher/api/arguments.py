"""What a program may give, looked at before anything is started: all that is wrong is told at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import Fault, InputError


def check(who: str, map_fun: Any, tf_args: Any, others: Sequence[Fault]) -> None:
    """Find what is wrong.

    Args:
        who: asks for it: ``TFCluster.run``.
        map_fun: is to be a function.
        tf_args: come after it.
        others: what is wrong with all the other arguments.

    Raises:
        InputError: something is; all of it at once.
    """
    if callable(map_fun):
        faults = list(others)
    else:
        what = f"map_fun is a {type(map_fun).__name__}"
        faults = [Fault(who, what, "expected the function first: there is no SparkContext any more")]
        if not callable(tf_args):  # else all that follows is one place off
            faults += others
    if faults:
        raise InputError(faults)


def count_faults(who: str, name: str, value: Any, least: int = 0) -> list[Fault]:
    """What is wrong with a number of things."""
    is_number = hasattr(value, "__index__") and not isinstance(value, bool)  # NumPy's, too
    if is_number and value.__index__() >= least:
        return []
    return [Fault(who, f"{name}={value!r}", f"expected a whole number, {least} or more")]


def place_faults(who: str, given: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with where and how a job runs.

    Args:
        given: by the names of the arguments; those that are ``None`` were not given.
    """
    found = {name: value for name, value in given.items() if value is not None}
    faults = []
    for name in ("hosts", "docker", "job", "workdir", "python", "run_dir"):
        if name in found and not isinstance(found[name], (str, os.PathLike)):
            faults.append(Fault(who, f"{name}={found[name]!r}", "expected a text"))
    for name in ("grace", "timeout"):
        faults += seconds_faults(who, name, found.get(name, 0))
    if found.get("on_failure") not in (None, "stop", "continue"):
        faults.append(Fault(who, f"on_failure={found['on_failure']!r}", "expected 'stop' or 'continue'"))
    return [
        *faults,
        *_env_faults(who, found.get("env", {})),
        *names_faults(who, "options", found.get("options", ())),
    ]


def seconds_faults(who: str, name: str, value: Any) -> list[Fault]:
    """What is wrong with a time."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return []
    return [Fault(who, f"{name}={value!r}", "expected seconds")]


def names_faults(who: str, name: str, value: Any) -> list[Fault]:
    """What is wrong with a list of texts; one text is none, and would be taken for its letters."""
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(one, str) for one in value):
        return []
    example = f"[{value!r}]" if isinstance(value, str) else "['...', '...']"
    return [Fault(who, f"{name}={value!r}", f"expected a list of texts: {name}={example}")]


def _env_faults(who: str, env: Any) -> list[Fault]:
    if not isinstance(env, Mapping):
        return [Fault(who, f"env={env!r}", "expected a dict of names and values")]
    wrong = [(name, value) for name, value in env.items() if not (_is_text(name) and _is_text(value))]
    return [
        Fault(who, f"env: {name!r} is {value!r}", f"expected texts: {str(name)!r}: {str(value)!r}")
        for name, value in wrong
    ]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def mapping_faults(who: str, input_mapping: Any) -> Sequence[Fault]:
    """What is wrong with the names of columns."""
    if input_mapping is None or isinstance(input_mapping, Mapping):
        return []
    what = f"input_mapping is a {type(input_mapping).__name__}"
    return [Fault(who, what, "expected a dict: the columns of the rows, in their order, and their names")]

"""The folder of ``--tensorboard``, which may follow the option as a word of its own.

``launch --tensorboard logs train.py`` names a folder, ``launch --tensorboard train.py`` does not. argparse
would take the next word in both, so the option and its folder become one word before it parses them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from launcher.config.values import names_job_file

OPTION = "--tensorboard"


def with_logdir(argv: Sequence[str], options: Mapping[str, argparse.Action]) -> list[str]:
    """The arguments, with ``--tensorboard LOGDIR`` as one word ``--tensorboard=LOGDIR``.

    Without a folder the word is ``--tensorboard=``. The first argument that is neither an option nor
    the value of an option is the program: all arguments after it stay as they are.

    Args:
        argv: of ``launch``.
        options: option -> its action.
    """
    words: list[str] = []
    rest = list(argv)
    while OPTION in options and rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        if word == OPTION:
            words.append(f"{OPTION}={rest.pop(0) if rest and _is_logdir(rest[0]) else ''}")
            continue
        words.append(word)
        action, has_value = _option(word, options)
        if action is not None and action.nargs == argparse.REMAINDER:
            break
        if action is not None and action.nargs != 0 and not has_value and rest:
            words.append(rest.pop(0))
    return words + rest


def _is_logdir(word: str) -> bool:
    """Whether the word after the option is a folder: not empty, no option, program or job file."""
    import shutil  # 4 ms, needed only with the option

    return word != "" and not (
        word.startswith("-") or word.endswith(".py") or names_job_file(word) or shutil.which(word)
    )


def _option(word: str, options: Mapping[str, argparse.Action]) -> tuple[argparse.Action | None, bool]:
    """The option that a word ends with, and whether the word has its value; ``None``: it is unknown."""
    name, equals, _ = word.partition("=")
    if name in options or word.startswith("--"):
        return options.get(name), bool(equals)
    action = None
    for place, letter in enumerate(word[1:], 2):  # -qx NAME
        action = options.get(f"-{letter}")
        if action is None or action.nargs != 0:
            return action, place < len(word)
    return action, False

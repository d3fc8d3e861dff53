"""What can be said of a host besides its name, and how each setting is read from text.

One table for all forms: a setting means and allows the same wherever it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.hostfile.names import parse_address, read_slots, user_name
from launcher.marked.checks import (
    comma_separated,
    first_repeated,
    label,
    one_line,
    program_path,
    role_name,
    whole,
)

MOST_GPUS = 256

#: As ``CUDA_VISIBLE_DEVICES`` takes them: an index, or (the beginning of) a UUID.
_GPU_ID = re.compile(r"\d{1,6}|(GPU|MIG)-[A-Za-z0-9/-]+", re.ASCII)

#: Fields of ``Host`` (``address`` still a pattern), by name.
Settings = dict[str, Any]


def _gpu_words(text: str) -> Sequence[str]:
    """A count (``4``: ids 0 to 3) or the ids themselves (``0,2``, ``GPU-8f3a``)."""
    if not text.isdecimal():
        return comma_separated(text)
    try:
        return [str(index) for index in range(whole(0, MOST_GPUS)(text))]
    except ValueError:
        raise ValueError(f"expected how many, from 0 to {MOST_GPUS}, or their ids, as in 0,1") from None


def _gpu_id(text: str) -> str:
    if not _GPU_ID.fullmatch(text):
        raise ValueError("expected how many, or their ids, as in 0,1 or GPU-8f3a")
    return text


class Many(NamedTuple):
    """A setting of several words: how one text becomes words, and how each is read."""

    split: Callable[[str], Sequence[str]]
    check: Callable[[str], str]


#: Settings of one value.
ONE: Mapping[str, Callable[[str], Any]] = {
    "address": parse_address,
    "user": user_name,
    "port": whole(1, 65535),
    "slots": read_slots,
    "max_slots": read_slots,
    "python": program_path,
    "venv": one_line,
    "workdir": one_line,
}

#: Settings of several words.
MANY: Mapping[str, Many] = {
    "gpus": Many(_gpu_words, _gpu_id),
    "roles": Many(comma_separated, role_name),
    "labels": Many(comma_separated, label),
}


def read_text(key: str, text: str) -> Any:
    """The value of setting ``key`` (of ``ONE`` or ``MANY``) written as one text.

    Raises:
        ValueError: with what was expected.
    """
    if key in ONE:
        return ONE[key](text)
    many = MANY[key]
    return each_once([many.check(word) for word in many.split(text)])


def each_once(words: Sequence[str]) -> tuple[str, ...]:
    """The words, none of which is there twice.

    Raises:
        ValueError: one is.
    """
    repeated = first_repeated(words)
    if repeated is not None:
        raise ValueError(f'expected "{words[repeated]}" once')
    return tuple(words)

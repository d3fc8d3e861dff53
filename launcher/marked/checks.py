"""What values may look like: each reads a text, or raises ``ValueError`` with what it expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence

from launcher.job import RESERVED_VARIABLES, TENSORFLOW_ROLES

#: Control characters and halves of surrogate pairs.
_UNSHOWABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_WHOLE = re.compile("0|[1-9][0-9]{0,17}")
_ENV_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_ROLE = re.compile("[A-Za-z][A-Za-z0-9_-]{0,63}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*(=[A-Za-z0-9_./:@+-]*)?")
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def whole(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers, both bounds included. ``010`` is none: YAML says 8, people say 10."""

    def read(text: str) -> int:
        if _WHOLE.fullmatch(text) and low <= int(text) <= high:
            return int(text)
        raise ValueError(f"expected a whole number from {low} to {high}")

    return read


def flag(text: str) -> bool:
    """``true`` or ``false``, and YAML's other words for them."""
    if text.lower() not in _FLAGS:
        raise ValueError("expected true or false")
    return _FLAGS[text.lower()]


def one_line(text: str) -> str:
    """Text of one line, such as a path: not empty, no control characters."""
    if not text or _UNSHOWABLE.search(text):
        raise ValueError("expected text of one line")
    return text


def program_path(text: str) -> str:
    """The name or path of a program; not an option, which somebody else's command line would take it for."""
    if one_line(text).startswith("-"):
        raise ValueError('expected the name or path of a program, not beginning with "-"')
    return text


def env_name(text: str) -> str:
    """The name of an environment variable."""
    if not _ENV_NAME.fullmatch(text):
        raise ValueError("expected a variable's name: letters, digits and _, not beginning with a digit")
    if text in RESERVED_VARIABLES:
        raise ValueError("expected another: launch sets this one, for each task its own")
    return text


def role_name(text: str) -> str:
    """The name of a role: it becomes part of file names and of ``TF_CONFIG``.

    One that only looks like a role of TensorFlow's would be one of the user's own, which no program expects.
    """
    if not _ROLE.fullmatch(text):
        raise ValueError("expected a role: a letter, then letters, digits, _ or -, at most 64")
    if (meant := tensorflow_role(text) or misspelt_role(text)) not in ("", text):
        raise ValueError(f'did you mean "{meant}"?')
    return text


def tensorflow_role(text: str) -> str:
    """The role of TensorFlow's that is written here, perhaps in the plural or in capitals; empty: none."""
    word = text.lower()
    return next((role for role in TENSORFLOW_ROLES if word in (role, f"{role}s")), "")


#: Of a shorter role any two letters are a near miss, and they may be somebody's name for one.
_LONG = 4


def misspelt_role(text: str) -> str:
    """The role of TensorFlow's that this was probably to be, as in ``evaluater``; empty: none.

    One letter is wrong, missing, too many or in the place of its neighbour. What begins or ends with the
    role's whole name (``worker_gpu``, ``workerb``, ``coworker``) is a name of its own.
    """
    word = text.lower()
    words = (word, word.removesuffix("s"))
    return next((role for role in TENSORFLOW_ROLES if any(_one_slip(role, one) for one in words)), "")


def _one_slip(role: str, word: str) -> bool:
    """Whether a hand that meant ``role`` slipped once."""
    pairs = enumerate(zip(role, word, strict=False))
    same = next((at for at, (a, b) in pairs if a != b), min(len(role), len(word)))
    meant, seen = role[same:], word[same:]
    if not meant:
        return seen == role[-1]  # doubled; whatever else follows makes a name of it
    if seen[1::-1] + seen[2:] == meant:  # swapped
        return True
    if seen[1:] == meant:  # too many
        return same > 0 and (len(role) >= _LONG or seen[0] == role[same - 1])
    return len(role) >= _LONG and seen in (meant[1:], seen[:1] + meant[1:])


def label(text: str) -> str:
    """A word to select hosts by, ``fast`` or ``zone=a``."""
    if not _LABEL.fullmatch(text):
        raise ValueError("expected a label, as in fast or zone=a")
    return text


def comma_separated(text: str) -> Sequence[str]:
    """``a,b`` -> ``["a", "b"]``, blanks around the commas dropped."""
    return [word.strip() for word in text.split(",")]


def first_repeated(values: Sequence[Hashable]) -> int | None:
    """The index of the first value that was there before, if any."""
    seen: set[Hashable] = set()
    for index, value in enumerate(values):
        if value in seen:
            return index
        seen.add(value)
    return None

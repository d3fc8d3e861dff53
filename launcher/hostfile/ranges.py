"""Host ranges: ``node[01-16]``, ``node[1,3,5-7]``, ``r[1-2]n[1-4]``.

A pattern knows how many names it stands for before it makes any: ``[1-999999999]`` costs nothing.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_SPAN = re.compile("([0-9]{1,9})(?:-([0-9]{1,9}))?")


class Span(NamedTuple):
    """The numbers from ``low`` to ``high``, both included, filled with zeros up to ``width``."""

    low: int
    high: int
    width: int = 1

    def __str__(self) -> str:
        return f"{self.low:0{self.width}}-{self.high:0{self.width}}"

    def texts(self) -> Iterator[str]:
        """Each number as it is written."""
        return (f"{number:0{self.width}}" for number in range(self.low, self.high + 1))


#: One part of a name: text, or the numbers in one pair of brackets.
Part = str | tuple[Span, ...]


class Pattern(NamedTuple):
    """A name with any number of ranges in it."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """How many names it stands for."""
        return math.prod(_size(part) for part in self.parts)

    @property
    def longest(self) -> int:
        """How many characters its longest name has."""
        return sum(_longest(part) for part in self.parts)

    def names(self) -> Iterator[str]:
        """The names, the last range varying fastest. Look at ``size`` first."""
        choices = ((part,) if isinstance(part, str) else _texts(part) for part in self.parts)
        return map("".join, itertools.product(*choices))


def _size(part: Part) -> int:
    return 1 if isinstance(part, str) else sum(span.high - span.low + 1 for span in part)


def _longest(part: Part) -> int:
    if isinstance(part, str):
        return len(part)
    return max(max(span.width, len(str(span.high))) for span in part)


def _texts(spans: tuple[Span, ...]) -> Iterator[str]:
    return itertools.chain.from_iterable(span.texts() for span in spans)


def parse_pattern(text: str) -> Pattern:
    """The pattern that ``text`` writes; text without brackets is a pattern of one name.

    Raises:
        ValueError: brackets that do not match, or hold no ascending numbers.
    """
    parts: list[Part] = []
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise ValueError("expected brackets in pairs, as in node[01-16]")
        parts.append(piece[2] if piece[1] is None else _spans(piece[1]))
        position = piece.end()
    return Pattern(tuple(parts))


def _spans(text: str) -> tuple[Span, ...]:
    return tuple(map(_span, text.split(",")))


def _span(text: str) -> Span:
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected numbers in the brackets, as in node[01-16] or node[1,3,5-7]")
    low, high = match[1], match[1] if match[2] is None else match[2]
    if int(low) > int(high):
        raise ValueError(f"expected a range that goes up, as in [{high}-{low}]")
    if len(low) != len(high) and (_padded(low) or _padded(high)):
        raise ValueError("expected both ends of a range with the same number of digits, as in [001-100]")
    return Span(int(low), int(high), len(low) if _padded(low) else 1)


def _padded(digits: str) -> bool:
    return len(digits) > 1 and digits.startswith("0")

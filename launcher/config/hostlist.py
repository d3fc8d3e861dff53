"""How hosts are written: ``user@node[01-16]:4``, ``[fe80::1%eth0]:2``, ``10.0.0.7``, ``r[1-2]n[1,3-4]``.

Names end up on ssh's command line and in folder names, so no name begins with ``-`` or holds a slash.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from launcher.config.values import MOST_SLOTS, slots, user_name

#: A pattern with more characters stands for names that are too long, or for too many.
_LONGEST_PATTERN = 20_000
_LONGEST_NAME = 253

#: A comma that separates entries, or a whole pair of brackets, whose commas do not.
_SPLIT = re.compile(r"\[[^\]]*\]?|(,)")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_SPAN = re.compile("([0-9]{1,9})(?:-([0-9]{1,9}))?")
_BRACKETED = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](?::(.*))?", re.DOTALL)
_ZONED = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9][A-Za-z0-9_.-]*)?")
_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME_CHARS = re.compile("[A-Za-z0-9_.-]*")
_LIKE_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")

_A_NAME = "expected a host's name: letters, digits and any of .-_, not beginning with - or ."


#: The numbers from the first to the second, both included, filled with zeros up to the width.
Span = tuple[int, int, int]


class Pattern(NamedTuple):
    """A name with any number of ranges in it: each part is text, or the spans in one pair of brackets."""

    parts: tuple[str | tuple[Span, ...], ...]

    @property
    def size(self) -> int:
        """The number of names; ``[1-999999999]`` is only counted."""
        spans = [part for part in self.parts if not isinstance(part, str)]
        return math.prod(sum(high - low + 1 for low, high, _ in part) for part in spans)

    def names(self) -> Iterator[str]:
        """The names, the last range varying fastest. Look at ``size`` first."""
        choices = ([part] if isinstance(part, str) else _numbers(part) for part in self.parts)
        return map("".join, itertools.product(*choices))


def _numbers(spans: tuple[Span, ...]) -> Iterator[str]:
    return (f"{n:0{width}}" for low, high, width in spans for n in range(low, high + 1))


def parse_pattern(text: str) -> Pattern:
    """The pattern that ``text`` writes; text without brackets is a pattern of one name.

    Raises:
        ValueError: brackets that do not match, or hold no ascending numbers.
    """
    if len(text) > _LONGEST_PATTERN:
        raise ValueError(f"expected at most {_LONGEST_NAME} characters in a host's name")
    parts: list[str | tuple[Span, ...]] = []
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise ValueError("expected brackets in pairs, as in node[01-16]")
        parts.append(piece[2] if piece[1] is None else tuple(map(_span, piece[1].split(","))))
        position = piece.end()
    return Pattern(tuple(parts))


def _span(text: str) -> Span:
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected numbers in the brackets, as in node[01-16] or node[1,3,5-7]")
    low, high = match[1], match[2] or match[1]
    if int(low) > int(high):
        raise ValueError(f"expected a range that goes up, as in [{high}-{low}]")
    padded = [len(digits) > 1 and digits.startswith("0") for digits in (low, high)]
    if len(low) != len(high) and any(padded):
        raise ValueError("expected both ends of a range with the same number of digits, as in [001-100]")
    return int(low), int(high), len(low) if padded[0] else 1


class Word(NamedTuple):
    """One entry of a host list: a host or a range of hosts, perhaps with user and slots."""

    pattern: Pattern
    user: str | None = None
    slots: int | None = None


def split_entries(text: str) -> list[str]:
    """Cut at the commas that are not in brackets, and strip the entries."""
    cuts = [match.start() for match in _SPLIT.finditer(text) if match[1]]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def parse_word(text: str, bare_ipv6: bool = False) -> Word:
    """Read ``[user@]host[:slots]``.

    Args:
        text: what was written.
        bare_ipv6: take ``fe80::1:2`` as an address. Without it brackets are required, because
            the ``:2`` could as well be meant as slots.

    Raises:
        ValueError: with what was expected.
    """
    user, at, rest = text.rpartition("@")
    bracketed = _BRACKETED.fullmatch(rest)
    if bare_ipv6 and _is_ipv6(rest):
        host, number = rest, None
    elif bracketed:
        host, number = bracketed[1], bracketed[2]
    elif rest.count(":") > 1:
        raise ValueError("expected an IPv6 address in brackets, as in [fe80::1]:2")
    else:
        host, colon, after = rest.partition(":")
        number = after if colon else None
    pattern, name = _parse_host(host), user_name(user) if at else None
    try:
        return Word(pattern, name, None if number is None else slots(number))
    except ValueError:
        raise ValueError(f'expected slots from 1 to {MOST_SLOTS} after the ":"') from None


def parse_address(text: str) -> Pattern:
    """A host alone, ranges allowed, an IPv6 address with or without its brackets.

    Raises:
        ValueError: with what was expected.
    """
    bracketed = _BRACKETED.fullmatch(text)
    return _parse_host(bracketed[1] if bracketed and bracketed[2] is None else text)


def _parse_host(text: str) -> Pattern:
    if text.startswith("^"):
        raise ValueError('expected a host to use; leave excluded hosts ("^host") out of the list')
    if ":" in text:
        if not _is_ipv6(text):
            raise ValueError('expected a name without ":", or an IPv6 address as in fe80::1%eth0')
        return Pattern((text,))
    pattern = parse_pattern(text)
    literals = [part for part in pattern.parts if isinstance(part, str)]
    if not pattern.parts or not all(map(_NAME_CHARS.fullmatch, literals)) or text[0] in "-.":
        raise ValueError(_A_NAME)
    return pattern


def host_name(text: str) -> str:
    """One name out of a pattern.

    Raises:
        ValueError: it is not a name, is too long, or looks like an IPv4 address and is not one.
    """
    if _LIKE_IPV4.fullmatch(text):
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            raise ValueError("expected an IPv4 address, four numbers from 0 to 255") from None
    if not _NAME.fullmatch(text) and not _is_ipv6(text):
        raise ValueError(_A_NAME)
    if len(text) > _LONGEST_NAME:
        raise ValueError(f"expected at most {_LONGEST_NAME} characters in a host's name")
    return text


def _is_ipv6(text: str) -> bool:
    """Whether ``text`` is an IPv6 address, without brackets, perhaps with a zone."""
    if ":" not in text or not _ZONED.fullmatch(text):
        return False
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True

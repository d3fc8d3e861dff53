"""How a host is written: ``user@node[01-16]:4``, ``[fe80::1%eth0]:2``, ``10.0.0.7``.

Names end up on ssh's command line and in folder names, so what they may hold is strict: none
begins with ``-``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from launcher.hostfile.ranges import Pattern, parse_pattern
from launcher.marked.checks import whole

MOST_SLOTS = 1_000_000
LONGEST_NAME = 253

read_slots = whole(1, MOST_SLOTS)

_BRACKETED = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](?::(.*))?", re.DOTALL)
_ZONED = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9][A-Za-z0-9_.-]*)?")
_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME_CHARS = re.compile("[A-Za-z0-9_.-]*")
_LIKE_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")
_USER = re.compile(r"[A-Za-z0-9_.]([A-Za-z0-9_.+@\\-]{0,63}[A-Za-z0-9_.+@-])?")

_A_NAME = "expected a host's name: letters, digits and any of .-_, not beginning with - or ."


class Word(NamedTuple):
    """What one word says of a host, or of a range of hosts."""

    pattern: Pattern
    user: str | None = None
    slots: int | None = None


def parse_word(text: str, bare_ipv6: bool = False) -> Word:
    """Read ``[user@]host[:slots]``.

    Args:
        bare_ipv6: take ``fe80::1:2`` as an address. Without it brackets are asked for, because
            the ``:2`` could as well be meant as slots.

    Raises:
        ValueError: with what was expected.
    """
    user, at, rest = text.rpartition("@")
    host, slots = _split_slots(rest, bare_ipv6)
    return Word(
        parse_host(host),
        user_name(user) if at else None,
        None if slots is None else _slots_after_colon(slots),
    )


def _split_slots(text: str, bare_ipv6: bool) -> tuple[str, str | None]:
    if bare_ipv6 and is_ipv6(text):
        return text, None
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        return bracketed[1], bracketed[2]
    if text.count(":") > 1:
        raise ValueError("expected an IPv6 address in brackets, as in [fe80::1]:2")
    host, colon, slots = text.partition(":")
    return host, slots if colon else None


def _slots_after_colon(text: str) -> int:
    try:
        return read_slots(text)
    except ValueError:
        raise ValueError(f'expected slots from 1 to {MOST_SLOTS} after the ":"') from None


def parse_address(text: str) -> Pattern:
    """A host alone, ranges allowed, an IPv6 address with or without its brackets.

    Raises:
        ValueError: with what was expected.
    """
    bracketed = _BRACKETED.fullmatch(text)
    return parse_host(bracketed[1] if bracketed and bracketed[2] is None else text)


def parse_host(text: str) -> Pattern:
    """A host without user, slots or the brackets of IPv6; ranges allowed.

    Raises:
        ValueError: with what was expected.
    """
    if ":" in text:
        if not is_ipv6(text):
            raise ValueError('expected a name without ":", or an IPv6 address as in fe80::1%eth0')
        return Pattern((text,))
    pattern = parse_pattern(text)
    literals = [part for part in pattern.parts if isinstance(part, str)]
    if not pattern.parts or not all(map(_NAME_CHARS.fullmatch, literals)) or text[0] in "-.":
        raise ValueError(_A_NAME)
    if pattern.longest > LONGEST_NAME:
        raise ValueError(f"expected at most {LONGEST_NAME} characters in a host's name")
    return pattern


def host_name(text: str) -> str:
    """One name out of a range, or any other.

    Raises:
        ValueError: it looks like an IPv4 address and is none, or is no name at all.
    """
    if _LIKE_IPV4.fullmatch(text) and not _is_ipv4(text):
        raise ValueError("expected an IPv4 address, four numbers from 0 to 255")
    if not _NAME.fullmatch(text) and not is_ipv6(text):
        raise ValueError(_A_NAME)
    return text


def user_name(text: str) -> str:
    """A login name, ``DOMAIN\\name`` and ``name@domain`` included.

    Raises:
        ValueError: with what was expected.
    """
    if not _USER.fullmatch(text):
        raise ValueError("expected a user's name: letters, digits and any of ._-+@\\, not beginning with -")
    return text


def is_ipv6(text: str) -> bool:
    """Whether ``text`` is an IPv6 address, without brackets, perhaps with a zone."""
    if ":" not in text or not _ZONED.fullmatch(text):
        return False
    import ipaddress  # only where an address is written

    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_ipv4(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True

"""How hosts are written: ``user@node[01-16]:4``, ``[fe80::1%eth0]:2``, ``10.0.0.7``, ``r[1-2]n[1,3-4]``.

Names end up on ssh's command line and in folder names, so no name begins with ``-`` or holds a slash.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from launcher.config.values import MOST_SLOTS, slots, user_name

#: Hosts of one launch.
MOST_HOSTS = 4096
#: Characters of an entry, and of a name.
_LONGEST_ENTRY, _LONGEST_NAME = 2000, 253
#: An address in brackets, which has a colon, perhaps with slots behind it.
_BRACKETED = r"\[([^\[\]]*:[^\[\]]*)\](?::(.*))?"
_A_NAME = "expected a host's name: letters, digits and any of .-_, not beginning with - or ."


class Entry(NamedTuple):
    """One entry of a host list: a host or a range of hosts, perhaps with user and slots."""

    names: tuple[str, ...]
    user: str | None = None
    slots: int | None = None


def split_entries(text: str) -> list[str]:
    """Cut at the commas that are not in brackets, and strip the entries."""
    cuts = [match.start() for match in re.finditer(r"\[[^\]]*\]?|(,)", text) if match[1]]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def parse_entry(text: str, bare_ipv6: bool = False) -> Entry:
    """Read ``[user@]host[:slots]``.

    Args:
        text: what was written.
        bare_ipv6: take ``fe80::1:2`` as an address. Without it brackets are required, because
            the ``:2`` could as well be meant as slots.

    Raises:
        ValueError: with what was expected.
    """
    user, at, rest = text.rpartition("@")
    bracketed = re.fullmatch(_BRACKETED, rest, re.DOTALL)
    number: str | None
    if bare_ipv6 and _is_ipv6(rest):
        host, number = rest, None
    elif bracketed:
        host, number = bracketed[1], bracketed[2]
    elif rest.count(":") > 1:
        raise ValueError("expected an IPv6 address in brackets, as in [fe80::1]:2")
    else:
        host, colon, after = rest.partition(":")
        number = after if colon else None
    names, login = _host_names(host), user_name(user) if at else None
    try:
        return Entry(names, login, None if number is None else slots(number))
    except ValueError:
        raise ValueError(f'expected slots from 1 to {MOST_SLOTS} after the ":"') from None


def parse_address(text: str) -> tuple[str, ...]:
    """The names of a host alone, ranges written out, an IPv6 address with or without its brackets.

    Raises:
        ValueError: with what was expected.
    """
    bracketed = re.fullmatch(_BRACKETED, text, re.DOTALL)
    return _host_names(bracketed[1] if bracketed and bracketed[2] is None else text)


def _host_names(text: str) -> tuple[str, ...]:
    if text.startswith("^"):
        raise ValueError('expected a host to use; leave excluded hosts ("^host") out of the list')
    if ":" in text:
        if not _is_ipv6(text):
            raise ValueError('expected a name without ":", or an IPv6 address as in fe80::1%eth0')
        return (text,)
    names = expand(text)
    for name in names:
        if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", name) and not all(int(n) < 256 for n in name.split(".")):
            raise ValueError("expected an IPv4 address, four numbers from 0 to 255")
        if not re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ValueError(_A_NAME)
        if len(name) > _LONGEST_NAME:
            raise ValueError(f"expected at most {_LONGEST_NAME} characters in a host's name")
    return tuple(names)


def expand(text: str) -> list[str]:
    """The names that ``n[01-16]x[1,3]`` stands for, the last range varying fastest.

    Raises:
        ValueError: brackets that do not match or hold no ascending numbers, or too many names.
    """
    if len(text) > _LONGEST_ENTRY:
        raise ValueError(f"expected at most {_LONGEST_NAME} characters in a host's name")
    names, position = [""], 0
    while position < len(text):
        piece = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)").match(text, position)
        if piece is None:
            raise ValueError("expected brackets in pairs, as in node[01-16]")
        numbers = [piece[2]] if piece[1] is None else [n for span in piece[1].split(",") for n in _span(span)]
        if len(names) * len(numbers) > MOST_HOSTS:
            raise ValueError(f"expected at most {MOST_HOSTS} hosts")
        names = [name + number for name in names for number in numbers]
        position = piece.end()
    return names


def _span(text: str) -> list[str]:
    """The numbers of ``7`` or ``01-16``."""
    match = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", text.strip())
    if match is None:
        raise ValueError("expected numbers in the brackets, as in node[01-16] or node[1,3,5-7]")
    low, high = match[1], match[2] or match[1]
    if int(low) > int(high):
        raise ValueError(f"expected a range that goes up, as in [{high}-{low}]")
    padded = [len(digits) > 1 and digits.startswith("0") for digits in (low, high)]
    if len(low) != len(high) and any(padded):
        raise ValueError("expected both ends of a range with the same number of digits, as in [001-100]")
    if int(high) - int(low) >= MOST_HOSTS:
        raise ValueError(f"expected at most {MOST_HOSTS} hosts")
    width = len(low) if padded[0] else 1
    return [f"{number:0{width}}" for number in range(int(low), int(high) + 1)]


def _is_ipv6(text: str) -> bool:
    """Whether ``text`` is an IPv6 address, without brackets, perhaps with a zone."""
    import ipaddress

    if not re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9][A-Za-z0-9_.-]*)?", text):
        return False
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True

"""The plain form of MPI and DeepSpeed: a host a line, then its settings.

::

    # comment
    node1 slots=4 max-slots=8
    user@node2:4 labels=fast,zone=a workdir="/data/my runs"
    node[03-16]
    fe80::1%eth0 slots = 2

Quotes, single or double, hold anything but themselves; there are no escapes. ``#`` begins a
comment where a word could begin. A line that is nothing but a name may come again: a slot
more each time, as PBS writes its node files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from launcher.hostfile.inventory import Inventory, said_twice
from launcher.hostfile.names import parse_word
from launcher.hostfile.settings import MANY, ONE, Settings, read_text
from launcher.job import Host
from launcher.marked.faults import Faults, quoted

#: Other programs' names for our settings.
ALIASES = {
    "cpu": "slots",
    "count": "slots",
    "max-slots": "max_slots",
    "slots_max": "max_slots",
    "slots-max": "max_slots",
    "username": "user",
}

_KNOWN = (*ONE, *MANY)
_LINE_END = re.compile("\r\n|\n|\r")
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
_SETTING = re.compile(r"""([A-Za-z_-]+)(\s*=\s*)((?:"[^"]*"|'[^']*'|[^\s"'])*)(?=\s|$)""")
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")
_BLANKS = re.compile(r"\s*")


def read(text: str, faults: Faults) -> tuple[Host, ...]:
    """The hosts of a plain file."""
    inventory = Inventory(faults)
    for number, line in enumerate(_LINE_END.split(text), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            _read_line(line.strip(), number, inventory, faults)
    return inventory.hosts()


def _read_line(line: str, number: int, inventory: Inventory, faults: Faults) -> None:
    first = _WORD.match(line)
    name = _unquoted(first[0] if first else line)
    word = faults.check(number, "host", name, lambda text: parse_word(text, bare_ipv6=True))
    before = len(faults)
    settings = _settings(line[first.end() :] if first else "", number, faults)
    if word is not None and not said_twice(word, dict.fromkeys(settings, number), faults):
        good = {key: value for key, value in settings.items() if value is not None}
        inventory.add(name, word, good, number, repeatable=len(faults) == before)


def _settings(text: str, number: int, faults: Faults) -> Settings:
    settings: Settings = {}
    for written, value in _pairs(text, number, faults):
        key = ALIASES.get(written, written)
        if key not in _KNOWN:
            faults.unknown(number, written, _KNOWN)
        elif key in settings:
            faults.add(number, f"{key} is said twice, again as {quoted(value)}", "expected it once")
        else:
            settings[key] = faults.check(number, key, value, partial(read_text, key))
    return settings


def _pairs(text: str, number: int, faults: Faults) -> Iterator[tuple[str, str]]:
    """The ``key=value`` pairs of a line, blanks around ``=`` allowed, up to a comment."""
    position = _skip(text, 0)
    while position < len(text) and text[position] != "#":
        match = _SETTING.match(text, position)
        if match is None or _swallowed(match):
            what = quoted(text[position:].split(None, 1)[0])
            faults.add(number, what, "expected KEY=VALUE (quotes in pairs, one host a line)")
            return
        yield match[1], _unquoted(match[3])
        position = _skip(text, match.end())


def _swallowed(match: re.Match[str]) -> bool:
    """Whether an empty value took the next setting for itself: ``python= slots=4``."""
    return match[2][-1].isspace() and _SETTING.match(match[3]) is not None


def _skip(text: str, position: int) -> int:
    blanks = _BLANKS.match(text, position)
    return blanks.end() if blanks else position


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda match: match[1] if match[1] is not None else match[2], text)

"""The inline form: ``h1:2,h2,user@h3:4,[fe80::1]:2,node[01-16]:2``."""

from __future__ import annotations

import re

from launcher.hostfile.inventory import Inventory
from launcher.hostfile.names import parse_word
from launcher.hostfile.settings import Settings
from launcher.job import Host
from launcher.marked.faults import Faults

#: A comma that separates entries, or a whole pair of brackets, whose commas do not.
_SPLIT = re.compile(r"\[[^\]]*\]?|(,)")


def read(text: str, faults: Faults) -> tuple[Host, ...]:
    """The hosts of a list such as ``--hosts`` takes."""
    inventory = Inventory(faults)
    for entry in split_entries(text) if text.strip() else ():
        add_entry(inventory, entry, {}, 0, faults)
    return inventory.hosts()


def add_entry(inventory: Inventory, text: str, settings: Settings, line: int, faults: Faults) -> None:
    """Add what one ``[user@]host[:slots]`` stands for."""
    word = faults.check(line, "host", text, parse_word)
    if word is not None:
        inventory.add(text, word, settings, line)


def split_entries(text: str) -> list[str]:
    """Cut at the commas that are not in brackets; blanks around entries are dropped."""
    cuts = [match.start() for match in _SPLIT.finditer(text) if match[1]]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]

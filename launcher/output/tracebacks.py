"""A Python traceback in the output of a task: the last one, with those it is chained to. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_HEAD = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)

#: Other lines between a traceback's own (a log of another thread) before it is given up.
_STRANGERS = 10


class Block(NamedTuple):
    """Lines ``start`` to ``end`` (not included); ``prefix`` is what stands before each."""

    start: int
    end: int
    prefix: str


def last_traceback(lines: Sequence[str]) -> Block | None:
    """The last complete traceback; it starts with the first one it is chained to."""
    found: list[Block] = []
    for start, line in enumerate(lines):
        block = _block(lines, start) if _HEAD in line else None
        if block is not None:
            chained = found and _linked(lines, found[-1], block)
            found.append(Block(found[-1].start, block.end, block.prefix) if chained else block)
    return found[-1] if found else None


def _block(lines: Sequence[str], start: int) -> Block | None:
    """From the head to the exception: the first line that is not indented and looks like one."""
    prefix = lines[start][: lines[start].index(_HEAD)]
    prefix = prefix if not prefix.endswith("Exception Group ") else prefix[: -len("+ Exception Group ")]
    strangers = 0
    for at in range(start + 1, len(lines)):
        line = lines[at][len(prefix) :] if lines[at].startswith(prefix) else lines[at]
        if line.startswith((" ", "\t")):
            continue
        if re.match(r"[A-Za-z_][\w.]*(?::|$)", line):
            return Block(start, at + 1, prefix)
        strangers += 1
        if _HEAD in line or strangers > _STRANGERS:
            return None
    return None


def _linked(lines: Sequence[str], before: Block, after: Block) -> bool:
    between = [line for line in lines[before.end : after.start] if line.strip()]
    return 0 < len(between) <= 1 + _STRANGERS and any(between[-1].endswith(said) for said in _CHAINED)

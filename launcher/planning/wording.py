"""Small pieces of messages: counts, near misses."""

from __future__ import annotations

from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def nearest(word: str, known: Iterable[str], ratio: float = 0.6) -> str:
    """What ``word`` was probably meant to be; empty if nothing is near.

    Args:
        word: what was written.
        known: what could have been meant.
        ratio: how near it must be, from 0 to 1 (`difflib.SequenceMatcher.ratio`).
    """
    from difflib import get_close_matches  # only typos pay for it

    return next(iter(get_close_matches(word, list(known), 1, ratio)), "")

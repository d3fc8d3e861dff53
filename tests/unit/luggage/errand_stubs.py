"""Errands that do not do what was agreed."""

from __future__ import annotations

import sys


def dies(arguments: object) -> int:
    """Has a bug."""
    raise ValueError("never thought of this")


def babbles(arguments: object) -> None:
    """Speaks another language."""
    print("\x00" * 100, flush=True)


def sleeps(arguments: object) -> None:
    """Hangs, as long as somebody listens."""
    sys.stdin.buffer.read()

"""The rows of data, as a feed takes them: piece by piece, and each piece block by block."""

from __future__ import annotations

import itertools
from typing import Any

from launcher.feed.remote.codec import as_rows
from launcher.feed.sources import pieces_of


def taken(data: Any, workers: int = 2, epochs: int = 1) -> list[list[Any]]:
    """Return the rows of each piece."""
    found = pieces_of(data, workers, epochs)
    return [[row for block in piece.blocks(lambda: 3) for row in as_rows(block)] for piece in found]


def flat(data: Any, workers: int = 2, epochs: int = 1) -> list[Any]:
    """Return the rows of all pieces."""
    return list(itertools.chain.from_iterable(taken(data, workers, epochs)))

"""The manifests that a host asked for, as frames: the whole, or what makes it of an earlier one.

Each end cuts its manifest where the checksum of a row says so, thus at the same places wherever the rows are
alike. The host gives the signature of what it has, a short name for each piece; what it gets is a recipe:
which of those pieces, and which bytes, in which order. Two pieces may share a name: so whoever puts them
together checks the digest of the whole, and asks for all of it if that is wrong.

::

    size of the recipe (8 digits), recipe (JSON), bytes
    recipe: [[first piece, how many], [-1, how many of the bytes], ...]
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from launcher.luggage.walk import Tree
from launcher.model.delta import DIGITS, FRESH, NAME, cut, name_of
from launcher.model.luggage import CHUNK, LuggageError
from launcher.model.shrinking import packed

#: How many are kept of each tree, for the hosts that come later.
_KEPT = 3
#: How long the name of a piece is.
_HEX = 2 * NAME


class Manifests:
    """Makes and keeps them, once for all hosts that have the same. For several threads.

    Args:
        trees: what travels.
    """

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._trees = trees
        self._lock = threading.Lock()
        self._made: dict[tuple[int, int, str], Sequence[bytes]] = {}

    def frames(self, tree: int, each: int, signature: str) -> Sequence[bytes]:
        """The manifest of a tree, for whoever has one with this signature.

        Raises:
            LuggageError: nothing can be cut so.
        """
        asked = tree, each, signature
        with self._lock:
            if asked not in self._made:
                self._made[asked] = self._frames(*asked)
                for oldest in list(self._made)[: -_KEPT * len(self._trees)]:
                    del self._made[oldest]
            return self._made[asked]

    def _frames(self, tree: int, each: int, signature: str) -> Sequence[bytes]:
        told = delta(self._trees[tree].manifest, each, signature)
        return [packed(memoryview(told)[start : start + CHUNK]) for start in range(0, len(told), CHUNK)]


def delta(manifest: bytes, each: int, signature: str) -> bytes:
    """What makes this manifest of the one that has this signature; all of it, if that is empty.

    Raises:
        LuggageError: nothing can be cut so.
    """
    if each < 1:
        raise LuggageError(f"a manifest can't be cut into pieces of {each} rows")
    theirs = {signature[at : at + _HEX]: at // _HEX for at in range(0, len(signature), _HEX)}
    recipe: list[list[int]] = []
    fresh: list[bytes] = []
    for piece in cut(manifest, each) if theirs else [manifest]:
        first = theirs.get(name_of(piece), FRESH)
        if first == FRESH:
            fresh.append(piece)
        _add(recipe, first, len(piece) if first == FRESH else 1)
    told = json.dumps(recipe, separators=(",", ":")).encode("ascii")
    return b"".join((b"%0*d" % (DIGITS, len(told)), told, *fresh))


def _add(recipe: list[list[int]], first: int, count: int) -> None:
    """Add to a recipe; what goes on where the last item ends makes that longer."""
    if recipe and first == (FRESH if recipe[-1][0] == FRESH else sum(recipe[-1])):
        recipe[-1][1] += count
    else:
        recipe.append([first, count])

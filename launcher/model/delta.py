"""The manifest that is here, of which the next one is made (see `launcher.luggage.manifests`)."""

from __future__ import annotations

import json
import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING

from launcher.model.luggage import LuggageError

if TYPE_CHECKING:
    from typing import Callable, Iterable, Iterator, List

    from launcher.model.luggage import Data

#: Between two rows of a manifest. It may be in a path too: then a row is cut in two, at both ends alike.
_SEAM = b"],["
#: Bytes of a piece's name; it is in hex.
NAME = 6
#: In a recipe: what follows it, not a piece. Digits of the recipe's size.
FRESH, DIGITS = -1, 8
#: Bytes of a recipe; that of a million files takes a twentieth of it.
_LONGEST = 1 << 20


class Base:
    """A manifest that is here.

    Args:
        manifest: empty if there is none.
    """

    def __init__(self, manifest: bytes) -> None:
        #: Rows in a piece, on average: the signature is about as long as a piece that has changed.
        self.each = max(1, int((manifest.count(_SEAM) / 8) ** 0.5))
        self._pieces = cut(manifest, self.each) if manifest else []

    @property
    def signature(self) -> str:
        """The names of its pieces."""
        return "".join(map(name_of, self._pieces))

    def patched(self, stream: Callable[[int], Iterable[Data]], size: int) -> Iterator[Data]:
        """What a delta makes of it, in pieces; whether it is what it should be says its digest.

        Args:
            stream: gives the next so many bytes of the delta.
            size: bytes of what it makes, at most.

        Raises:
            LuggageError: it is none.
        """
        try:
            for first, count in json.loads(b"".join(stream(_length(b"".join(stream(DIGITS)))))):
                if first < FRESH or not 0 <= count <= size:
                    raise ValueError(f"{count} from {first}")
                for piece in stream(count) if first == FRESH else self._pieces[first : first + count]:
                    size -= len(piece)
                    if size < 0:
                        raise ValueError("it is longer than it should be")
                    yield piece
        except (ValueError, TypeError, RecursionError) as error:
            raise LuggageError(f"not a change of a manifest: {error}") from error


def _length(digits: bytes) -> int:
    """Bytes of the recipe, which may come from anybody.

    Raises:
        ValueError: it is none, or too long to be one.
    """
    length = int(digits)
    if not 0 <= length <= _LONGEST:
        raise ValueError(f"a recipe of {length} bytes")
    return length


def cut(manifest: bytes, each: int) -> List[bytes]:
    """A manifest in pieces of so many rows on average; a row that changes changes no other piece."""
    rows = manifest.split(_SEAM)
    pieces, start = [], 0
    for end, row in enumerate(rows[:-1], 1):
        if zlib.crc32(row) % each == 0:
            pieces.append(_SEAM.join((*rows[start:end], b"")))
            start = end
    return [*pieces, _SEAM.join(rows[start:])]


def name_of(piece: bytes) -> str:
    """So short that two may share one."""
    return blake2b(piece, digest_size=NAME).hexdigest()

"""How pieces of the stream of ``--sync`` and ``--collect`` are shrunk, and opened again at the other end.

Each piece (1 MiB at most, of many small files or a part of a big one) is shrunk as a whole and by itself, so
that any can be the first over a new connection, and one serves all hosts that ask for it.

zlib looks back 32 KiB: what is alike within a few files. Where files are alike that lie further apart, lzma
takes a tenth of the bytes in the same time, as it looks back over the whole piece; for all else it takes four
times as long for a fifth less. So it is for pieces that say most of their lines more than once. A Python
may have been built without it: each end says whether it has it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from launcher.model.luggage import CHUNK, DEFLATED, PLAIN, SQUEEZED, LuggageError, framed

if TYPE_CHECKING:
    from typing import Any, Dict, List

    from launcher.model.luggage import Data

#: Bytes that an attempt to shrink looks at, and the part of the size it must save to be worth it.
_PROBE, _WORTH = 32 * 1024, 0.95
#: Level 1 takes a third of the time of level 6 for a tenth more bytes.
_ZLIB_LEVEL = 1
#: Of a piece that is to be squeezed: the least size, in bytes (zlib sees about as much); how much is looked
#: at; and the part of that which its lines, each taken once, may be at most.
_NEAR, _GLIMPSE, _ALIKE = 64 * 1024, CHUNK // 2, 0.5


def can_squeeze() -> bool:
    """Whether this Python has lzma."""
    try:
        import lzma  # noqa: F401  only asked for
    except ImportError:
        return False
    return True


def packed(data: Data, squeeze: bool = False) -> bytes:
    """A frame with a piece of the stream, shrunk where that is worth it.

    Args:
        data: the piece.
        squeeze: both ends can (`can_squeeze`).
    """
    probe = memoryview(data)[:_PROBE]
    if len(zlib.compress(probe, _ZLIB_LEVEL)) >= len(probe) * _WORTH:
        return framed(PLAIN, data)
    if squeeze and len(data) > _NEAR and _says_again(bytes(memoryview(data)[:_GLIMPSE])):
        return framed(SQUEEZED, _squeezed(data))
    return framed(DEFLATED, zlib.compress(data, _ZLIB_LEVEL))


def _says_again(data: bytes) -> bool:
    """Whether most of it is lines that are in it more than once. A look at 512 KiB takes 1.5 ms."""
    lines = data.split(b"\n")
    return sum(map(len, set(lines))) + len(lines) < len(data) * _ALIKE


def _squeezed(data: Data) -> bytes:
    import lzma

    return lzma.compress(data, format=lzma.FORMAT_RAW, filters=_filters())


def _filters() -> List[Dict[str, Any]]:
    """Both ends must have the same. Packing takes 10 MiB of memory, unpacking little more than `CHUNK`."""
    import lzma

    return [
        {
            "id": lzma.FILTER_LZMA2,
            "mode": lzma.MODE_FAST,
            "mf": lzma.MF_HC4,
            "dict_size": CHUNK,
            "nice_len": 128,
            "depth": 8,
        }
    ]


def unpacked(kind: int, payload: bytes) -> bytes:
    """The piece of the stream in a frame.

    Raises:
        LuggageError: there is none in it, or more than `CHUNK`: no more than that is ever unpacked.
    """
    if kind == PLAIN and len(payload) <= CHUNK:
        return payload
    if kind == DEFLATED:
        return _inflated(payload)
    if kind == SQUEEZED:
        return _expanded(payload)
    raise _impossible(kind, payload)


def _inflated(payload: bytes) -> bytes:
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(payload, CHUNK)
    except zlib.error as error:
        raise _damaged(error) from error
    if not inflate.eof:
        raise _impossible(DEFLATED, payload)
    return data


def _expanded(payload: bytes) -> bytes:
    try:
        import lzma
    except ImportError as error:
        raise LuggageError("squeezed, and this Python has no lzma") from error
    expand = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_filters())
    try:
        data = expand.decompress(payload, CHUNK)
    except lzma.LZMAError as error:
        raise _damaged(error) from error
    if not expand.eof:
        raise _impossible(SQUEEZED, payload)
    return data


def _damaged(error: Exception) -> LuggageError:
    return LuggageError(f"damaged on the way: {error}")


def _impossible(kind: int, payload: bytes) -> LuggageError:
    return LuggageError(f"a frame of kind {kind} and {len(payload)} bytes can't be")

"""How much memory: ``512m``, ``2g``, ``1.5GiB``, as ``docker run --memory`` takes it."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
#: Engines count bytes in 64 bits, one of them for the sign.
_TOO_MUCH = 1 << 63
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_size(text: str) -> int:
    """Bytes.

    Raises:
        ValueError: with what was expected.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("expected a size such as 512m or 2g")
    size = int(float(match[1]) * (1 << _POWERS[match[2].lower()]))
    if size >= _TOO_MUCH:
        raise ValueError("expected a size below 8388608t, such as 512m or 2g")
    return size

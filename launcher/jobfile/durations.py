"""How long: ``90``, ``10s``, ``1.5m``, ``2h``, ``1d``, as ``timeout`` (coreutils) takes it."""

from __future__ import annotations

import re

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

#: The longest one, in days: timers of the system end at some 292 years.
MOST_DAYS = 10_000


def parse_duration(text: str) -> float:
    """Seconds, not negative.

    Raises:
        ValueError: with what was expected.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("expected seconds, or a number and s, m, h or d, as in 90 or 5m")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > MOST_DAYS * _SECONDS["d"]:
        raise ValueError(f"expected at most {MOST_DAYS}d")
    return seconds

"""Reads and writes times as people do: ``10m``, ``02:00``, ``yesterday 23:10``, ``2026-11-28 23:10``.

Times are seconds since the epoch. They are read and written in the time zone of this machine. No function
asks for the present time: the caller passes it.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

#: The forms that `parse_time` reads, for messages.
TIME_FORMS = "10m (ago; also s, h and d), 02:00, yesterday 23:10, or 2026-11-28 23:10"

_EXPECTED = f"expected a time: {TIME_FORMS}"
_UNITS = ("days", "hours", "minutes", "seconds")
_SPAN = r"(?=\d)(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9})s)?(?: ago)?"
_CLOCK = r"(\d\d?:\d\d(?::\d\d(?:\.\d{3}|\.\d{6})?)?)"
_TIME = rf"(?:(today|yesterday|\d{{4}}-\d\d-\d\d)(?:[ t]|$))?{_CLOCK}?(z|[+-]\d\d:?\d\d)?"


def parse_time(text: str, now: float) -> float:
    """Read a time that a user has written, see `TIME_FORMS`.

    A time of day without a day is the last one, so that ``23:10`` in the morning is that of yesterday. A day
    alone is its beginning. A date may be followed by its offset to UTC, as in ``2026-11-28T23:10:00+01:00``.

    Args:
        text: What the user has written.
        now: The present time.

    Raises:
        ValueError: The text is in no such form, or the day or time does not exist.
    """
    text = text.strip().lower()
    if span := re.fullmatch(_SPAN, text, re.ASCII):
        parts = {unit: int(number or 0) for unit, number in zip(_UNITS, span.groups(), strict=True)}
        return max(0.0, now - timedelta(**parts).total_seconds())
    found = re.fullmatch(_TIME, text, re.ASCII)
    if found is None or not (found[1] or found[2]) or (found[3] and not (found[1] and found[2])):
        raise ValueError(_EXPECTED)
    day, clock, offset = found.groups(default="")
    try:
        at = _time_of(_day_named(day, now), clock, offset)
        # A time of day without a day that is still to come was meant of yesterday.
        return at if day or at <= now else _time_of(_day_named("yesterday", now), clock)
    except (ValueError, OverflowError):
        raise ValueError(f"there is no such time; {_EXPECTED}") from None


def _day_named(name: str, now: float) -> str:
    """Return a day as an ISO date. The name is such a date already, ``yesterday``, or a word for today."""
    if name not in ("", "today", "yesterday"):
        return name
    return (date.fromtimestamp(now) - timedelta(days=name == "yesterday")).isoformat()


def _time_of(day: str, clock: str, offset: str = "") -> float:
    """Return the seconds since the epoch of a day and a time of day.

    Args:
        day: The day, as an ISO date.
        clock: The time of day, such as ``2:00`` or ``02:00:30.500``. Empty means the beginning of the day.
        offset: The offset to UTC. Empty means the time zone of this machine.

    Raises:
        ValueError: The day, the time of day or the offset does not exist.
        OverflowError: The system cannot compute with such an early or late time.
    """
    hours, _, rest = (clock or "00:00").partition(":")
    zone = "+00:00" if offset == "z" else f"{offset[:3]}:{offset[-2:]}" if offset else ""
    return datetime.fromisoformat(f"{day}T{hours:0>2}:{rest}{zone}").timestamp()


def time_in_words(at: float, now: float) -> str:
    """Return a time for people, to the minute: ``today 14:02``, ``yesterday 23:10``, ``2026-11-20 23:10``.

    `parse_time` reads it.

    Args:
        at: The time.
        now: The present time.
    """
    moment = datetime.fromtimestamp(at)
    names = {_day_named(name, now): name for name in ("today", "yesterday")}
    day = moment.date().isoformat()
    return f"{names.get(day, day)} {moment:%H:%M}"


def time_stamp(at: float) -> str:
    """Return a time to the second, for the start of a line: ``2026-11-28 23:10:05``."""
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def time_with_zone(at: float) -> str:
    """Return a time with its offset to UTC, which `parse_time` reads alike on any machine."""
    return datetime.fromtimestamp(at).astimezone().isoformat()

"""Reads and writes times as people do: ``10m``, ``02:00``, ``yesterday 23:10``, ``2026-11-28 23:10``.

Times are seconds since the epoch. They are read and written in the time zone of this machine. No function
asks for the present time: the caller passes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta

#: The forms that `parse_time` reads, for messages.
TIME_FORMS = "10m (ago; also s, h and d), 02:00, yesterday 23:10, or 2026-11-28 23:10"

_SPAN = r"(\d{1,9})([smhd])(?: ago)?"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = r"\d\d:\d\d(?::\d\d)?"
#: The beginning of a time that Python reads: the date, alone or before a time of day.
_DATE = r"\d{4}-\d\d-\d\d(?:[ T]|$)"


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
    text = re.sub(r"\b(\d):", r"0\1:", text.strip())  # Python reads hours of two digits.
    if span := re.fullmatch(_SPAN, text, re.ASCII):
        return max(0.0, now - int(span[1]) * _SECONDS[span[2]])
    days = _days(now)
    if re.fullmatch(_CLOCK, text, re.ASCII):
        text = f"{days['today']} {text}"
        # A time of day that is still to come means that of yesterday. The texts have one form, so that their
        # order is that of the times.
        if text > f"{datetime.fromtimestamp(now)}":
            text = text.replace(days["today"], days["yesterday"])
    for name, day in days.items():
        text = re.sub(rf"^{name}\b", day, text, flags=re.IGNORECASE)
    with suppress(ValueError, OverflowError):
        if re.match(_DATE, text, re.ASCII):
            return datetime.fromisoformat(text).timestamp()
    raise ValueError(f"expected a time: {TIME_FORMS}")


def _days(now: float) -> Mapping[str, str]:
    """Return the dates of today and of yesterday, by these words."""
    today = date.fromtimestamp(now)
    return {"today": today.isoformat(), "yesterday": (today - timedelta(days=1)).isoformat()}


def time_in_words(at: float, now: float) -> str:
    """Return a time for people, to the minute: ``today 14:02``, ``yesterday 23:10``, ``2026-11-20 23:10``.

    `parse_time` reads it.

    Args:
        at: The time.
        now: The present time.
    """
    moment = datetime.fromtimestamp(at)
    names = {day: name for name, day in _days(now).items()}
    day = moment.date().isoformat()
    return f"{names.get(day, day)} {moment:%H:%M}"


def time_stamp(at: float) -> str:
    """Return a time to the second, for the start of a line: ``2026-11-28 23:10:05``."""
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def time_with_zone(at: float) -> str:
    """Return a time with its offset to UTC, which `parse_time` reads alike on any machine."""
    return datetime.fromtimestamp(at).astimezone().isoformat()

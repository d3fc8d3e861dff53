"""Times as people write and read them, in a time zone with summer time."""

from __future__ import annotations

import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import clock_times
from tests.conftest import examples

ZONE = ZoneInfo("Europe/Berlin")
#: A Sunday morning.
NOW = datetime(2026, 11, 29, 8, 30, 15, tzinfo=ZONE).timestamp()


@pytest.fixture(autouse=True, scope="module")
def berlin():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds_ago"),
    [("10m", 600), ("90s", 90), ("2h", 7200), ("1d", 86400), ("10m ago", 600), ("0s", 0)],
)
def test_spans(text: str, seconds_ago: float):
    assert clock_times.parse_time(text, NOW) == NOW - seconds_ago


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("02:00", "2026-11-29 02:00"),
        ("2:00", "2026-11-29 02:00"),
        ("08:30:16", "2026-11-28 08:30:16"),
    ]
    + [("8:30", "2026-11-29 08:30"), ("23:10", "2026-11-28 23:10"), ("08:31", "2026-11-28 08:31")]
    + [("today 23:10", "2026-11-29 23:10"), ("Yesterday 2:00", "2026-11-28 02:00"), ("today", "2026-11-29")]
    + [
        ("yesterday", "2026-11-28"),
        ("2026-11-20", "2026-11-20"),
        ("2026-11-20T23:10:05", "2026-11-20 23:10:05"),
    ]
    + [("2026-11-20 23:10+00:00", "2026-11-21 00:10"), ("2026-11-20T23:10-05:00", "2026-11-21 05:10")]
    + [("2026-07-01 12:00", "2026-07-01 12:00"), ("2031-01-01", "2031-01-01")],
)
def test_days_and_times_of_day(text: str, local: str):
    expected = datetime.fromisoformat(local).replace(tzinfo=ZONE).timestamp()
    assert clock_times.parse_time(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "10",
        "m",
        "ago",
        "-10m",
        "10 minutes",
        "1m1h",
        "25:00",
        "2:60",
        "2",
        "02:0",
        "today10:00",
        "z",
        "10:00Z",
    ]
    + [
        "2026-02-30",
        "2026-11-28+01:00",
        "2026-11-28 10:00+99:00",
        "28.11.2026",
        "0001-01-01",
        "tomorrow",
        "now",
    ]
    + ["9999999999d", "١٠m", "10m\n10m", "yesterday yesterday", "02:00 yesterday"],
)
def test_what_is_no_time_is_answered_with_the_forms(text: str):
    with pytest.raises(ValueError, match="expected a time: 10m") as refused:
        clock_times.parse_time(text, NOW)
    assert clock_times.TIME_FORMS in str(refused.value)


@pytest.mark.parametrize(
    ("local", "words"),
    [("2026-11-29 08:30", "today 08:30"), ("2026-11-28 23:10", "yesterday 23:10")]
    + [("2026-11-27 23:59", "2026-11-27 23:59"), ("2026-11-30 00:00", "2026-11-30 00:00")],
)
def test_times_in_words(local: str, words: str):
    assert clock_times.time_in_words(datetime.fromisoformat(local).timestamp(), NOW) == words


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 4_000_000_000), st.floats(0, 1e9))
def test_what_is_written_can_be_read(at: int, later: float):
    """Only the hour that comes twice in autumn is read as the first of the two."""
    written = {60: clock_times.time_in_words(at, at + later), 1: clock_times.time_stamp(at)}
    for unit, text in written.items():
        assert (at - clock_times.parse_time(text, at + later)) % 3600 < unit
    assert clock_times.parse_time(clock_times.time_with_zone(at), at) == pytest.approx(at, abs=1e-5)

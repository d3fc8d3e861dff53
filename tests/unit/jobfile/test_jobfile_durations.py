"""How long something takes, as it is written."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import subprocess
import sys

import pytest

from launcher.jobfile.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("10s", 10), ("0.5", 0.5), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("10000d", 864_000_000)],
)  # fmt: skip
def test_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1e3", "inf", "nan", ".", "5 m", "5ms", "1h30m", "m", "1:30", "٣", "5\n"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="^expected seconds, or a number and s, m, h or d, as in 90 or 5m$"):
        parse_duration(text)


def test_the_longest() -> None:
    with pytest.raises(ValueError, match="^expected at most 10000d$"):
        parse_duration("10001d")


def test_what_reads_no_yaml_imports_none() -> None:
    code = (
        "import sys; from launcher.jobfile import parse_duration; from launcher.hostfile import parse, parse_inline;"
        "parse_inline('a:2,n[1-2]'); parse('a slots=2', 'f'); sys.exit('yaml' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

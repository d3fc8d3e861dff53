"""No value of ``-x NAME=VALUE`` is left on a command line, and no word of it grows."""

from __future__ import annotations

import pytest

from launcher.cli.masking import masked, overwritten


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-x", "A=b", "-xB=secret", "-x", "C", "D=e"], ["-x", "A=...", "-xB=...", "-x", "C", "D=e"]),
        (["-x", "A=", "--env", "B=kept"], ["-x", "A=...", "--env", "B=kept"]),
        ([], []),
    ],
)  # fmt: skip
def test_words(words: list[str], shown: list[str]):
    assert masked(words) == shown


def test_bytes_keep_their_places():
    said = b"launch\0-x\0A=secret\0-xB=\xff\0\xc3\xa4=kept\0"
    shown = overwritten(said)
    assert shown == b"launch\0-x\0A=...\0-xB=.\0\xc3\xa4=kept\0\0\0\0"
    assert len(shown) == len(said)

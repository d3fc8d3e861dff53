"""Words of a dry run: a shell reads what they were, a terminal obeys none of them."""

from __future__ import annotations

import os
import subprocess

import pytest

from launcher.cli import dryrun

WORDS = [
    "plain",
    "two words",
    "it's",
    "a\nb\t",
    "\x1b]0;title\a",
    "\x1b7'\\",
    "\x9b2J1",
    "\udcff1",
    "é\r",
    "",
]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_what_it_was(word: str):
    shown = dryrun._quoted(word)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    said = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True).stdout
    assert said == os.fsencode(word)


def test_words_without_controls_are_quoted_as_ever():
    assert [dryrun._quoted(word) for word in WORDS[:3]] == ["plain", "'two words'", "'it'\"'\"'s'"]

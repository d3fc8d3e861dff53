"""What is said when the other end does not do what was agreed, and how all of it is given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import TransportError
from launcher.luggage import talk
from launcher.luggage.packing import pack
from launcher.luggage.progress import Silent
from launcher.luggage.requests import parse_syncs
from launcher.luggage.sync import sync
from launcher.luggage.talk import Conversation
from launcher.model.luggage import PLAIN, Frames, LuggageError, framed, spell, tell, unspell
from tests.unit.luggage.hosts import LocalHosts

_STUBS = "tests.unit.luggage.errand_stubs:"


def talked(hosts: LocalHosts, entry: str) -> str:
    """Why talking to this errand fails."""
    with (
        Conversation(hosts, "a", _STUBS + entry, {}, lambda: True) as conversation,
        pytest.raises(TransportError) as caught,
    ):
        conversation.answer()
    return str(caught.value)


def test_an_errand_that_fails_says_its_last_words(hosts: LocalHosts):
    assert talked(hosts, "dies") == (
        "a: the copying there ended too early: it ended with 1; it said: ValueError: never thought of this"
    )


def test_an_errand_that_babbles(hosts: LocalHosts):
    text = talked(hosts, "babbles")
    assert text == "a: the two ends do not understand each other: a frame of kind 0 and 0 bytes can't be"


def test_an_errand_that_is_silent(hosts: LocalHosts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(talk, "_SILENCE", 0.3)
    assert talked(hosts, "sleeps") == "a: silent for 0 s while files were copied"


def test_an_errand_that_never_says_a_word(hosts: LocalHosts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(talk, "_FIRST_WORD", 0.3)
    assert talked(hosts, "sleeps").startswith("a: nothing of ours has started there in 0 s; ")


class Impatient(Silent):
    """Somebody presses Ctrl-C while files travel."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def tick(self) -> None:
        raise KeyboardInterrupt

    def end(self, summary: str) -> None:
        self.ended.append(summary)


def test_giving_up_leaves_nothing_and_shows_no_success(hosts: LocalHosts, folder: Path, tmp_path: Path):
    with open(folder / "big", "wb") as file:
        file.truncate(400_000_000)
    packed_folders = pack(parse_syncs([str(folder)]), str(tmp_path))
    progress = Impatient()
    with pytest.raises(KeyboardInterrupt):
        sync(hosts, ("a", "b", "c"), packed_folders, "job1", progress, 2)
    assert progress.ended == [""]
    assert not any((hosts.cache(host) / "work/job1").exists() for host in "abc")


def test_frames_in_any_pieces():
    whole = tell(need="x") + framed(PLAIN, b"abc") + framed(PLAIN, b"")
    for size in (1, 2, 7, 100):
        frames = Frames()
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        heard = [frame for piece in pieces for frame in frames.feed(piece)]
        assert heard == [(1, b'{"need":"x"}'), (PLAIN, b"abc"), (PLAIN, b"")]


def test_numbers_in_short():
    numbers = [0, 1, 2, 5, 7, 8]
    assert spell(numbers) == "0-2,5,7-8"
    assert unspell("0-2,5,7-8", 9) == numbers
    assert unspell("", 0) == []
    for text in ("9", "0-9", "x", "-1", "1-x"):
        with pytest.raises(LuggageError):
            unspell(text, 9)

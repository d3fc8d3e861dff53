"""A manifest told to whoever has an earlier one: what comes out, and how little it takes."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence

import pytest

from launcher.luggage.manifests import Manifests, delta
from launcher.luggage.walk import Tree
from launcher.model.delta import Base
from launcher.model.luggage import FILE, FOLDER, Entry, Frames, LuggageError, digest_of, manifest_of
from launcher.model.shrinking import unpacked


def entries(count: int, seed: int = 0) -> list[Entry]:
    """So many files, in folders of forty."""
    dice = random.Random(seed)
    folders = [Entry(f"package{number}", FOLDER, 0o755) for number in range(0, count, 40)]
    files = [
        Entry(f"package{number // 40 * 40}/module{number}.py", FILE, 0o644, dice.randrange(9999),
              dice.randrange(1 << 60), digest_of(b"%d" % dice.randrange(1 << 60)))
        for number in range(count)
    ]  # fmt: skip
    return [*folders, *files]


def changed(found: Sequence[Entry], *indexes: int) -> list[Entry]:
    """The same, but that these have other contents."""
    news = {index: found[index]._replace(content=digest_of(b"new %d" % index)) for index in indexes}
    return [news.get(index, entry) for index, entry in enumerate(found)]


def patched(base: Base, told: bytes) -> bytes:
    file = io.BytesIO(told)
    return b"".join(base.patched(lambda size: [file.read(size)], 1 << 20))


HAD = entries(2000)
ODD = [Entry(name, FILE, 0o644, 1, 1, "0") for name in ("a],[b", '"],["', "\udcff", "-1", "é\n")]


@pytest.mark.parametrize(
    ("had", "has", "most"),
    [
        (HAD, HAD, 30),
        (HAD, changed(HAD, 700), 12_000),
        (HAD, changed(HAD, 50), 12_000),
        (HAD, changed(HAD, len(HAD) - 1), 12_000),
        (HAD, HAD[1:], 12_000),
        (HAD, HAD[:-1], 12_000),
        (HAD, [*HAD, *ODD], 12_000),
        ([*HAD, *ODD], HAD, 12_000),
        (HAD, entries(2000, seed=1), 300_000),
        (HAD, [], 30),
        ([], HAD, 300_000),
        ([], [], 30),
        (ODD, ODD[:3], 1000),
    ],
)
def test_what_comes_is_the_manifest_as_it_is(had: list[Entry], has: list[Entry], most: int):
    base, wanted = Base(manifest_of(had)), manifest_of(has)
    told = delta(wanted, base.each, base.signature)
    assert patched(base, told) == wanted
    assert len(told) <= most
    assert len(base.signature) <= 4000


def test_whoever_has_none_is_told_all_of_it():
    base, wanted = Base(b""), manifest_of(HAD)
    assert base.signature == ""
    told = delta(wanted, base.each, base.signature)
    assert patched(base, told) == wanted
    assert len(told) < len(wanted) + 40


def test_many_changes_at_random():
    dice = random.Random(1)
    for _ in range(30):
        had = entries(dice.randrange(300), seed=dice.randrange(9))
        has = [entry for entry in changed(had, *range(0, len(had), 7)) if dice.random() > 0.1]
        base, wanted = Base(manifest_of(had)), manifest_of(has)
        assert patched(base, delta(wanted, base.each, base.signature)) == wanted


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"what?!!!",
        b"00000003{}}",
        b"00000004[[1]",
        b"00000005[[1]]",
        b"00000003[7]",
        b"00000004null",
        b"-0000001",
        b"00000009[[-1,-5]]",
        b"00000008[[-2,1]]",
        b"90000000[]",
        b"00100000" + b"[" * 100_000,
    ],
)
def test_what_is_no_delta_is_refused(told: bytes):
    with pytest.raises(LuggageError, match="not a change of a manifest"):
        patched(Base(manifest_of(HAD)), told)


def test_what_becomes_longer_than_it_should_is_refused():
    base = Base(manifest_of(HAD))
    told = json.dumps([[0, 1]] * 1000).encode()
    file = io.BytesIO(b"%08d" % len(told) + told)
    made = 0
    with pytest.raises(LuggageError, match="longer than it should be"):
        for piece in base.patched(lambda size: [file.read(size)], 5000):
            made += len(piece)
    assert made <= 5000


@pytest.mark.parametrize("each", [0, -3])
def test_pieces_that_can_not_be_are_refused(each: int):
    with pytest.raises(LuggageError, match="can't be cut"):
        delta(manifest_of(HAD), each, "0" * 12)


def test_hosts_that_have_the_same_get_the_same_frames():
    tree = Tree("/nowhere", HAD, manifest_of(HAD), "", ())
    made = Manifests([tree])
    base = Base(manifest_of(changed(HAD, 9)))
    frames = made.frames(0, base.each, base.signature)
    assert made.frames(0, base.each, base.signature) is frames
    told = b"".join(unpacked(*one) for frame in frames for one in Frames().feed(frame))
    assert patched(base, told) == tree.manifest
    for seed in range(5):
        other = Base(manifest_of(entries(50, seed)))
        made.frames(0, other.each, other.signature)
    assert made.frames(0, base.each, base.signature) is not frames, "kept for ever"

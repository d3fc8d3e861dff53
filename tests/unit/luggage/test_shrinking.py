"""How pieces of the stream are shrunk: which way for what, and what is refused at the other end."""

from __future__ import annotations

import lzma
import random
import sys
import zlib
from pathlib import Path

import pytest

from launcher.luggage import collect as collecting
from launcher.luggage import parcels
from launcher.luggage.collect import collect
from launcher.luggage.progress import Silent
from launcher.luggage.requests import Wanted
from launcher.model import shrinking
from launcher.model.luggage import CHUNK, DEFLATED, PLAIN, SQUEEZED, Frames, LuggageError, framed
from launcher.model.shrinking import can_squeeze, packed, unpacked
from tests.unit.luggage.conftest import Bring
from tests.unit.luggage.hosts import LocalHosts, snapshot


def words(count: int, seed: int) -> list[str]:
    """Lines that nothing but themselves repeats."""
    chance = random.Random(seed)
    return [f"{chance.getrandbits(200):x} = {chance.getrandbits(99):x}\n" for _ in range(count)]


def alike(size: int) -> bytes:
    """Files of 50 lines each, from a text of 100 kB."""
    lines, chance = words(1300, 1), random.Random(2)
    text = ""
    while len(text) < size:
        start = chance.randrange(1250)
        text += "".join(lines[start : start + 50])
    return text[:size].encode()


def frame_of(data: bytes, squeeze: bool = True) -> tuple[int, bytes]:
    ((kind, payload),) = Frames().feed(packed(data, squeeze))
    return kind, payload


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize(
    "data", [b"", b"x", b"x" * CHUNK, bytes(range(256)) * 400, alike(CHUNK), b"\n" * CHUNK]
)
def test_what_is_packed_is_unpacked(data: bytes, squeeze: bool):
    assert unpacked(*frame_of(data, squeeze)) == data


def test_each_goes_the_way_that_suits_it():
    kind, payload = frame_of(alike(CHUNK))
    assert kind == SQUEEZED
    assert len(payload) * 5 < len(zlib.compress(alike(CHUNK), 9))
    assert frame_of(alike(CHUNK), squeeze=False)[0] == DEFLATED
    assert frame_of("".join(words(9000, 3)).encode())[0] == DEFLATED, "no line comes again"
    assert frame_of(alike(60_000))[0] == DEFLATED, "zlib sees all of it"
    noise = random.Random(4).randbytes(CHUNK)
    assert frame_of(noise) == (PLAIN, noise)


def test_who_has_no_lzma_says_so_and_refuses_what_it_can_not_unpack(monkeypatch: pytest.MonkeyPatch):
    assert can_squeeze()
    kind, payload = frame_of(alike(CHUNK))
    monkeypatch.setitem(sys.modules, "lzma", None)
    assert not can_squeeze()
    with pytest.raises(LuggageError, match="this Python has no lzma"):
        unpacked(kind, payload)


def raw(data: bytes) -> bytes:
    return lzma.compress(data, format=lzma.FORMAT_RAW, filters=shrinking._filters())


@pytest.mark.parametrize(
    "frame",
    [
        (DEFLATED, zlib.compress(bytes(CHUNK + 1))),
        (DEFLATED, zlib.compress(bytes(30 << 20), 9)),
        (DEFLATED, zlib.compress(b"x" * 100)[:-6]),
        (DEFLATED, b"not deflated"),
        (SQUEEZED, raw(bytes(CHUNK + 1))),
        (SQUEEZED, raw(bytes(30 << 20))),
        (SQUEEZED, raw(b"x" * 100)[:-6]),
        (SQUEEZED, b"not squeezed"),
        (SQUEEZED, b""),
        (PLAIN, bytes(CHUNK + 1)),
        (1, b"{}"),
    ],
    ids=lambda frame: f"{frame[0]}-{len(frame[1])}",
)
def test_what_is_damaged_or_unpacks_to_too_much_is_refused(frame: tuple[int, bytes]):
    with pytest.raises(LuggageError, match="can't be|damaged on the way"):
        unpacked(*frame)


def test_frames_of_other_kinds_are_refused():
    with pytest.raises(LuggageError):
        Frames().feed(framed(5, b""))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """200 files that are alike, 1 MB in all."""
    root = tmp_path / "many"
    root.mkdir()
    text = alike(1_000_000)
    for number in range(200):
        (root / f"{number:03}").write_bytes(text[number * 5000 : number * 5000 + 5000])
    return root


@pytest.mark.parametrize("lacking", ["nobody", "host", "launcher"])
def test_files_that_are_alike_travel_together(
    lacking: str, many: Path, hosts: LocalHosts, bring: Bring, monkeypatch: pytest.MonkeyPatch
):
    """Whoever has no lzma gets and sends more, and all arrives as it is."""
    if lacking == "host":
        hosts.lacking = ("lzma", "_lzma")
    if lacking == "launcher":
        monkeypatch.setattr(parcels, "can_squeeze", lambda: False)
        monkeypatch.setattr(collecting, "can_squeeze", lambda: False)
    there = Path(bring(many, to=("a", "b")).workdirs["b"])
    assert snapshot(there) == snapshot(many)
    assert (max(errand.sent for errand in hosts.errands) < 150_000) == (lacking == "nobody")
    out = many.parent / "out"
    fetched = collect(hosts, [Wanted("worker/0", "a", "", str(many), str(out))], "job1", Silent(), 1)
    assert fetched.files == 200 and not fetched.failures
    assert snapshot(out / "many") == snapshot(many)
    assert (hosts.errands[-1].received < 150_000) == (lacking == "nobody")

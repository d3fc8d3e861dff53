"""Whatever happens to the connections, what is written at one end is read once and in order at the other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import WireError
from launcher.stream import Refused, Stream, refusal
from launcher.stream.frames import FRAME
from launcher.stream.halves import ACK_BYTES, ACK_SECONDS

SESSION = b"a session"
KEEP = 4000
TAKE = 1000


class End:
    """One end, its application, and what is on its way to the other."""

    def __init__(self, keep: int = KEEP, take: int = TAKE, ping_every: float | None = None) -> None:
        self.stream = Stream(SESSION, keep, take, 0.0, ping_every)
        self.to_write = bytearray()
        self.written = bytearray()
        self.read = bytearray()
        self.wire = bytearray()

    def write(self, size: int) -> None:
        """What there is room for of the next bytes; each differs from its neighbours."""
        start = len(self.written)
        data = bytes((n * 7 + n // 251) % 256 for n in range(start, start + min(size, self.stream.room)))
        if data:
            self.stream.write(data)
            self.written += data

    def take(self, size: int) -> None:
        """Read up to so many bytes."""
        for piece in self.stream.incoming():
            part = bytes(piece[:size])
            self.read += part
            self.stream.took(len(part))
            size -= len(part)
            if not size:
                return

    def send(self, now: float, size: int = 1 << 30) -> None:
        """Put up to so many bytes on the wire."""
        while size and (data := self.stream.output(now)[:size]):
            self.wire += data
            self.stream.sent(len(data))
            size -= len(data)


class Pair:
    """Two ends, the connection between them, and the clock."""

    def __init__(self, ping_every: float | None = 2.0, **kept: int) -> None:
        self.near = End(ping_every=ping_every, **kept)
        self.far = End(**kept)
        self.now = 0.0

    def connect(self) -> None:
        """A new connection: what was on its way on the old one is lost."""
        for end in (self.near, self.far):
            end.wire.clear()
            end.stream.connect()

    def cut(self) -> None:
        """The connection breaks."""
        for end in (self.near, self.far):
            end.wire.clear()
            end.stream.disconnect()

    def carry(self, to: End, size: int) -> None:
        """Deliver the next bytes on the wire to this end."""
        source = self.far if to is self.near else self.near
        data = bytes(source.wire[:size])
        del source.wire[:size]
        if data:
            to.stream.receive(data, self.now)

    def settle(self, seconds: int = 0) -> None:
        """Let everything flow until nothing moves any more, and so many times again a second later."""
        for _ in range(1000):
            for end in (self.near, self.far):
                end.send(self.now)
                end.take(1 << 30)
            if self.near.wire or self.far.wire:
                self.carry(self.near, 1 << 30)
                self.carry(self.far, 1 << 30)
            elif seconds:
                seconds -= 1
                self.now += 1
            else:
                return
        pytest.fail("it never settles")


ENDS = st.sampled_from(["near", "far"])
SIZES = st.integers(1, 1500)
STEPS = st.one_of(
    st.tuples(st.just("write"), ENDS, SIZES),
    st.tuples(st.just("take"), ENDS, SIZES),
    st.tuples(st.just("send"), ENDS, SIZES),
    st.tuples(st.just("carry"), ENDS, SIZES),
    st.tuples(st.just("finish"), ENDS, st.just(0)),
    st.tuples(st.just("wait"), st.just("near"), st.integers(1, 3)),
    st.tuples(st.just("connect"), st.just("near"), st.just(0)),
    st.tuples(st.just("cut"), st.just("near"), st.just(0)),
)


def perform(pair: Pair, step: str, name: str, size: int) -> None:
    end: End = getattr(pair, name)
    if step in ("write", "take"):
        getattr(end, step)(size)
    elif step == "send":
        end.send(pair.now, size)
    elif step == "carry":
        pair.carry(end, size)
    elif step == "finish":
        end.stream.finish(f"{name} is done")
    elif step == "wait":
        pair.now += size
    else:
        getattr(pair, step)()


@given(st.lists(STEPS, max_size=120))
@settings(max_examples=400, deadline=None)
def test_everything_arrives_once_and_in_order_whatever_breaks(steps: list[tuple[str, str, int]]):
    pair = Pair()
    for step in steps:
        perform(pair, *step)
        for end, other in ((pair.near, pair.far), (pair.far, pair.near)):
            assert other.written.startswith(end.read)
    pair.connect()
    for end in (pair.near, pair.far):
        end.stream.finish("done")
    pair.settle(20)
    assert pair.near.read == pair.far.written
    assert pair.far.read == pair.near.written
    for end in (pair.near, pair.far):
        assert end.stream.delivered
        assert end.stream.last_words is not None


@given(st.integers(1, 3000), st.integers(1, 3000))
@settings(max_examples=100, deadline=None)
def test_a_connection_that_breaks_at_any_byte(first: int, second: int):
    """Twice, in the middle of whatever it is; then all is there."""
    pair = Pair(take=4000)
    pair.near.write(1000)
    pair.far.write(2500)
    for cut in (first, second):
        pair.connect()
        for end in (pair.near, pair.far):
            end.send(0)
        pair.carry(pair.near, cut)
        pair.carry(pair.far, cut)
        for end in (pair.near, pair.far):
            end.send(0)
        pair.carry(pair.near, cut)
        pair.carry(pair.far, cut)
        pair.cut()
    pair.connect()
    pair.settle()
    assert (pair.near.read, pair.far.read) == (pair.far.written, pair.near.written)


def said(end: End) -> str | None:
    """What an end heard at the end of the other one."""
    return end.stream.last_words


def connected(**kept: int) -> Pair:
    pair = Pair(**kept)
    pair.connect()
    pair.settle()
    return pair


def test_a_reader_that_takes_nothing_holds_up_the_writer_and_memory_is_bounded():
    pair = connected()
    for _ in range(50):
        pair.far.write(1000)
        pair.far.send(pair.now)
        pair.carry(pair.near, 1 << 30)
        pair.now += 3
        pair.near.send(pair.now)
        pair.carry(pair.far, 1 << 30)
    assert sum(map(len, pair.near.stream.incoming())) == TAKE
    assert len(pair.far.written) == TAKE + KEEP, "what has arrived makes room, and nothing else does"
    assert pair.far.stream.room == 0
    assert pair.far.stream.heard_at == pair.now, "pings and acknowledgements pass all the same"
    pair.near.take(400)
    pair.now += ACK_SECONDS
    pair.near.send(pair.now)
    pair.carry(pair.far, 1 << 30)
    pair.far.send(pair.now)
    pair.carry(pair.near, 1 << 30)
    assert sum(map(len, pair.near.stream.incoming())) == TAKE


def test_the_end_comes_after_the_last_byte_and_is_acknowledged_at_once():
    pair = connected()
    pair.far.write(2 * TAKE)
    pair.far.stream.finish("all went well, é")
    assert pair.far.stream.room == 0
    pair.far.send(pair.now)
    pair.carry(pair.near, 1 << 30)
    assert said(pair.near) is None
    pair.settle(5)
    assert len(pair.near.read) == 2 * TAKE
    assert said(pair.near) == "all went well, é"
    assert pair.far.stream.delivered
    assert not pair.near.stream.delivered


def test_an_end_whose_acknowledgement_is_lost_is_sent_again():
    pair = connected()
    pair.far.stream.finish("bye")
    pair.far.send(0)
    pair.carry(pair.near, 1 << 30)
    pair.cut()
    assert pair.near.stream.last_words == "bye"
    assert not pair.far.stream.delivered
    pair.connect()
    pair.settle()
    assert pair.far.stream.delivered


def test_acknowledgements_come_after_enough_bytes_or_some_time():
    pair = connected(keep=1 << 22, take=1 << 22)
    pair.far.stream.write(b"x" * 100)
    pair.settle()
    assert pair.near.stream.next_due() == ACK_SECONDS
    assert pair.far.stream.room == (1 << 22) - 100
    pair.now = ACK_SECONDS
    pair.settle()
    assert pair.far.stream.room == 1 << 22
    pair.far.stream.write(b"x" * ACK_BYTES)
    pair.settle()
    assert pair.far.stream.room == 1 << 22


def test_pings_are_answered():
    pair = connected()
    assert pair.near.stream.next_due() == 2.0
    assert pair.far.stream.next_due() is None
    pair.now = 2.0
    pair.near.send(2.0)
    pair.carry(pair.far, 1 << 30)
    assert pair.far.stream.heard_at == 2.0
    assert pair.far.stream.next_due() == 0.0
    pair.far.send(2.0)
    pair.carry(pair.near, 1 << 30)
    assert pair.near.stream.heard_at == 2.0
    assert pair.near.stream.next_due() == 4.0


def test_small_pieces_travel_together_and_large_ones_are_cut():
    end = End(keep=1 << 22)
    other = End(take=1 << 22)
    for one in (end, other):
        one.stream.connect()
    other.send(0)
    end.stream.receive(bytes(other.wire), 0)
    end.send(0)
    end.wire.clear()
    for _ in range(100):
        end.stream.write(b"line\n")
    end.stream.write(b"x" * 3 * FRAME)
    sizes = []
    while frame := end.stream.output(0):
        sizes.append(len(frame))
        end.stream.sent(len(frame))
    assert len(sizes) == 4
    assert max(sizes) < FRAME + 100


def test_nothing_is_said_without_a_connection():
    end = End(ping_every=2.0)
    end.write(10)
    assert not end.stream.output(100.0)
    assert end.stream.next_due() is None


def test_a_refusal():
    end = End()
    end.stream.connect()
    with pytest.raises(Refused, match="nobody is here"):
        end.stream.receive(refusal("nobody is here"), 0)


def test_the_greeting_of_another_session():
    end, other = End(), Stream(b"another", KEEP, TAKE, 0.0)
    end.stream.connect()
    other.connect()
    with pytest.raises(WireError, match="another session"):
        end.stream.receive(bytes(other.output(0)), 0)


@given(st.binary(min_size=13, max_size=60))
@settings(max_examples=300, deadline=None)
def test_what_is_not_ours_is_found_or_waited_for_and_never_handed_on(noise: bytes):
    end = End()
    end.stream.connect()
    try:
        end.stream.receive(noise, 0)
    except WireError:
        pass
    assert not end.stream.incoming()

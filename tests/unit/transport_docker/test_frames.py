"""The stream of an attached container, cut anywhere."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.transport.docker.frames import Demultiplexer

PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12)


def framed(stream: int, data: bytes) -> bytes:
    """As the engine sends it."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@settings(deadline=None)
@given(PIECES, st.lists(st.integers(1, 30), max_size=50))
def test_it_does_not_matter_where_it_is_cut(pieces: list[tuple[int, bytes]], cuts: list[int]):
    data = b"".join(framed(*piece) for piece in pieces)
    it = Demultiplexer()
    out = errors = b""
    for size in [*cuts, len(data) or 1]:
        said, complained = it.feed(data[:size])
        assert len(said) + len(complained) <= size
        out, errors, data = out + said, errors + complained, data[size:]
    assert out == b"".join(piece for stream, piece in pieces if stream == 1)
    assert errors == b"".join(piece for stream, piece in pieces if stream == 2)

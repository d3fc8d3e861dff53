"""JSON documents with odd values in any place, for readers that must not trust what they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values of a JSON document: its own is first, and empty."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from paths(each, (*path, key))


@st.composite
def with_odd_values(draw: st.DrawFn, documents: Sequence[Any], odd: Sequence[Any], most: int = 1) -> Any:
    """Draw one of the documents, in which up to so many values are replaced by odd ones."""
    document = deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, most))):
        *parents, last = draw(st.sampled_from([*paths(document)][1:]))
        where = document
        for key in parents:
            where = where[key]
        where[last] = deepcopy(draw(st.sampled_from(odd)))
    return document

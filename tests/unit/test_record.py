"""Records behave as the named tuples of `typing`."""

from __future__ import annotations

import copy
import pickle
import typing
from collections.abc import Callable
from typing import Any

import pytest

from launcher.common.record import Record, replace


class Named(typing.NamedTuple):
    host: str
    port: int = 22
    tasks: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


class Recorded(Record):
    host: str
    port: int = 22
    tasks: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


USES: dict[str, Callable[[Any], object]] = {
    "by position": lambda kind: tuple(kind("n", 1, ("a",))),
    "by name": lambda kind: tuple(kind(port=1, host="n")),
    "defaults": lambda kind: tuple(kind("n")),
    "attributes": lambda kind: (kind("n").host, kind("n").port, kind("n").place),
    "unpacked": lambda kind: [*kind("n")],
    "repr": lambda kind: repr(kind("n")).partition("(")[2],
    "as dict": lambda kind: kind("n")._asdict(),
    "made": lambda kind: tuple(kind._make(iter(["n", 1, ()]))),
    "fields": lambda kind: (kind._fields, kind._field_defaults),
    "hints": lambda kind: typing.get_type_hints(kind),
    "equal": lambda kind: (kind("n") == kind("n", 22), kind("n") == kind("m"), kind("n") != kind("n")),
    "hash": lambda kind: len({kind("n"), kind("n", 22), kind("m")}),
    "copied": lambda kind: (copy.copy(kind("n")) == kind("n"), copy.deepcopy(kind("n")) == kind("n")),
    "pickled": lambda kind: [
        (type(found) is kind, tuple(found))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        for found in [pickle.loads(pickle.dumps(kind("n", 5), protocol))]
    ],
}
FAULTS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda kind: kind(),
    "too many": lambda kind: kind("n", 1, (), 4),
    "unknown": lambda kind: kind("n", user="me"),
    "twice": lambda kind: kind("n", host="m"),
    "missing": lambda kind: kind(port=1),
}


@pytest.mark.parametrize("use", USES)
def test_a_record_is_used_as_a_named_tuple(use: str) -> None:
    assert USES[use](Recorded) == USES[use](Named)


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_values_are_type_errors(fault: str) -> None:
    for kind in (Named, Recorded):
        with pytest.raises(TypeError):
            FAULTS[fault](kind)


def test_a_record_cannot_be_changed() -> None:
    for name in ("port", "other"):
        with pytest.raises(AttributeError):
            setattr(Recorded("n"), name, 1)
    with pytest.raises(TypeError, match="user"):
        replace(Recorded("n"), user="me")


def test_a_copy_has_other_values() -> None:
    assert replace(Recorded("n"), port=3, tasks=("b",)) == Recorded("n", 3, ("b",))

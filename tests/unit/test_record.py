"""Records behave as frozen dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import typing
from collections.abc import Callable
from typing import Any

import pytest

from launcher.common.record import Record, as_dict, from_attributes, replace


class Recorded(Record):
    host: str
    port: int = 22
    tasks: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True)
class Frozen:
    host: str
    port: int = 22
    tasks: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


class Extended(Recorded):
    user: str = "me"


class Renamed(Extended):
    """Has the fields of `Extended`."""


class Empty(Record):
    """Has no field."""


def values(record: Any) -> tuple[object, ...]:
    return (record.host, record.port, record.tasks)


USES: dict[str, Callable[[Any], object]] = {
    "by position": lambda kind: values(kind("n", 1, ("a",))),
    "by name": lambda kind: values(kind(tasks=("a",), port=1, host="n")),
    "by both": lambda kind: values(kind("n", tasks=("a",), port=1)),
    "defaults": lambda kind: values(kind("n")),
    "property": lambda kind: kind("n").place,
    "repr": lambda kind: repr(kind("n")).partition("(")[2],
    "hints": lambda kind: typing.get_type_hints(kind),
    "equal": lambda kind: (kind("n") == kind("n", 22), kind("n") == kind("m")),
    "unequal": lambda kind: (kind("n") != kind("n", 22), kind("n") != kind("m")),
    "as a tuple": lambda kind: [("n", 22, ())].count(kind("n")) + [kind("n")].count(("n", 22, ())),
    "hash": lambda kind: len({kind("n"), kind("n", 22), kind("m")}),
    "copied": lambda kind: (copy.copy(kind("n")) == kind("n"), copy.deepcopy(kind("n")) == kind("n")),
    "pickled": lambda kind: [
        pickle.loads(pickle.dumps(kind("n", 5), protocol)) == kind("n", 5)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ],
}
FAULTS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda kind: kind(),
    "too many": lambda kind: kind("n", 1, (), 4),
    "too many, and one by name": lambda kind: kind("n", 1, (), 4, port=5),
    "unknown": lambda kind: kind("n", user="me"),
    "twice": lambda kind: kind("n", host="m"),
    "missing": lambda kind: kind(port=1),
}


@pytest.mark.parametrize("use", USES)
def test_a_record_is_used_as_a_frozen_dataclass(use: str) -> None:
    assert USES[use](Recorded) == USES[use](Frozen)


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_values_are_type_errors(fault: str) -> None:
    for kind in (Frozen, Recorded):
        with pytest.raises(TypeError):
            FAULTS[fault](kind)


def test_an_error_names_the_class_and_the_field() -> None:
    with pytest.raises(TypeError, match=r"Recorded.*host"):
        FAULTS["missing"](Recorded)
    with pytest.raises(TypeError, match=r"Recorded.*user"):
        FAULTS["unknown"](Recorded)


def test_a_record_is_true() -> None:
    assert Empty()


def test_a_record_cannot_be_changed() -> None:
    for name in ("port", "other"):
        with pytest.raises(AttributeError):
            setattr(Recorded("n"), name, 1)


def test_replace_makes_a_changed_copy() -> None:
    first = Recorded("n", tasks=("a",))
    assert replace(first, port=3, tasks=("b",)) == Recorded("n", 3, ("b",))
    assert first == Recorded("n", tasks=("a",))
    assert type(replace(first)) is Recorded


def test_replace_refuses_an_unknown_field() -> None:
    with pytest.raises(TypeError, match="user"):
        replace(Recorded("n"), user="me")  # type: ignore[call-arg]


def test_fields_have_the_order_of_the_class() -> None:
    assert Recorded._fields == ("host", "port", "tasks")
    assert [*as_dict(Recorded("n")).items()] == [("host", "n"), ("port", 22), ("tasks", ())]


def test_a_record_has_the_fields_of_the_one_that_it_extends() -> None:
    assert as_dict(Extended("n")) == {"host": "n", "port": 22, "tasks": (), "user": "me"}
    assert as_dict(Renamed("n", 1, user="you")) == {"host": "n", "port": 1, "tasks": (), "user": "you"}
    extended, renamed = Extended("n"), Renamed("n")
    assert (renamed.place, renamed.user, type(replace(renamed, port=1))) == ("n:22", "me", Renamed)
    assert len({Recorded("n"), extended, renamed}) == 3, "records of two classes differ"
    assert [extended].count(renamed) == 0


def test_a_record_is_made_from_attributes_of_another_object() -> None:
    assert from_attributes(Recorded, Frozen("n", 5)) == Recorded("n", 5)
    assert from_attributes(Recorded, Frozen("n", 5), port=6) == Recorded("n", 6)
    with pytest.raises(AttributeError, match="tasks"):
        from_attributes(Recorded, object(), host="n", port=1)
    with pytest.raises(TypeError, match="prt"):
        from_attributes(Recorded, Frozen("n", 5), prt=6)

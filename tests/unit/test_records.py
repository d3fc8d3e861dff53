"""Our ``NamedTuple`` does what the one of ``typing`` does, as far as the records need it."""

from __future__ import annotations

import copy
import operator
import pickle
import typing

import pytest

from launcher.model import facts, host, job, orders, plan, report, status
from launcher.model.records import NamedTuple


class Ours(NamedTuple):
    """A record."""

    name: str
    count: int = 1  # type: ignore[assignment]
    more: tuple[int, ...] = ()

    @property
    def twice(self) -> int:
        """For the test."""
        return self.count * 2


class Theirs(typing.NamedTuple):
    """A record."""

    name: str
    count: int = 1  # type: ignore[assignment]
    more: tuple[int, ...] = ()


CASES: list[tuple[tuple[typing.Any, ...], dict[str, typing.Any]]] = [
    (("a",), {}),
    (("a", 2), {}),
    (("a", 2, (3,)), {}),
    ((), {"name": "a"}),
    (("a",), {"more": (1,), "count": 0}),
]


@pytest.mark.parametrize(("args", "named"), CASES)
def test_it_is_made_as_the_original_is(args: typing.Any, named: typing.Any):
    ours, theirs = Ours(*args, **named), Theirs(*args, **named)
    assert tuple(ours) == tuple(theirs)
    assert ours._asdict() == theirs._asdict()
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert tuple(ours._replace(count=7)) == tuple(theirs._replace(count=7))
    assert (ours.name, ours.count, ours.more) == (theirs.name, theirs.count, theirs.more)
    assert ours == Ours._make(tuple(theirs)) and hash(ours) == hash(theirs)
    assert copy.deepcopy(ours) == pickle.loads(pickle.dumps(ours)) == ours


@pytest.mark.parametrize(
    ("args", "named"), [((), {}), (("a", 1, (), 4), {}), (("a",), {"name": "b"}), (("a",), {"nmae": 1})]
)
def test_it_refuses_what_the_original_refuses(args: typing.Any, named: typing.Any):
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind(*args, **named)


def test_it_is_frozen_and_keeps_its_methods():
    assert Ours("a", 4).twice == 8
    assert Ours.__doc__ == "A record."
    assert Ours._fields == Theirs._fields and Ours._field_defaults == Theirs._field_defaults
    with pytest.raises(AttributeError):
        Ours("a").name = "b"  # type: ignore[misc]
    match Ours("a", 2):
        case Ours(name, count, _):
            assert (name, count) == ("a", 2)


def test_the_records_know_their_fields():
    for module in (facts, host, job, orders, plan, report, status):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
                assert kind is NamedTuple or kind._fields, kind


def test_records_of_two_kinds_are_never_equal():
    close, hang = orders.CloseAgent("node1"), orders.HangUp("node1")
    assert close != hang  # type: ignore[comparison-overlap]  # that is the point
    assert not operator.eq(close, hang)
    assert close == orders.CloseAgent("node1") and hash(close) == hash(orders.CloseAgent("node1"))
    assert close != orders.CloseAgent("node2")

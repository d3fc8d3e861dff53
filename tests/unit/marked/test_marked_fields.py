"""Typed fields of a mapping, the checks behind them, and how faults are collected."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable

import pytest

from launcher.errors import JobError
from launcher.marked import checks
from launcher.marked.faults import MOST_FAULTS, Faults, quoted
from launcher.marked.fields import Fields
from launcher.marked.nodes import Table
from launcher.marked.yaml_nodes import compose


def fields(text: str, *known: str) -> Fields:
    faults = Faults("f")
    table = compose(text, faults)
    assert isinstance(table, Table)
    return Fields(table, known, faults)


def shown(read: Fields) -> list[str]:
    return [str(fault) for fault in read.faults.all()]


def test_values_are_the_text_as_written() -> None:
    read = fields("a: 010\nb: [1e3, no]\nc: {X: yes, Y: ''}\nd: x y", "a", "b", "c", "d", "e")
    assert read.read("a", str) == "010"
    assert read.words("b", str, str.split) == ("1e3", "no")
    assert read.pairs("c") == (("X", "yes"), ("Y", ""))
    assert read.words("d", str, str.split) == ("x", "y")
    assert read.read("e", str) is None
    assert read.words("e", str, str.split) is None
    assert read.pairs("e") is None
    assert shown(read) == []


def test_every_fault_is_noted_at_its_line() -> None:
    read = fields(
        "a: [1]\nb: {x: 1}\nc:\nd: 3\ne: [1, [2], null]\n1f: {1X: 2, Y: [], Z:}",
        "a",
        "b",
        "c",
        "d",
        "e",
        "1f",
    )
    assert read.read("a", str) is None
    assert read.read("b", str) is None
    assert read.read("c", str) is None
    assert read.pairs("d") is None
    assert read.words("e", str, str.split) == ("1",)
    assert read.pairs("1f") == ()
    assert shown(read) == [
        "f:1: a is a list; expected one value",
        "f:2: b is a mapping; expected one value",
        "f:3: c has no value; expected one value",
        'f:4: d is "3"; expected NAME: VALUE lines',
        "f:5: e is a list; expected one value",
        "f:5: e has no value; expected one value",
        'f:6: a name in 1f is "1X"; expected a variable\'s name: letters, digits and _, not beginning with a digit',
        'f:6: 1f "Y" is a list; expected one value',
        'f:6: 1f "Z" has no value; expected one value',
    ]


def test_unknown_keys() -> None:
    read = fields("slot: 1\nzzz: 2\nslots: 3", "slots", "user")
    assert shown(read) == [
        'f:1: unknown key "slot"; did you mean "slots"?',
        'f:2: unknown key "zzz"; expected one of slots, user',
    ]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.whole(1, 20), ["1", "20"], ["0", "21", "01", "+1", "1.0", "1e1", " 1", "", "٣", "9" * 5000]),
        (checks.flag, ["true", "No", "ON", "off"], ["", "1", "y", "maybe"]),
        (checks.one_line, ["/a b/ü", "-x"], ["", "a\nb", "\x00", "\x1b[1m", "\udcff"]),
        (checks.program_path, ["python3", "/opt/py thon"], ["", "-c", "a\tb"]),
        (checks.env_name, ["A", "_a1"], ["", "1A", "A B", "A=B", "A-B", "Ä", "A\n"]),
        (checks.role_name, ["worker", "a-b_C9", "x" * 64], ["", "9a", "-a", "a/b", "x" * 65, "é", "a\n"]),
        (checks.label, ["fast", "zone=a", "a.b/c-d=1:2@x", "k="], ["", "=a", "a b", "a,b", "-x", "a\n"]),
    ],
)
def test_checks(check: Callable[[str], object], good: list[str], bad: list[str]) -> None:
    for text in good:
        check(text)
    for text in bad:
        with pytest.raises(ValueError, match="^expected "):
            check(text)


@pytest.mark.parametrize(
    ("meant", "written"),
    [
        ("chief", "cheif chif hief chie cheef chieff chiief Cheif chifs"),
        ("worker", "wrker wroker worke orker workor workerr wworker worjker wokers"),
        ("evaluator", "evaluater Evaluater evaluaters evalutor evaluattor evaluatro"),
        ("ps", "sp pps pss"),
    ],
)
def test_near_misses_of_the_roles_of_tensorflow(meant: str, written: str) -> None:
    for text in written.split():
        with pytest.raises(ValueError, match=f'^did you mean "{meant}"\\?$'):
            checks.role_name(text)


def test_names_of_ones_own_are_no_near_misses() -> None:
    for text in (
        "master", "pserver", "worker_gpu", "worker-gpu", "worker1", "workerb", "coworker", "actor", "learner",
        "eval", "evaluate", "work", "works", "reader", "p", "s", "gps", "ops", "pos", "psx", "ls", "chief2", "e",
    ):  # fmt: skip
        assert checks.role_name(text) == text


def test_quoted_is_one_short_printable_line() -> None:
    assert quoted("a\nb\x1b\udcff ü") == '"a\\nb\\x1b\\udcff ü"'
    assert quoted("x" * 10_000) == '"' + "x" * 77 + '..."'


def test_faults_come_by_line_each_once_and_not_by_the_thousand() -> None:
    faults = Faults("f")
    for line in (3, 1, 3, 0):
        faults.add(line, "x")
    assert [str(fault) for fault in faults.all()] == ["f: x", "f:1: x", "f:3: x"]
    for line in range(1000):
        faults.add(line, "y")
    with pytest.raises(JobError) as caught:
        faults.raise_any(JobError)
    assert len(caught.value.faults) == MOST_FAULTS + 1
    assert str(caught.value).endswith("f: and 903 more faults")

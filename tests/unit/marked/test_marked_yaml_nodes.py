"""YAML text -> nodes with lines; what is refused, and that nothing blows up."""

from __future__ import annotations

import pytest

from launcher.marked.faults import Faults
from launcher.marked.nodes import Items, Node, Scalar, Table
from launcher.marked.yaml_nodes import MOST_NODES, compose


def nodes(text: str) -> Node:
    faults = Faults("f")
    node = compose(text, faults)
    assert faults.all() == ()
    assert node is not None
    return node


def complaints(text: str) -> list[str]:
    faults = Faults("f")
    compose(text, faults)
    return [str(fault) for fault in faults.all()]


def test_each_node_knows_its_line_and_its_text() -> None:
    expected = Table(
        (
            (Scalar("a", 1), Items((Scalar("010", 2), Scalar("no", 3, plain=False)), 2)),
            (Scalar("b", 4), Table(((Scalar("c", 4), Scalar("1e3", 4)),), 4)),
        ),
        1,
    )
    assert nodes("a:\n- 010\n- 'no'\nb: {c: 1e3}\n") == expected


@pytest.mark.parametrize(
    ("text", "null"),
    [("", True), ("~", True), ("null", True), ('""', False), ("'null'", False), ("0", False)],
)
def test_what_says_that_there_is_no_value(text: str, null: bool) -> None:
    node = nodes(text)
    assert isinstance(node, Scalar)
    assert node.null is null


def test_a_tag_for_text_makes_it_text() -> None:
    node = nodes("!!str null")
    assert isinstance(node, Scalar)
    assert not node.null


def test_aliases_and_merges() -> None:
    text = "base: &b {x: 1, y: 2}\none: *b\ntwo:\n  <<: *b\n  y: 3\nthree: {<<: [*b, {x: 9, z: 8}]}\n"
    table = nodes(text)
    assert isinstance(table, Table)
    found = {key.text: value for key, value in table.entries}
    read = {
        name: {key.text: value.text for key, value in node.entries if isinstance(value, Scalar)}
        for name, node in found.items()
        if isinstance(node, Table)
    }
    assert read == {
        "base": {"x": "1", "y": "2"},
        "one": {"x": "1", "y": "2"},
        "two": {"y": "3", "x": "1"},
        "three": {"x": "1", "y": "2", "z": "8"},
    }


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 20))
LONG_BOMB = f"a: &a {'x,' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]\n"
TOO_MUCH = f"too much in one file; expected at most {MOST_NODES} values, aliases written out"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3", ['f:3: key "a" was already written at line 1; expected each key once']),
        ("a\n---\nb", ["f:2: a second document begins; expected one document a file"]),
        ("a: b: c", ['f:1: "a: b: c" is not YAML: mapping values are not allowed here']),
        ("x: 1\na: 'b\n\n", ['f:2: "a: \'b" is not YAML: found unexpected end of stream']),
        ("a:\n\t- b", ['f:2: "\\t- b" is not YAML: it begins with a tab; expected spaces']),
        ("a: b\nc\nd: e", ['f:2: "c" is not YAML: could not find expected \':\'']),
        ("a b\nc: d", ['f:1: "a b" is not YAML: could not find expected \':\'']),
        ("a: [b\nc: d\ne: f", [
            "f:1: \"a: [b\" is not YAML: expected ',' or ']', but got ':'; "
            'expected quotes around text with brackets, as in "[fe80::1]:2"'
        ]),
        ("a:\n  b: 1\n  c: 2\n - d", [
            "f:4: \"- d\" is not YAML: expected <block end>, but found '<block sequence start>'"
        ]),
        (
            "- ok\n- [fe80::1]:2",
            [
                "f:2: \"- [fe80::1]:2\" is not YAML: expected <block end>, but found '<scalar>'; "
                'expected quotes around text with brackets, as in "[fe80::1]:2"'
            ],
        ),
        ("ok\n\x00", ['f:2: "\\x00" is not YAML: special characters are not allowed']),
        ('"\\0"', ['f:1: "\\x00" holds a NUL or half a character']),
        ('"\\ud800"', ['f:1: "\\ud800" holds a NUL or half a character']),
        ('"\\UFFFFFFFF"', ['f:1: ""\\UFFFFFFFF"" is not YAML: a number out of bounds']),
        (
            "a: !!python/name:os.system x",
            ['f:1: tag "!!python/name:os.system"; expected a value without a tag'],
        ),
        ("a: *b", ['f:1: alias "b" has no anchor before it']),
        ("a: &a [*a]", ['f:1: alias "a" holds itself']),
        ("? [a]\n: b", ["f:1: a key is a list; expected a word"]),
        ("<<: 3", ["f:1: << is text; expected a mapping, as in <<: *name"]),
        ("[" * 100_000, ["f:1: nested too deep; expected at most 20 levels"]),
        ("- " * 10_000, ["f:1: nested too deep; expected at most 20 levels"]),
        ("{a: " * 10_000, ["f:1: nested too deep; expected at most 20 levels"]),
        (BOMB, [f"f:6: {TOO_MUCH}"]),
        (LONG_BOMB, [f"f:2: {TOO_MUCH}"]),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_refused(text: str, expected: list[str]) -> None:
    assert complaints(text) == expected

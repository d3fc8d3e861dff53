"""YAML -> nodes and values with lines; what is refused, and that nothing blows up."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.common.errors import JobError
from launcher.config.documents import MAX_FAULTS, ConfigNode, FaultList, parse_yaml, quoted
from launcher.config.hostfile import HOST
from launcher.config.jobfile import ROLE
from launcher.config.schema import KeySpec, by_role, key_table, named, read_mapping, several, single

KEYS = key_table(
    KeySpec("one", single(str)),
    KeySpec("list", several(str, str.split)),
    KeySpec("pairs", named(str)),
    KeySpec("limit", by_role(single(int))),
)


def read(text: str) -> tuple[dict[str, Any], list[str]]:
    faults = FaultList("f")
    (node, *_) = parse_yaml(text, faults) or [ConfigNode(None)]
    given = {} if not isinstance(node.value, dict) else read_mapping(node, KEYS, faults)
    return given, [str(fault) for fault in faults.all()]


def test_every_fault_is_at_its_line():
    text = "one: [1]\nlist: [1, [2], null]\npairs: {X: [], Y:}\nlimit: {v: x}\nones: 1\nzzz: 1"
    given, faults = read(text)
    assert given == {"list": ("1",), "pairs": (), "limit": ()}
    assert faults[:5] == [
        "f:1: one is a list; expected one value",
        "f:2: list is a list; expected one value",
        "f:2: list has no value; expected one value",
        'f:3: pairs "X" is a list; expected one value',
        'f:3: pairs "Y" has no value; expected one value',
    ]
    assert faults[6:] == [
        'f:5: unknown key "ones"; did you mean "one"?',
        'f:6: unknown key "zzz"; expected one of one, list, pairs, limit',
    ]


def test_json_writes_characters_beyond_the_first_plane_as_pairs():
    given, faults = read(json.dumps({"one": "a \U0001f600", "pairs": {"\U0001f601": "b"}}))
    assert (given["one"], given["pairs"], faults) == ("a \U0001f600", (("\U0001f601", "b"),), [])


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 20))
ALIAS = "aliases (*NAME) are not supported; write the value at each place"
QUOTES = 'expected quotes around text with brackets, as in "[fe80::1]:2"'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("one: 1\nlimit: 2\none: 3", 'f:3: key "one" was already written at line 1; expected each key once'),
        ("one: b: c", 'f:1: "one: b: c" is not YAML: mapping values are not allowed here'),
        ("x: 1\na: 'b\n\n", 'f:2: "a: \'b" is not YAML: found unexpected end of stream'),
        ("a:\n\t- b", 'f:2: "\\t- b" is not YAML: it begins with a tab; expected spaces'),
        ("a: [b\nc: d\ne: f", f"f:1: \"a: [b\" is not YAML: expected ',' or ']', but got ':'; {QUOTES}"),
        ("a:\n  b: 1\n  c: 2\n - d", "f:4: \"- d\" is not YAML: its indentation differs from the lines before it; expected as many spaces"),
        ("- ok\n- [fe80::1]:2", f"f:2: \"- [fe80::1]:2\" is not YAML: expected <block end>, but found '<scalar>'; {QUOTES}"),
        ("ok\n\x00", 'f:2: "\\x00" is not YAML: special characters are not allowed'),
        ('one: "\\0"', 'f:1: "\\x00" contains a NUL or an unpaired surrogate'),
        ('one: "\\ud800"', 'f:1: "\\ud800" contains a NUL or an unpaired surrogate'),
        ('"\\UFFFFFFFF"', 'f:1: ""\\UFFFFFFFF"" is not YAML: a number out of bounds'),
        ("one: !include x", 'f:1: tag "!include"; expected a value without a tag'),
        ("a: *b", 'f:1: "a: *b" is not YAML: found undefined alias \'b\''),
        ("a: &a [*a]", f"f:1: {ALIAS}"),
        ("? [a]\n: b", "f:1: a key is a list or a mapping; expected a word"),
        ("[" * 100_000, "f: nested too deep; expected a few levels"),
        (BOMB, f"f:1: {ALIAS}"),
        ("one: a\n<<: {one: b}", 'f:2: unknown key "<<"; expected one of one, list, pairs, limit'),
    ],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_yaml_that_is_refused(text: str, fault: str):
    assert read(text)[1][0] == fault


def test_faults_come_by_line_each_once_and_not_by_the_thousand():
    faults = FaultList("f")
    for line in (3, 1, 3, 0):
        faults.add(line, "x")
    assert [str(fault) for fault in faults.all()] == ["f: x", "f:1: x", "f:3: x"]
    for line in range(1000):
        faults.add(line, "y")
    with pytest.raises(JobError) as caught:
        faults.raise_any(JobError)
    assert len(caught.value.faults) == MAX_FAULTS + 1
    assert str(caught.value).endswith("f: and 903 more faults")
    assert quoted("a\nb\x1b\udcff ü") == '"a\\nb\\x1b\\udcff ü"'
    assert quoted("x" * 10_000) == '"' + "x" * 77 + '..."'


def test_the_pages_have_every_key_of_roles_and_hosts():
    """The reference, which tests/local/test_site.py tests, has all other keys."""
    top = Path(__file__).parents[3]
    for page, keys in (("docs/jobfile.md", ROLE), ("hostfiles/README.md", HOST)):
        text = (top / page).read_text(encoding="utf-8")
        rows = [f"| `{key.name}` | {key.help} |" for key in keys.values()]
        assert [row for row in rows if row not in text] == []

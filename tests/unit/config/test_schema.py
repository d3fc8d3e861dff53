"""YAML -> nodes and values with lines; what is refused, and that nothing blows up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.errors import Fault, JobError
from launcher.config.documents import MAX_FAULTS, ConfigNode, FaultList, parse_yaml, quoted
from launcher.config.hostfile import HOST
from launcher.config.jobfile import ROLE
from launcher.config.schema import KeySpec, by_role, key_table, named_texts, read_mapping, several, single
from tests.unit.config.answers import check_faults, faulty

KEYS = key_table(
    KeySpec("one", single(str)),
    KeySpec("list", several(str, str.split)),
    KeySpec("pairs", named_texts(str)),
    KeySpec("limit", by_role(single(int))),
)


def read(text: str) -> tuple[dict[str, Any], Sequence[Fault]]:
    faults = FaultList("f")
    (node, *_) = parse_yaml(text, faults) or [ConfigNode(None)]
    given = {} if not isinstance(node.value, dict) else read_mapping(node, KEYS, faults)
    return given, faults.all()


EVERY_FAULT = {
    "one: [1]\nlist: [1, [2], null]\npairs: {X: [], Y:}\nlimit: {v: x}\nones: 1\nzzz: 1": "1 2 2 3 3 4 5 6",
}


def test_every_fault_is_at_its_line(snapshot: SnapshotAssertion):
    check_faults(EVERY_FAULT, lambda text: read(text)[1], "f", snapshot)
    assert [read(text)[0] for text in EVERY_FAULT] == [{"list": ("1",), "pairs": (), "limit": ()}]


def test_json_writes_characters_beyond_the_first_plane_as_pairs():
    given, faults = read(json.dumps({"one": "a \U0001f600", "pairs": {"\U0001f601": "b"}}))
    assert (given["one"], given["pairs"], faults) == ("a \U0001f600", (("\U0001f601", "b"),), ())


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 20))
REFUSED = {
    **faulty("wrong_yaml.txt"),
    "x: 1\na: 'b\n\n": "2",
    "a:\n\t- b": "2",
    "ok\n\x00": "2",
    "[" * 100_000: "f",
    BOMB: "1",
}


def test_yaml_that_is_refused(snapshot: SnapshotAssertion):
    check_faults(REFUSED, lambda text: read(text)[1][:1], "f", snapshot)


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

"""YAML -> values, by the tables of `launcher.config.keys`.

``yaml.compose`` gives nodes that know their line, and constructs nothing: a tag runs no code, a value stays
the text that was written (a host may be called ``no``). Aliases stay references, so a file that would be
gigabytes with aliases written out is measured, not expanded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from launcher.config.faults import Faults, quoted
from launcher.config.keys import Form, Key, Keys
from launcher.config.values import each_once

#: Values of a file with aliases written out; of a long text every 16 characters count as one.
MOST_NODES = 200_000
_TEXT_OF_A_NODE = 16

_CORE = "tag:yaml.org,2002:"
_NULL, MAPPING = _CORE + "null", _CORE + "map"
_KNOWN = ("str", "int", "float", "bool", "null", "seq", "map", "timestamp", "merge", "value")
_TAGS = frozenset(["!", *(_CORE + name for name in _KNOWN)])
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
#: No program can get these in an argument or its environment.
_UNFIT = re.compile("[\x00\ud800-\udfff]")


class _Refused(Exception):
    """The file can't be read further: ``(line, what, expected)``."""


def parse_yaml(text: str, faults: Faults) -> yaml.Node | None:
    """The document in ``text``, or ``None`` and at least one fault. Anchors, aliases and ``<<`` work."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return yaml.ScalarNode(_NULL, "", yaml.Mark("", 0, 0, 0, "", 0))
        _measure(root, {}, faults)
        return root
    except _Refused as refused:
        faults.add(*refused.args)
    except RecursionError:
        faults.add(0, "nested too deep", "expected a few levels")
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # "\\UFFFFFFFF" is a ValueError
        _add_syntax_fault(text, error, faults)
    return None


def _measure(node: yaml.Node, sizes: dict[int, int], faults: Faults) -> int:
    """The number of values below a node, aliases written out; checks tags and characters on the way."""
    size = sizes.get(id(node))
    if size == 0:
        raise _Refused(line_of(node), f"{kind(node)} contains itself by an alias")
    if size is not None:
        return size
    sizes[id(node)], size = 0, 1
    if node.tag not in _TAGS:
        what = f"tag {quoted(node.tag.replace(_CORE, '!!'))}"
        faults.add(line_of(node), what, "expected a value without a tag")
    if isinstance(node, yaml.ScalarNode):
        size += len(node.value) // _TEXT_OF_A_NODE
        if _UNFIT.search(node.value):
            faults.add(line_of(node), f"{quoted(node.value)} holds a NUL or half a character")
    else:
        for child in node.value:
            for each in child if isinstance(child, tuple) else (child,):
                size += _measure(each, sizes, faults)
    if size > MOST_NODES:
        expected = f"expected at most {MOST_NODES} values, aliases written out"
        raise _Refused(line_of(node), "too much in one file", expected)
    sizes[id(node)] = size
    return size


def _add_syntax_fault(text: str, error: Exception, faults: Faults) -> None:
    lines = _LINE_END.split(text)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a number out of bounds"
    line = min(_line_of_error(text, error), len(lines))
    shown = lines[line - 1].strip(" ")
    hint = 'expected quotes around text with brackets, as in "[fe80::1]:2"' if "[" in shown else ""
    if r"character '\t'" in problem:
        problem, hint = "it begins with a tab", "expected spaces"
    faults.add(line, f"{quoted(shown)} is not YAML: {problem}", hint)


def _line_of_error(text: str, error: Exception) -> int:
    """The line (from 1) where the part begins that could not be read to its end."""
    if isinstance(error, yaml.reader.ReaderError):
        return 1 + len(_LINE_END.findall(text, 0, error.position))
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if mark is not None and context is not None:
        # A block goes on to the fault, unless the text ends in it.
        block = str(getattr(error, "context", "")).startswith("while parsing a block")
        mark = mark if block and mark.index < len(text.rstrip()) else context
    return 1 if mark is None else 1 + int(mark.line)


# ---------------------------------------------------------------------- nodes


def line_of(node: yaml.Node) -> int:
    """The line of a node, from 1; 0: it is not from a file."""
    return 0 if node.start_mark is None else int(node.start_mark.line) + 1


def kind(node: yaml.Node) -> str:
    """What a node is called in a fault: ``a list``."""
    if isinstance(node, yaml.ScalarNode):
        return "text"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def is_text(node: yaml.Node | None) -> bool:
    """Whether a node is one value; ``key:``, ``~`` and ``null`` have no value, ``""`` has."""
    return isinstance(node, yaml.ScalarNode) and node.tag != _NULL


def text_of(node: yaml.Node, label: str, faults: Faults) -> str | None:
    """The text of a value; for a list, a mapping or nothing a fault, and ``None``."""
    if is_text(node):
        return str(node.value)
    wrong_kind(node, label, faults, "expected one value")
    return None


def wrong_kind(node: yaml.Node, label: str, faults: Faults, expected: str) -> None:
    """Add the fault that a node is of the wrong kind."""
    if is_text(node):
        what = f"{label} is {quoted(node.value)}"
    elif isinstance(node, yaml.ScalarNode):
        what = f"{label} has no value"
    else:
        what = f"{label} is {kind(node)}"
    faults.add(line_of(node), what, expected)


def node_of(value: Any) -> yaml.Node:
    """A value of JSON as a node without a line."""
    if isinstance(value, dict):
        return yaml.MappingNode(
            _CORE + "map", [(node_of(str(key)), node_of(each)) for key, each in value.items()]
        )
    if isinstance(value, list):
        return yaml.SequenceNode(_CORE + "seq", [node_of(each) for each in value])
    if value is None:
        return yaml.ScalarNode(_NULL, "")
    return yaml.ScalarNode(_CORE + "str", str(value).lower() if isinstance(value, bool) else str(value))


def entries(node: yaml.Node, faults: Faults) -> list[tuple[yaml.Node, yaml.Node]]:
    """The entries of a mapping, merged ones (``<<``) last; keys are text, and none comes twice."""
    found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    merged: list[tuple[yaml.Node, yaml.Node]] = []
    for key, value in node.value:
        if key.tag == _CORE + "merge":
            merged += _merged(value, faults)
        elif not isinstance(key, yaml.ScalarNode):
            faults.add(line_of(key), f"a key is {kind(key)}", "expected a word")
        elif key.value in found:
            what = f"key {quoted(key.value)} was already written at line {line_of(found[key.value][0])}"
            faults.add(line_of(key), what, "expected each key once")
        else:
            found[key.value] = (key, value)
    for key, value in merged:
        found.setdefault(key.value, (key, value))
    return list(found.values())


def _merged(value: yaml.Node, faults: Faults) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    for node in value.value if isinstance(value, yaml.SequenceNode) else [value]:
        if isinstance(node, yaml.MappingNode):
            yield from entries(node, faults)
        else:
            faults.add(line_of(node), f"<< is {kind(node)}", "expected a mapping, as in <<: *name")


# ---------------------------------------------------------------------- values by key


class Values:
    """What a mapping says, by the table of its keys. A faulty value is written, but not given."""

    def __init__(self, line: int, faults: Faults) -> None:
        self.line = line
        self.faults = faults
        #: Values by key.
        self.given: dict[str, Any] = {}
        #: Where each key is written, and what stands there.
        self.lines: dict[str, int] = {}
        self.nodes: dict[str, yaml.Node] = {}
        #: Whether a key is unknown: it may be a misspelt one that another fault would call missing.
        self.misspelt = False

    def get(self, key: str, default: Any = None) -> Any:
        """The value at a key."""
        return self.given.get(key, default)

    def some(self, *keys: str) -> dict[str, Any]:
        """Those of the keys that have a value, for a record's other fields to keep their defaults."""
        return {key: self.given[key] for key in keys if key in self.given}

    def line_of(self, key: str) -> int:
        """The line of a key; the line of the mapping if it is not written."""
        return self.lines.get(key, self.line)

    def add(self, key: str, what: str, expected: str) -> None:
        """Add a fault at the line of a key."""
        self.faults.add(self.line_of(key), what, expected)


def read_mapping(
    node: yaml.Node, keys: Keys, faults: Faults, elsewhere: Callable[[str], str] = lambda key: ""
) -> Values:
    """Read a mapping by its table.

    Args:
        node: a mapping.
        keys: the keys it may have; any other is a fault.
        faults: where faults go.
        elsewhere: for an unknown key, where it belongs; empty: nowhere.
    """
    values = Values(line_of(node), faults)
    for word, value in entries(node, faults):
        name = word.value
        if name not in keys:
            faults.unknown(line_of(word), name, tuple(keys), elsewhere(name))
            values.misspelt = True
            continue
        values.lines[name], values.nodes[name] = line_of(word), value
        found = _READERS[keys[name].form](keys[name], value, faults)
        if found is not None:
            values.given[name] = found
    return values


def _read_value(key: Key, node: yaml.Node, faults: Faults) -> Any:
    text = text_of(node, key.name, faults)
    return None if text is None else faults.check(line_of(node), key.name, text, key.read)


def _read_list(key: Key, node: yaml.Node, faults: Faults) -> Any:
    line = line_of(node)
    if isinstance(node, yaml.SequenceNode):
        items = [(line_of(item), text_of(item, key.name, faults)) for item in node.value]
    elif isinstance(node, yaml.MappingNode) and key.form is Form.LABELS:
        items = [(line, f"{name}={value}") for name, value in _read_pairs(key, node, faults)]
    else:
        whole = text_of(node, key.name, faults)
        if whole is None:
            return None
        items = [(line, text) for text in faults.check(line, key.name, whole, key.split) or ()]
    texts = [(at, text) for at, text in items if text is not None]
    found = [faults.check(at, key.name, text, key.read) for at, text in texts]
    words = [text for _, text in texts]
    faults.check(line, key.name, ",".join(words), lambda _: each_once(words))
    return tuple(value for value in found if value is not None)


def _read_pairs(key: Key, node: yaml.Node, faults: Faults) -> Any:
    if not isinstance(node, yaml.MappingNode):
        wrong_kind(node, key.name, faults, "expected NAME: VALUE lines")
        return None
    pairs = []
    for word, value in entries(node, faults):
        name = faults.check(line_of(word), f"a name in {key.name}", word.value, key.read)
        text = text_of(value, f"{key.name} {quoted(word.value)}", faults)
        if name is not None and text is not None:
            pairs.append((name, text))
    return tuple(pairs)


def _read_by_role(key: Key, node: yaml.Node, faults: Faults) -> Any:
    if not isinstance(node, yaml.MappingNode):
        found = _read_value(key, node, faults)
        return None if found is None else (("", found),)
    roles = [
        (word.value, key._replace(name=f"{key.name} of {word.value}"), value)
        for word, value in entries(node, faults)
    ]
    limits = [(role, _read_value(limit, value, faults)) for role, limit, value in roles]
    return tuple((role, limit) for role, limit in limits if limit is not None)


_READERS: dict[Form, Callable[[Key, yaml.Node, Faults], Any]] = {
    Form.VALUE: _read_value,
    Form.LIST: _read_list,
    Form.LABELS: _read_list,
    Form.PAIRS: _read_pairs,
    Form.BY_ROLE: _read_by_role,
    Form.NODE: lambda key, node, faults: node,
}

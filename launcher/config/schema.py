"""Text with lines -> values, by the tables of `launcher.config.keys`.

A `Node` is a value as it was written, and its line. YAML is read without constructing anything: a tag runs no
code, a value stays the text that was written (a host may be called ``no``). Aliases are refused: written out,
they could be gigabytes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from launcher.config.faults import Faults, quoted
from launcher.config.values import each_once

_CORE = "tag:yaml.org,2002:"
_KNOWN = ("str", "int", "float", "bool", "null", "seq", "map", "timestamp", "value")
_TAGS = frozenset(["!", *(_CORE + name for name in _KNOWN)])
#: No program can get these in an argument or its environment.
_UNFIT = "[\x00\ud800-\udfff]"


class Node(NamedTuple):
    """A value as it was written: a text, ``None``, a list of nodes, or a dict of nodes."""

    value: Any
    #: Its line, from 1, and that of its key; 0: it is not from a file.
    line: int = 0
    key_line: int = 0


class Form(enum.Enum):
    """What may stand at a key."""

    VALUE = "one value"
    LIST = "a list of values, or one text that stands for several"
    LABELS = "a list of labels, one text with commas, or a mapping (``zone: a``)"
    PAIRS = "a mapping of names to texts"
    BY_ROLE = "one value for every role, or a mapping of roles to values"
    NODE = "more than one form: the reader of the whole mapping reads it"


def alone(text: str) -> Sequence[str]:
    """A text that stands for itself: a path may hold commas and blanks."""
    return (text,)


class Key(NamedTuple):
    """One key of a mapping."""

    name: str
    #: For users: the reference documentation is made of it.
    help: str
    form: Form = Form.VALUE
    #: Makes a value of one text (of ``PAIRS``: of the name), or raises ``ValueError`` with what it expected.
    read: Callable[[str], Any] = str
    #: What one text stands for, where a list may stand.
    split: Callable[[str], Sequence[str]] = alone


Keys = dict[str, Key]


class Section(NamedTuple):
    """A key of job files that a transport reads."""

    help: str
    #: Makes the transport's settings of the node, the names of the file's roles, and a place for faults.
    read: Callable[[Node, Sequence[str], Faults], Any]


def table(*keys: Key) -> Keys:
    """Keys by name."""
    return {key.name: key for key in keys}


# ---------------------------------------------------------------------- YAML


def parse_yaml(text: str, faults: Faults) -> Node | None:
    """The document in ``text``; ``None``: there is at least one fault."""
    import yaml  # 30 ms

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        before = len(faults)
        node = Node(None, 1, 1) if root is None else _node(root, 0, faults, set())
        return node if len(faults) == before else None
    except RecursionError:
        faults.add(0, "nested too deep", "expected a few levels")
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # "\\UFFFFFFFF" is a ValueError
        _add_syntax_fault(text, error, faults)
    return None


def _node(node: Any, key_line: int, faults: Faults, seen: set[int]) -> Node:
    line = int(node.start_mark.line) + 1
    made = Node(None, line, key_line or line)
    if id(node) in seen:
        faults.add(line, "an alias (*NAME) stands for this value", "expected it written out at each place")
        return made
    seen.add(id(node))
    if node.tag not in _TAGS:
        tag = quoted(node.tag.replace(_CORE, "!!"))
        faults.add(line, f"tag {tag}", "expected a value without a tag")
    if node.id == "sequence":
        return made._replace(value=[_node(item, 0, faults, seen) for item in node.value])
    if node.id == "scalar":
        if re.search(_UNFIT, node.value):
            faults.add(line, f"{quoted(node.value)} holds a NUL or half a character")
        return made if node.tag == f"{_CORE}null" else made._replace(value=str(node.value))
    found: dict[str, Node] = {}
    for key, value in node.value:
        at = int(key.start_mark.line) + 1
        if key.id != "scalar":
            faults.add(at, "a key is a list or a mapping", "expected a word")
        elif key.value in found:
            what = f"key {quoted(key.value)} was already written at line {found[key.value].key_line}"
            faults.add(at, what, "expected each key once")
        else:
            found[key.value] = _node(value, at, faults, seen)
    return made._replace(value=found)


def _add_syntax_fault(text: str, error: Exception, faults: Faults) -> None:
    """Add a fault at the line where the part begins that could not be read to its end."""
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", text)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a number out of bounds"
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if context is not None and not str(getattr(error, "context", "")).startswith("while parsing a block"):
        mark = context
    before = text.count("\n", 0, getattr(error, "position", 0))  # of a character that YAML can't have
    line = min(1 + (int(mark.line) if mark else before), len(lines))
    shown = lines[line - 1].strip(" ")
    hint = 'expected quotes around text with brackets, as in "[fe80::1]:2"' if "[" in shown else ""
    if r"character '\t'" in problem:
        problem, hint = "it begins with a tab", "expected spaces"
    faults.add(line, f"{quoted(shown)} is not YAML: {problem}", hint)


def node_of(value: Any) -> Node:
    """A value of JSON as a node without a line."""
    if isinstance(value, dict):
        return Node({str(key): node_of(each) for key, each in value.items()})
    if isinstance(value, list):
        return Node([node_of(each) for each in value])
    return Node(None if value is None else str(value).lower() if isinstance(value, bool) else str(value))


# ---------------------------------------------------------------------- values by key


def text_of(node: Node, label: str, faults: Faults) -> str | None:
    """The text of a value; for a list, a mapping or nothing a fault, and ``None``."""
    if isinstance(node.value, str):
        return node.value
    wrong_kind(node, label, faults, "expected one value")
    return None


def wrong_kind(node: Node, label: str, faults: Faults, expected: str) -> None:
    """Add the fault that a node is of the wrong kind."""
    what = "is a mapping" if isinstance(node.value, dict) else "is a list"
    if node.value is None:
        what = "has no value"
    elif isinstance(node.value, str):
        what = f"is {quoted(node.value)}"
    faults.add(node.line, f"{label} {what}", expected)


class Values:
    """The values of a mapping, by its table. A faulty value is in ``nodes``, but not in ``given``."""

    def __init__(self, line: int, faults: Faults) -> None:
        self.line = line
        self.faults = faults
        #: Values by key, and what was written there.
        self.given: dict[str, Any] = {}
        self.nodes: dict[str, Node] = {}
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
        return self.nodes[key].key_line if key in self.nodes else self.line

    def add(self, key: str, what: str, expected: str) -> None:
        """Add a fault at the line of a key."""
        self.faults.add(self.line_of(key), what, expected)


def read_mapping(
    node: Node, keys: Keys, faults: Faults, elsewhere: Callable[[str], str] = lambda key: ""
) -> Values:
    """Read a mapping by its table.

    Args:
        node: a mapping.
        keys: the keys it may have; any other is a fault.
        faults: where faults go.
        elsewhere: for an unknown key, where it belongs; empty: nowhere.
    """
    values = Values(node.line, faults)
    for name, value in node.value.items():
        if name not in keys:
            faults.unknown(value.key_line, name, tuple(keys), elsewhere(name))
            values.misspelt = True
            continue
        values.nodes[name] = value
        found = _read(keys[name], value, faults)
        if found is not None:
            values.given[name] = found
    return values


def _read(key: Key, node: Node, faults: Faults) -> Any:
    """The value of a key; ``None``: it has a fault."""
    if key.form is Form.NODE:
        return node
    if key.form in (Form.LIST, Form.LABELS):
        return _read_list(key, node, faults)
    if not isinstance(node.value, dict):
        if key.form is Form.PAIRS:
            return wrong_kind(node, key.name, faults, "expected NAME: VALUE lines")
        text = text_of(node, key.name, faults)
        found = None if text is None else faults.check(node.line, key.name, text, key.read)
        return (("", found),) if key.form is Form.BY_ROLE and found is not None else found
    if key.form is Form.VALUE:
        return text_of(node, key.name, faults)
    pairs = []
    for name, value in node.value.items():
        if key.form is Form.BY_ROLE:
            pairs.append((name, _read(Key(f"{key.name} of {name}", "", read=key.read), value, faults)))
        else:
            known = faults.check(value.key_line, f"a name in {key.name}", name, key.read)
            pairs.append((known, text_of(value, f"{key.name} {quoted(name)}", faults)))
    return tuple(pair for pair in pairs if None not in pair)


def _read_list(key: Key, node: Node, faults: Faults) -> tuple[Any, ...] | None:
    items = node.value
    if isinstance(items, dict) and key.form is Form.LABELS:
        named = [(name, text_of(value, key.name, faults)) for name, value in items.items()]
        items = [Node(f"{name}={text}", node.line) for name, text in named if text is not None]
    elif not isinstance(items, list):
        whole = text_of(node, key.name, faults)
        if whole is None:
            return None
        items = [Node(text, node.line) for text in faults.check(node.line, key.name, whole, key.split) or ()]
    texts = [(item.line, text) for item in items if (text := text_of(item, key.name, faults)) is not None]
    found = [faults.check(line, key.name, text, key.read) for line, text in texts]
    words = [text for _, text in texts]
    if None not in found:
        faults.check(node.line, key.name, ",".join(words), lambda _: each_once(words))
    return tuple(value for value in found if value is not None)

"""YAML text -> nodes. The only module that imports PyYAML.

Built from the parser's events, not by PyYAML's composer: that one recurses as deep as the text
nests and lets duplicate keys pass. Depth and size (aliases counted as if written out) are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import yaml

from launcher.marked.faults import Faults, quoted
from launcher.marked.nodes import Items, Node, Scalar, Table, kind

if TYPE_CHECKING:
    from typing import Any

MOST_DEPTH = 20
MOST_NODES = 200_000

#: Long texts count as several nodes: so many characters each.
TEXT_OF_A_NODE = 16

_CORE = "tag:yaml.org,2002:"
_TAGS = frozenset(["!", *(_CORE + name for name in ("str", "int", "float", "bool", "null", "seq", "map"))])
#: How PyYAML begins to tell of one that stands where a key is expected.
_A_TAB = r"character '\t'"
#: And of a colon in the second line of what it takes for a text.
_A_COLON = "mapping values are not allowed here"
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
#: No program can be given these in an argument or its environment.
_UNFIT = re.compile("[\x00\ud800-\udfff]")


class _Refused(Exception):
    """The rest can't be read: ``(line, what, expected)``."""


def compose(text: str, faults: Faults) -> Node | None:
    """The document in ``text``, or ``None`` and at least one fault.

    Nothing is constructed: a tag can run no code. Anchors, aliases and ``<<`` work as usual.
    """
    try:
        # Also ValueError: PyYAML lets that escape from "\\UFFFFFFFF" and "%YAML 1.<5000 digits>".
        return _Composer(yaml.parse(text, Loader=yaml.SafeLoader), faults).document()
    except _Refused as refused:
        faults.add(*refused.args)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        _syntax_fault(text, error, faults)
    return None


def _syntax_fault(text: str, error: Exception, faults: Faults) -> None:
    lines = _LINE_END.split(text)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a number out of bounds"
    line = min(_line_of(text, error), len(lines))
    if problem == _A_COLON and (first := _text_before(lines, line)) < line:
        line, problem = first, "could not find expected ':'"
    shown = lines[line - 1].strip(" ")
    hint = 'expected quotes around text with brackets, as in "[fe80::1]:2"' if "[" in shown else ""
    if _A_TAB in problem:
        problem, hint = "it begins with a tab", "expected spaces"
    faults.add(line, f"{quoted(shown)} is not YAML: {problem}", hint)


def _text_before(lines: list[str], line: int) -> int:
    """The first of the lines just before this one that hold text without a colon: YAML reads them as one."""
    while line > 1 and lines[line - 2].strip() and not set(lines[line - 2]) & set(":#"):
        line -= 1
    return line


def _line_of(text: str, error: Exception) -> int:
    """The line (from 1) to show for a syntax error: the one that began what could not be read to its end.

    A block just goes on, to whatever is wrong in it, unless the text ends.
    """
    if isinstance(error, yaml.reader.ReaderError):
        return 1 + len(_LINE_END.findall(text, 0, error.position))
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if mark is not None and context is not None:
        goes_on = str(getattr(error, "context", "")).startswith("while parsing a block")
        mark = mark if goes_on and mark.index < len(text.rstrip()) else context
    return 1 if mark is None else 1 + int(mark.line)


class _Composer:
    """Builds nodes from parser events."""

    def __init__(self, events: Iterator[Any], faults: Faults) -> None:
        self._events = events
        self._faults = faults
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        self._size = 0

    def document(self) -> Node:
        """The only document of the stream."""
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return Scalar("", 1)
        node = self._node(next(self._events), 0)
        next(self._events)
        more = next(self._events)
        if isinstance(more, yaml.DocumentStartEvent):
            raise _Refused(_line(more), "a second document begins", "expected one document a file")
        return node

    def _node(self, event: Any, depth: int) -> Node:
        before = self._size
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        self._grow(1 + len(getattr(event, "value", "")) // TEXT_OF_A_NODE, event)
        if depth > MOST_DEPTH:
            raise _Refused(_line(event), "nested too deep", f"expected at most {MOST_DEPTH} levels")
        if event.anchor:
            self._anchors[event.anchor] = None
        node = self._build(event, depth)
        if event.anchor:
            self._anchors[event.anchor] = (node, self._size - before)
        return node

    def _build(self, event: Any, depth: int) -> Node:
        if event.tag is not None and event.tag not in _TAGS:
            what = f"tag {quoted(_written(event.tag))}"
            self._faults.add(_line(event), what, "expected a value without a tag")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return Items(tuple(self._until(yaml.SequenceEndEvent, depth)), _line(event))
        return self._table(event, depth)

    def _until(self, end: type, depth: int) -> Iterator[Node]:
        for event in iter(lambda: next(self._events), None):
            if isinstance(event, end):
                return
            yield self._node(event, depth + 1)

    def _scalar(self, event: Any) -> Scalar:
        if _UNFIT.search(event.value):
            self._faults.add(_line(event), f"{quoted(event.value)} holds a NUL or half a character")
        return Scalar(event.value, _line(event), event.style is None and event.tag in (None, _CORE + "null"))

    def _alias(self, event: Any) -> Node:
        found = self._anchors.get(event.anchor, (None, 0))
        if found is None:
            raise _Refused(_line(event), f"alias {quoted(event.anchor)} holds itself")
        node, size = found
        if node is None:
            raise _Refused(_line(event), f"alias {quoted(event.anchor)} has no anchor before it")
        self._grow(size, event)
        return node

    def _grow(self, size: int, event: Any) -> None:
        self._size += size
        if self._size > MOST_NODES:
            expected = f"expected at most {MOST_NODES} values, aliases written out"
            raise _Refused(_line(event), "too much in one file", expected)

    def _table(self, event: Any, depth: int) -> Table:
        nodes = list(self._until(yaml.MappingEndEvent, depth))
        entries: dict[str, tuple[Scalar, Node]] = {}
        merged: list[Table] = []
        for key, value in zip(nodes[::2], nodes[1::2], strict=True):
            if key == Scalar("<<", key.line):
                merged.extend(self._merged(value))
            else:
                self._enter(entries, key, value)
        for table in merged:
            for word, value in table.entries:
                entries.setdefault(word.text, (word, value))
        return Table(tuple(entries.values()), _line(event))

    def _enter(self, entries: dict[str, tuple[Scalar, Node]], key: Node, value: Node) -> None:
        if not isinstance(key, Scalar):
            self._faults.add(key.line, f"a key is {kind(key)}", "expected a word")
        elif key.text in entries:
            first = entries[key.text][0].line
            what = f"key {quoted(key.text)} was already written at line {first}"
            self._faults.add(key.line, what, "expected each key once")
        else:
            entries[key.text] = (key, value)

    def _merged(self, value: Node) -> Iterator[Table]:
        for node in value.items if isinstance(value, Items) else (value,):
            if isinstance(node, Table):
                yield node
            else:
                self._faults.add(node.line, f"<< is {kind(node)}", "expected a mapping, as in <<: *name")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _written(tag: str) -> str:
    return tag.replace(_CORE, "!!")

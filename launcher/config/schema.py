"""Text with lines -> values by tables of keys, and the faults of one input, which are reported all at once.

A `Node` is a value as it was written, and its line. YAML is read without constructing anything: a tag runs no
code, a value stays the text that was written (a host may be called ``no``). Aliases are refused: written out,
they could be gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from launcher.errors import Fault, InputError
from launcher.text import did_you_mean, printable

T = TypeVar("T")

#: At most so many faults are shown: a binary file given by mistake has thousands.
MOST_FAULTS = 100
#: At most so many characters of an offending text are shown.
MOST_QUOTED = 80
#: Bytes of a file; a hostfile of ten thousand hosts is a tenth of it.
MOST_BYTES = 4 * 1024 * 1024

#: The tags of YAML's own types.
_CORE = "tag:yaml.org,2002:"
#: No program can get these in an argument or its environment.
_UNFIT = re.compile("[\x00\ud800-\udfff]")


class Node(NamedTuple):
    """A value as it was written: a text, ``None``, a list of nodes, or a dict of nodes."""

    value: Any
    #: Its line, from 1, and that of its key; 0: it is not from a file.
    line: int = 0
    key_line: int = 0


def quoted(text: str) -> str:
    """``text`` in double quotes, on one line, shortened."""
    return f'"{printable(text if len(text) <= MOST_QUOTED else text[: MOST_QUOTED - 3] + "...")}"'


class Faults:
    """The faults of one input, by line.

    Args:
        source: the file's name, or the option it came from.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: list[tuple[int, Fault]] = []

    def __len__(self) -> int:
        return len(self._found)

    def where(self, line: int) -> str:
        """``file:line``; just the source for line 0, which means that the input has no lines."""
        return f"{self.source}:{line}" if line else self.source

    def add(self, line: int, problem: str, expected: str = "") -> None:
        """Add one fault: what is wrong, with the text quoted, and what was expected."""
        self._found.append((line, Fault(self.where(line), problem, expected)))

    def add_kind(self, node: Node, label: str, expected: str) -> None:
        """Add the fault that a node is of the wrong kind."""
        value = node.value
        kind = "is a mapping" if isinstance(value, dict) else "is a list"
        if value is None or isinstance(value, str):
            kind = "has no value" if value is None else f"is {quoted(value)}"
        self.add(node.line, f"{label} {kind}", expected)

    def check(self, line: int, label: str, text: str, read: Callable[[str], T]) -> T | None:
        """The value that ``read`` makes of ``text``; where it raises ``ValueError`` a fault, and ``None``.

        Args:
            line: of the text.
            label: what the text is, as in ``slots``.
            read: raises ``ValueError`` with what it expected.
        """
        try:
            return read(text)
        except ValueError as error:
            self.add(line, f"{label} is {quoted(text)}", str(error))
            return None

    def all(self) -> tuple[Fault, ...]:
        """Every fault once, in the order of the lines, the first hundred of them."""
        faults = tuple(dict.fromkeys(fault for _, fault in sorted(self._found, key=lambda found: found[0])))
        more = len(faults) - MOST_FAULTS
        return faults if more <= 0 else (*faults[:-more], Fault(self.source, f"and {more} more faults"))

    def raise_any(self, error: type[InputError]) -> None:
        """Raise ``error`` with all faults, if there are any."""
        if self._found:
            raise error(self.all())


# ---------------------------------------------------------------------- tables of keys

#: Makes the value of a node, for the key it is called by; or adds faults and returns ``None``.
Read = Callable[[Node, str, Faults], Any]


def as_written(node: Node, label: str, faults: Faults) -> Node:
    """Leave the node to the reader of the whole mapping."""
    return node


class Key(NamedTuple):
    """One key of a mapping."""

    name: str
    #: For users: the reference documentation is made of it.
    help: str
    read: Read = as_written
    #: The key that it is another name of.
    same_as: str = ""


Keys = dict[str, Key]


def table(*keys: Key) -> Keys:
    """Keys by name."""
    return {key.name: key for key in keys}


class Values(dict[str, Any]):
    """The values of a mapping, by its table. A faulty value is in ``nodes`` only."""

    def __init__(self, line: int, faults: Faults) -> None:
        super().__init__()
        self.line = line
        self.faults = faults
        #: What was written at each key.
        self.nodes: dict[str, Node] = {}
        #: Whether a key is unknown: it may be a misspelt one that another fault would call missing.
        self.misspelt = False

    def some(self, *keys: str) -> dict[str, Any]:
        """Those of the keys that have a value, for a record's other fields to keep their defaults."""
        return {key: self[key] for key in keys if key in self}

    def line_of(self, key: str) -> int:
        """The line of a key; the line of the mapping if it is not written."""
        return self.nodes[key].key_line if key in self.nodes else self.line

    def add(self, key: str, problem: str, expected: str) -> None:
        """Add a fault at the line of a key."""
        self.faults.add(self.line_of(key), problem, expected)


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
            # Suggestions take time, and a file with so many faults is another kind of file.
            hint = elsewhere(name) or (did_you_mean(name, tuple(keys)) if len(faults) < MOST_FAULTS else "")
            faults.add(value.key_line, f"unknown key {quoted(name)}", hint)
            values.misspelt = True
            continue
        key = keys[name].same_as or name
        if key in values.nodes:
            both = " and ".join(
                quoted(each.name) for each in keys.values() if key in (each.name, each.same_as)
            )
            faults.add(value.key_line, f"{both} both", "expected one of them")
        values.nodes[key] = value
        found = keys[name].read(value, name, faults)
        if found is not None:
            values[key] = found
    return values


def text_of(node: Node, label: str, faults: Faults) -> str | None:
    """The text of a value; for a list, a mapping or nothing a fault, and ``None``."""
    if isinstance(node.value, str):
        return node.value
    faults.add_kind(node, label, "expected one value")
    return None


def single(read: Callable[[str], Any]) -> Read:
    """One value; ``read`` makes it of its text, or raises ``ValueError`` with what it expected."""

    def value(node: Node, label: str, faults: Faults) -> Any:
        text = text_of(node, label, faults)
        return None if text is None else faults.check(node.line, label, text, read)

    return value


def alone(text: str) -> Sequence[str]:
    """A text that stands for itself: a path may hold commas and blanks."""
    return (text,)


def several(
    read: Callable[[str], Any], split: Callable[[str], Sequence[str]] = alone, pairs: bool = False
) -> Read:
    """A list of values, each once.

    Args:
        read: as for `single`.
        split: what one text in the place of a list stands for.
        pairs: a mapping may stand there, too: ``zone: a`` is ``zone=a``.
    """

    def values(node: Node, label: str, faults: Faults) -> Any:
        items = node.value
        if isinstance(items, dict) and pairs:
            named = [(name, text_of(value, label, faults)) for name, value in items.items()]
            items = [Node(f"{name}={text}", node.line) for name, text in named if text is not None]
        elif not isinstance(items, list):
            text = text_of(node, label, faults)
            parts = None if text is None else faults.check(node.line, label, text, split)
            if parts is None:
                return None
            items = [Node(part, node.line) for part in parts]
        found = [single(read)(item, label, faults) for item in items]
        texts = [item.value for item in items]
        if None not in found and len(set(texts)) < len(texts):
            again = next(text for text in texts if texts.count(text) > 1)
            faults.add(node.line, f"{label} is {quoted(','.join(texts))}", f'expected "{again}" once')
        return tuple(value for value in found if value is not None)

    return values


def named(read: Callable[[str], str]) -> Read:
    """A mapping of names, which ``read`` checks, to texts."""

    def texts(node: Node, label: str, faults: Faults) -> Any:
        if not isinstance(node.value, dict):
            return faults.add_kind(node, label, "expected NAME: VALUE lines")
        pairs = []
        for name, value in node.value.items():
            known = faults.check(value.key_line, f"a name in {label}", name, read)
            pairs.append((known, text_of(value, f"{label} {quoted(name)}", faults)))
        return tuple(pair for pair in pairs if None not in pair)

    return texts


def by_role(read: Callable[[str], Any]) -> Read:
    """One value for every role (an empty name), or a mapping of roles to values."""

    def limits(node: Node, label: str, faults: Faults) -> Any:
        if not isinstance(node.value, dict):
            found = single(read)(node, label, faults)
            return None if found is None else (("", found),)
        pairs = [
            (name, single(read)(value, f"{label} of {name}", faults)) for name, value in node.value.items()
        ]
        return tuple((name, value) for name, value in pairs if value is not None)

    return limits


def mapping(keys: Keys, expected: str) -> Read:
    """A mapping with a table of its own; anything else is a fault with ``expected``."""

    def values(node: Node, label: str, faults: Faults) -> Any:
        if not isinstance(node.value, dict):
            return faults.add_kind(node, label, expected)
        return read_mapping(node, keys, faults)

    return values


class Section(NamedTuple):
    """A key of job files that a transport reads."""

    help: str
    #: Makes the transport's settings of the node, the names of the file's roles, and a place for faults.
    read: Callable[[Node, Sequence[str], Faults], Any]


# ---------------------------------------------------------------------- files and YAML


def read_text(path: str, kind: str, error: type[InputError]) -> str:
    """The text of a file that may be a pipe (``<(...)`` of a shell), up to a limit.

    Args:
        path: the file.
        kind: what it was meant to be, for messages: ``hostfile``.
        error: the class to raise.

    Raises:
        InputError: of class ``error``: the file can't be read, is too large, or is not text.
    """
    shown, data = shown_path(path), b""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) <= MOST_BYTES:
            return data.decode("utf-8-sig")
        fault = Fault(shown, f"too large for a {kind}: more than {MOST_BYTES // 1024 // 1024} MB")
    except OSError as cause:
        fault = Fault(shown, f"can't read the {kind}: {cause.strerror}")
    except UnicodeDecodeError as cause:
        problem = f"not UTF-8 text: byte 0x{data[cause.start]:02x}"
        fault = Fault(f"{shown}:{data.count(10, 0, cause.start) + 1}", problem, "expected a text file")
    raise error([fault])


def shown_path(path: str) -> str:
    """A path as a message can show it, on one line."""
    return path if path.isprintable() else repr(path)


def parse_yaml(text: str, faults: Faults) -> Node | None:
    """The document in ``text``; ``None``: there is at least one fault."""
    import yaml  # 30 ms

    before = len(faults)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
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
    if not node.tag.startswith(_CORE):
        faults.add(line, f"tag {quoted(node.tag)}", "expected a value without a tag")
    if node.id == "sequence":
        return made._replace(value=[_node(item, 0, faults, seen) for item in node.value])
    if node.id == "scalar":
        if _UNFIT.search(node.value):
            faults.add(line, f"{quoted(node.value)} holds a NUL or half a character")
        return made if node.tag == f"{_CORE}null" else made._replace(value=str(node.value))
    found: dict[str, Node] = {}
    for key, value in node.value:
        at = int(key.start_mark.line) + 1
        if key.id != "scalar":
            faults.add(at, "a key is a list or a mapping", "expected a word")
        elif key.value in found:
            problem = f"key {quoted(key.value)} was already written at line {found[key.value].key_line}"
            faults.add(at, problem, "expected each key once")
        else:
            found[key.value] = _node(value, at, faults, seen)
    return made._replace(value=found)


def _add_syntax_fault(text: str, error: Exception, faults: Faults) -> None:
    """Add a fault at the line where the part begins that could not be read to its end."""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a number out of bounds"
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if context is not None and not str(getattr(error, "context", "")).startswith("while parsing a block"):
        mark = context
    before = text.count("\n", 0, getattr(error, "position", 0))  # of a character that YAML can't have
    lines = text.splitlines() or [""]
    line = min(1 + (int(mark.line) if mark else before), len(lines))
    shown = lines[line - 1].strip(" ")
    hint = 'expected quotes around text with brackets, as in "[fe80::1]:2"' if "[" in shown else ""
    faults.add(line, f"{quoted(shown)} is not YAML: {problem}", hint)


def node_of(value: Any) -> Node:
    """A value of JSON as a node without a line."""
    if isinstance(value, dict):
        return Node({str(key): node_of(each) for key, each in value.items()})
    if isinstance(value, list):
        return Node([node_of(each) for each in value])
    return Node(None if value is None else str(value).lower() if isinstance(value, bool) else str(value))

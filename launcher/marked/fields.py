"""Reading a mapping whose keys are known, one typed field at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.marked.checks import env_name
from launcher.marked.faults import Faults, quoted
from launcher.marked.nodes import Items, Node, Scalar, Table, kind

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


Pairs = tuple[tuple[str, str], ...]


def as_table(node: Node | None, label: str, faults: Faults, expected: str) -> Table | None:
    """``node`` if it is a mapping; ``None`` where there is none, or (a fault) something else."""
    if node is None or isinstance(node, Table):
        return node
    wrong_kind(node, label, faults, expected)
    return None


def wrong_kind(node: Node, label: str, faults: Faults, expected: str) -> None:
    """Note that a node is of the wrong kind; a value is quoted, the others named."""
    if not isinstance(node, Scalar):
        what = f"{label} is {kind(node)}"
    else:
        what = f"{label} has no value" if node.null else f"{label} is {quoted(node.text)}"
    faults.add(node.line, what, expected)


def as_text(node: Node, label: str, faults: Faults) -> str | None:
    """The text of a value; for a list, a mapping or nothing a fault, and ``None``."""
    if isinstance(node, Scalar) and not node.null:
        return node.text
    wrong_kind(node, label, faults, "expected one value")
    return None


def _alone(text: str) -> tuple[str, ...]:
    """A path may have any character in it: what is no list is one."""
    return (text,)


class Fields:
    """The fields of one mapping. Whatever is wrong becomes a fault, and the field ``None``.

    Args:
        table: the mapping.
        known: the keys it may have; any other is a fault.
        faults: where faults go.
        elsewhere: of a key that it may not have, where it belongs; empty: nowhere.
    """

    def __init__(
        self,
        table: Table,
        known: Sequence[str],
        faults: Faults,
        elsewhere: Callable[[str], str] = lambda key: "",
    ) -> None:
        self.line = table.line
        self.faults = faults
        self._nodes = {key.text: node for key, node in table.entries}
        self._lines = {key.text: key.line for key, _ in table.entries}
        for key in [key for key in self._nodes if key not in known]:
            faults.unknown(self._lines[key], key, known, elsewhere(key))

    def node(self, key: str) -> Node | None:
        """What is written at ``key``, unread; ``None``: nothing."""
        return self._nodes.get(key)

    def line_of(self, key: str) -> int:
        """The line of ``key``; that of the mapping where it isn't there."""
        return self._lines.get(key, self.line)

    def table(self, key: str, expected: str) -> Table | None:
        """The mapping at ``key``."""
        return as_table(self.node(key), key, self.faults, expected)

    def read(self, key: str, check: Callable[[str], T]) -> T | None:
        """One value, as ``check`` reads it."""
        node = self.node(key)
        text = None if node is None else as_text(node, key, self.faults)
        if node is None or text is None:
            return None
        return self.faults.check(node.line, key, text, check)

    def words(
        self, key: str, check: Callable[[str], T], split: Callable[[str], Sequence[str]] = _alone
    ) -> tuple[T, ...] | None:
        """A list of values, or one text that ``split`` makes several of; each as ``check`` reads it."""
        node = self.node(key)
        if isinstance(node, Items):
            return self._each(key, node.items, check)
        whole = self.read(key, str)
        if node is None or whole is None:
            return None
        parts = self.faults.check(node.line, key, whole, split) or ()
        return self._each(key, [Scalar(part, node.line, plain=False) for part in parts], check)

    def _each(self, key: str, nodes: Sequence[Node], check: Callable[[str], T]) -> tuple[T, ...]:
        texts = [(node.line, as_text(node, key, self.faults)) for node in nodes]
        values = [self.faults.check(line, key, text, check) for line, text in texts if text is not None]
        return tuple(value for value in values if value is not None)

    def pairs(self, key: str, check_name: Callable[[str], str] = env_name) -> Pairs | None:
        """A mapping of names to texts, in the order written."""
        table = self.table(key, "expected NAME: VALUE lines")
        return None if table is None else tuple(self._pairs(key, table, check_name))

    def _pairs(self, key: str, table: Table, check_name: Callable[[str], str]) -> list[tuple[str, str]]:
        pairs = []
        for word, node in table.entries:
            name = self.faults.check(word.line, f"a name in {key}", word.text, check_name)
            text = as_text(node, f"{key} {quoted(word.text)}", self.faults)
            if name is not None and text is not None:
                pairs.append((name, text))
        return pairs

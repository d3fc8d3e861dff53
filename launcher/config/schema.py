"""Converts the mappings of a file to values by tables of allowed keys, and collects all faults.

`launcher.config.hostfile`, `jobfile` and `tfjob` declare such tables and call `read_mapping`. The functions
below that return a `Read` make the readers for the tables. A reader must add a fault instead of raising.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.common.record import Record
from launcher.common.text import did_you_mean, escape_controls
from launcher.config.documents import MAX_FAULTS, MAX_QUOTED_CHARACTERS, ConfigNode, FaultList, quoted
from launcher.package_data import read_table

#: A reader. It is called with a node, what messages call the node, and the list of faults. It returns the
#: converted value, or adds faults and returns None.
Read = Callable[[ConfigNode, str, FaultList], Any]


def as_written(node: ConfigNode, label: str, faults: FaultList) -> ConfigNode:
    """Return the node itself, because the caller of `read_mapping` will convert it."""
    return node


class KeySpec(Record):
    """One key that a mapping may contain."""

    name: str
    #: The reader of its value.
    read: Read = as_written
    #: The description in the reference documentation.
    help: str = ""


Keys = dict[str, KeySpec]

#: What other inventories call the address to which ssh connects, which is the host's name in ours.
_FOREIGN_ADDRESS_KEYS = ("ip", "addr", "ansible_host", "ansible_ssh_host")


@functools.cache
def _foreign_keys() -> Mapping[str, Mapping[str, str]]:
    """Return the tables of keys of other programs: our names for them, and advice where launch has no key.

    They are read at the first unknown key, because a file without faults does not need them.
    """
    tables = read_table("config/foreign_keys.toml")
    names = {other: name for name, others in tables["names"].items() for other in others.split()}
    advice = {key: text for keys, text in tables["advice"].items() for key in keys.split()}
    return {"names": names, "advice": advice}


def key_table(*keys: KeySpec) -> Keys:
    """Return a table of keys for `read_mapping`."""
    return {key.name: key for key in keys}


class MappingValues(dict[str, Any]):
    """The converted values of a mapping by their keys, as `read_mapping` returns them.

    A value with a fault is missing, but `nodes` contains it.

    Args:
        line: The line of the mapping.
        faults: Receives the faults of the mapping.
    """

    def __init__(self, line: int, faults: FaultList) -> None:
        super().__init__()
        self.line = line
        self.faults = faults
        #: The node of each known key that the file contains.
        self.nodes: dict[str, ConfigNode] = {}
        #: Whether the file contains an unknown key. It may be a misspelt one, which must not be reported as
        #: missing, too.
        self.misspelt = False

    def some(self, *keys: str) -> dict[str, Any]:
        """Return the values of some keys, as arguments for a record. Keys without a value are left out."""
        return {key: self[key] for key in keys if key in self}

    def line_of(self, key: str) -> int:
        """Return the line of a key, or that of the mapping if the file does not contain the key."""
        return self.nodes[key].key_line if key in self.nodes else self.line

    def add(self, key: str, problem: str, expected: str) -> None:
        """Add a fault at the line of a key: what is wrong, and what to write instead."""
        self.faults.add(self.line_of(key), problem, expected)

    def report_missing(self, key: str, problem: str, expected: str) -> bool:
        """Add a fault if a key is missing, and return whether it is.

        No fault is added if the file contains an unknown key, which may be a misspelling of this one.

        Args:
            key: The key.
            problem: What is wrong if it is missing.
            expected: What to write.
        """
        is_missing = key not in self.nodes
        if is_missing and not self.misspelt:
            self.add(key, problem, expected)
        return is_missing


def read_mapping(
    node: ConfigNode,
    keys: Keys,
    faults: FaultList,
    elsewhere: Callable[[str], str] = lambda key: "",
    owner: str = "",
) -> MappingValues:
    """Convert the values of a mapping by a table of keys.

    Args:
        node: The mapping.
        keys: The keys that it may contain. Any other key is a fault.
        faults: Receives the faults.
        elsewhere: Returns what to do about an unknown key that belongs elsewhere, or an empty text.
        owner: What messages add to each key, such as ``of worker``.
    """
    values = MappingValues(node.line, faults)
    for name, value in node.value.items():
        if name not in keys:
            # Suggestions take time, and a file with more faults than are shown is of another kind anyway.
            hint = elsewhere(name) or (_suggestion(name, value, keys) if len(faults) < MAX_FAULTS else "")
            faults.add(value.key_line, f"unknown key {quoted(name)}", hint)
            values.misspelt = True
            continue
        values.nodes[name] = value
        converted = keys[name].read(value, f"{name} {owner}".rstrip(), faults)
        if converted is not None:
            values[name] = converted
    return values


def _suggestion(name: str, value: ConfigNode, keys: Keys) -> str:
    """Return what to write instead of an unknown key.

    Args:
        name: The key, which may be one of another program, or misspelt.
        value: Its value, for the message.
        keys: The keys that the mapping may contain.

    Returns:
        The advice, or an empty text if no key resembles this one.
    """
    word = name.lower().replace("-", "_")
    if word in _FOREIGN_ADDRESS_KEYS and "address" in keys:
        written = "it"
        if isinstance(value.value, str):
            written = escape_controls(value.value[:MAX_QUOTED_CHARACTERS])
        connected = f"expected {written} as the name, which ssh connects to; or HostName in ~/.ssh/config"
        return f'{connected}; "address" is for other tasks'
    foreign = _foreign_keys()
    if foreign["names"].get(word) in keys:
        return f'expected "{foreign["names"][word]}"'
    return foreign["advice"].get(word) or did_you_mean(name, tuple(keys))


def text_of(node: ConfigNode, label: str, faults: FaultList) -> str | None:
    """Return the text of a node. If it is a list, a mapping or empty, add a fault and return None.

    Args:
        node: The node.
        label: What messages call it.
        faults: Receives the fault.
    """
    if isinstance(node.value, str):
        return node.value
    faults.add_kind(node, label, "expected one value")
    return None


def mapping_of(
    node: ConfigNode, label: str, faults: FaultList, expected: str = "expected a mapping"
) -> dict[str, ConfigNode]:
    """Return the mapping of a node. If it is anything else, add a fault and return an empty mapping.

    Args:
        node: The node.
        label: What messages call it.
        faults: Receives the fault.
        expected: What to write instead.
    """
    if isinstance(node.value, dict):
        return node.value
    faults.add_kind(node, label, expected)
    return {}


def single(read: Callable[[str], Any]) -> Read:
    """Return a reader of a node that contains one text.

    Args:
        read: Converts the text, or raises ``ValueError("expected ...")``.
    """

    def value(node: ConfigNode, label: str, faults: FaultList) -> Any:
        """Convert the text of a node, or add a fault and return None."""
        text = text_of(node, label, faults)
        return None if text is None else faults.check(node.line, label, text, read)

    return value


def alone(text: str) -> Sequence[str]:
    """Return a text as the only item of a list: it is not split, because a path may contain commas."""
    return (text,)


def several(
    read: Callable[[str], Any], split: Callable[[str], Sequence[str]] = alone, pairs: bool = False
) -> Read:
    """Return a reader of a list of different values, which makes a tuple of them.

    The file may contain a list (``[a, b]``), with ``split`` a text in its place (``a,b``), and with ``pairs``
    a mapping (``zone: a``).

    Args:
        read: Converts the text of each value, or raises ``ValueError("expected ...")``.
        split: Makes a list of a text that is written in place of a list.
        pairs: Whether a mapping may be written in place of a list, where ``zone: a`` means ``zone=a``.
    """

    def values(node: ConfigNode, label: str, faults: FaultList) -> Any:
        """Convert each item of a node to a value, and add a fault for each wrong or repeated item."""
        items = node.value
        if isinstance(items, dict) and pairs:
            named = [(name, text_of(value, label, faults)) for name, value in items.items()]
            items = [ConfigNode(f"{name}={text}", node.line) for name, text in named if text is not None]
        elif not isinstance(items, list):
            text = text_of(node, label, faults)
            parts = None if text is None else faults.check(node.line, label, text, split)
            if parts is None:
                return None
            items = [ConfigNode(part, node.line) for part in parts]
        # A wrong item becomes None, and its fault is added.
        converted = [single(read)(item, label, faults) for item in items]
        texts = [item.value for item in items]
        if None not in converted and len(set(texts)) < len(texts):
            repeated = [text for text in texts if texts.count(text) > 1]
            faults.add(node.line, f"{label} is {quoted(','.join(texts))}", f'expected "{repeated[0]}" once')
        return tuple(value for value in converted if value is not None)

    return values


def named_texts(read_name: Callable[[str], str]) -> Read:
    """Return a reader of a mapping of names to texts, which makes a tuple of pairs (name, text) of it.

    Args:
        read_name: Returns a name that it has checked, or raises ``ValueError("expected ...")``.
    """

    def texts(node: ConfigNode, label: str, faults: FaultList) -> Any:
        """Convert a mapping to pairs of a checked name and a text, and add its faults."""
        if not isinstance(node.value, dict):
            faults.add_kind(node, label, "expected NAME: VALUE lines")
            return None
        pairs = []
        for name, value in node.value.items():
            checked_name = faults.check(value.key_line, f"a name in {label}", name, read_name)
            pairs.append((checked_name, text_of(value, f"{label} {quoted(name)}", faults)))
        # A name or text that is wrong has become None, and its fault was added.
        return tuple(pair for pair in pairs if None not in pair)

    return texts


def by_role(read: Read) -> Read:
    """Return a reader of a value for all roles, or of a mapping of roles to values.

    The value is a tuple of pairs of a role and its value. For all roles, there is one pair with an empty
    name.

    Args:
        read: The reader of a value.
    """

    def pairs(node: ConfigNode, label: str, faults: FaultList) -> Any:
        """Convert one value for all roles, or a mapping of roles, to pairs of a role and its value."""
        if not isinstance(node.value, dict):
            value = read(node, label, faults)
            return None if value is None else (("", value),)
        values = [(name, read(value, f"{label} of {name}", faults)) for name, value in node.value.items()]
        return tuple((name, value) for name, value in values if value is not None)

    return pairs


def mapping(keys: Keys, expected: str) -> Read:
    """Return a reader of a mapping by a table of keys.

    Args:
        keys: The keys that the mapping may contain.
        expected: What messages say to write in place of anything else.
    """

    def values(node: ConfigNode, label: str, faults: FaultList) -> Any:
        """Convert the values of a mapping, or add a fault for anything else and return None."""
        if not isinstance(node.value, dict):
            faults.add_kind(node, label, expected)
            return None
        return read_mapping(node, keys, faults)

    return values

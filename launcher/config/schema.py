"""Mappings of a file -> values, by tables of keys; collects all faults of one input, with their lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from launcher.common.record import Record
from launcher.common.text import did_you_mean, escape_controls
from launcher.config.documents import MAX_FAULTS, MAX_QUOTED_CHARACTERS, ConfigNode, FaultList, quoted

#: Converts a node, for the key with this label; or adds faults and returns ``None``.
Read = Callable[[ConfigNode, str, FaultList], Any]


def as_written(node: ConfigNode, label: str, faults: FaultList) -> ConfigNode:
    """Return the node, which the caller of `read_mapping` converts."""
    return node


class KeySpec(Record):
    """One key of a mapping."""

    name: str
    read: Read = as_written
    #: The description in the reference documentation.
    help: str = ""


Keys = dict[str, KeySpec]

#: Names of keys in files of other programs -> ours.
_FOREIGN_KEYS = {
    other: name
    for name, others in {
        "command": "program cmd script entrypoint executable run main",
        "count": "replicas num number instances nprocs size num_tasks",
        "gpus": "num_gpus gpu_count gpus_per_task accelerators resources",
        "env": "environment envs environ variables",
        "workdir": "cwd wdir chdir working_dir working_directory directory",
        "hosts": "hostfile nodes machines inventory",
        "docker": "image container",
        "timeout": "time_limit walltime",
        "restarts": "max_restarts retries max_retries backoff_limit",
        "mounts": "volumes binds",
        "collect": "download artifacts outputs",
        "roles": "tasks groups cluster",
        "name": "host hostname",
        "user": "login ansible_user",
        "port": "ssh_port ansible_port",
    }.items()
    for other in others.split()
}
#: Names that other inventories have for the address that ssh connects to: ours is the host's name.
_FOREIGN_ADDRESS_KEYS = ("ip", "addr", "ansible_host", "ansible_ssh_host")
_SSH_KEY_ADVICE = "expected IdentityFile for this host in ~/.ssh/config"
#: What to write instead of a key for which there is none of ours.
_KEY_ADVICE = {
    "args": 'expected the arguments in "command", as in [train.py, --epochs, 3]',
    "module": 'expected "command", as in [-m, package.module]',
    **dict.fromkeys(
        ("identity_file", "identityfile", "ssh_key", "key", "private_key", "password"), _SSH_KEY_ADVICE
    ),
}


def key_table(*keys: KeySpec) -> Keys:
    """Return the table of these keys."""
    return {key.name: key for key in keys}


class MappingValues(dict[str, Any]):
    """The converted values of a mapping. A value with a fault is in ``nodes`` only."""

    def __init__(self, line: int, faults: FaultList) -> None:
        super().__init__()
        self.line = line
        self.faults = faults
        #: The node of each key that is written.
        self.nodes: dict[str, ConfigNode] = {}
        #: Whether a key is unknown: it may be a misspelt key, which must not be reported as missing as well.
        self.misspelt = False

    def some(self, *keys: str) -> dict[str, Any]:
        """The values of these keys, without keys that have none: for the fields of a record with defaults."""
        return {key: self[key] for key in keys if key in self}

    def line_of(self, key: str) -> int:
        """The line of a key; the line of the mapping if it is not written."""
        return self.nodes[key].key_line if key in self.nodes else self.line

    def add(self, key: str, problem: str, expected: str) -> None:
        """Add a fault at the line of a key."""
        self.faults.add(self.line_of(key), problem, expected)

    def lacks(self, key: str, problem: str, expected: str) -> bool:
        """Return whether a key is not written; then add the fault, unless a misspelt key may be that one."""
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
    """Convert a mapping by its table.

    Args:
        node: a mapping.
        keys: the keys it may have; any other is a fault.
        faults: new faults are added.
        elsewhere: gives the advice for an unknown key that belongs elsewhere; empty: there is none.
        owner: follows each key in faults: ``of worker``.
    """
    values = MappingValues(node.line, faults)
    for name, value in node.value.items():
        if name not in keys:
            # Suggestions take time, and a file with so many faults is of another kind.
            hint = elsewhere(name) or (_suggestion(name, value, keys) if len(faults) < MAX_FAULTS else "")
            faults.add(value.key_line, f"unknown key {quoted(name)}", hint)
            values.misspelt = True
            continue
        values.nodes[name] = value
        found = keys[name].read(value, f"{name} {owner}".rstrip(), faults)
        if found is not None:
            values[name] = found
    return values


def _suggestion(name: str, value: ConfigNode, keys: Keys) -> str:
    """What to write instead of an unknown key."""
    word = name.lower().replace("-", "_")
    if word in _FOREIGN_ADDRESS_KEYS and "address" in keys:
        written = (
            escape_controls(value.value[:MAX_QUOTED_CHARACTERS]) if isinstance(value.value, str) else "it"
        )
        connected = f"expected {written} as the name, which ssh connects to; or HostName in ~/.ssh/config"
        return f'{connected}; "address" is for other tasks'
    if _FOREIGN_KEYS.get(word) in keys:
        return f'expected "{_FOREIGN_KEYS[word]}"'
    return _KEY_ADVICE.get(word) or did_you_mean(name, tuple(keys))


def text_of(node: ConfigNode, label: str, faults: FaultList) -> str | None:
    """The text of a value; if it is a list, a mapping or empty, add a fault and return ``None``."""
    if isinstance(node.value, str):
        return node.value
    faults.add_kind(node, label, "expected one value")
    return None


def mapping_of(
    node: ConfigNode, label: str, faults: FaultList, expected: str = "expected a mapping"
) -> dict[str, ConfigNode]:
    """The mapping of a value; if it is anything else, add a fault and return an empty one."""
    if isinstance(node.value, dict):
        return node.value
    faults.add_kind(node, label, expected)
    return {}


def single(read: Callable[[str], Any]) -> Read:
    """A reader of one value: ``read`` converts its text, or raises ``ValueError("expected ...")``."""

    def value(node: ConfigNode, label: str, faults: FaultList) -> Any:
        text = text_of(node, label, faults)
        return None if text is None else faults.check(node.line, label, text, read)

    return value


def alone(text: str) -> Sequence[str]:
    """A text as the only item of a list: a path may contain commas and blanks."""
    return (text,)


def several(
    read: Callable[[str], Any], split: Callable[[str], Sequence[str]] = alone, pairs: bool = False
) -> Read:
    """A reader of a list of values, each once.

    Args:
        read: as for `single`.
        split: makes a list of a text that is written in its place.
        pairs: a mapping may be written in its place: ``zone: a`` is ``zone=a``.
    """

    def values(node: ConfigNode, label: str, faults: FaultList) -> Any:
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
        found = [single(read)(item, label, faults) for item in items]
        texts = [item.value for item in items]
        if None not in found and len(set(texts)) < len(texts):
            again = next(text for text in texts if texts.count(text) > 1)
            faults.add(node.line, f"{label} is {quoted(','.join(texts))}", f'expected "{again}" once')
        return tuple(value for value in found if value is not None)

    return values


def named(read: Callable[[str], str]) -> Read:
    """A reader of a mapping of names, which ``read`` checks, to texts."""

    def texts(node: ConfigNode, label: str, faults: FaultList) -> Any:
        if not isinstance(node.value, dict):
            return faults.add_kind(node, label, "expected NAME: VALUE lines")
        pairs = []
        for name, value in node.value.items():
            known = faults.check(value.key_line, f"a name in {label}", name, read)
            pairs.append((known, text_of(value, f"{label} {quoted(name)}", faults)))
        return tuple(pair for pair in pairs if None not in pair)

    return texts


def by_role(read: Read) -> Read:
    """A reader of one value for every role (its name is empty), or of a mapping of roles to values."""

    def limits(node: ConfigNode, label: str, faults: FaultList) -> Any:
        if not isinstance(node.value, dict):
            found = read(node, label, faults)
            return None if found is None else (("", found),)
        pairs = [(name, read(value, f"{label} of {name}", faults)) for name, value in node.value.items()]
        return tuple((name, value) for name, value in pairs if value is not None)

    return limits


def mapping(keys: Keys, expected: str) -> Read:
    """A reader of a mapping by a table; anything else is a fault with ``expected``."""

    def values(node: ConfigNode, label: str, faults: FaultList) -> Any:
        if not isinstance(node.value, dict):
            return faults.add_kind(node, label, expected)
        return read_mapping(node, keys, faults)

    return values

"""YAML or TOML -> values, by tables of keys; collects all faults of one input, with their lines.

A `ConfigNode` is a value as it was written, and its line. PyYAML constructs no objects: a tag runs no code,
and each value stays the text that was written (a host may be called ``no``). Aliases are refused: expanded,
they could be gigabytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from launcher.common.errors import Fault, InputError
from launcher.common.record import Record, replace
from launcher.common.text import did_you_mean, escape_controls
from launcher.common.trusted_io import read_most, read_regular, similar_file
from launcher.package_data import load_toml

T = TypeVar("T")

#: Paths of descriptors that the caller has opened.
_DESCRIPTOR_PATHS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")

#: Largest number of faults that are shown: a binary file has thousands.
MAX_FAULTS = 100
#: Largest number of characters of an offending text that are shown.
MAX_QUOTED_CHARACTERS = 80
#: Characters of a large YAML file.
_LARGE_FILE_CHARACTERS = 100_000
#: The tags of YAML's own types.
_CORE_TAG_PREFIX = "tag:yaml.org,2002:"
#: Characters that can't be in arguments or environments of programs.
_UNFIT_CHARACTERS = "[\x00\ud800-\udfff]"
#: Two escapes of JSON that are one character.
_SURROGATE_PAIR = "[\ud800-\udbff][\udc00-\udfff]"
#: A line of TOML that begins a table, or has a key.
_TOML_TABLE = r"\s*\[+([^\[\]=]+)\]+\s*(#|$)"
_TOML_KEY = r"""([\w.'" \t-]+)="""
#: Largest number of names in a key of TOML whose line is known: ``a.b.c`` has three.
_MAX_DOTTED_KEYS = 10


class ConfigNode(Record):
    """A value as it was written: a text, ``None``, a list of nodes, or a dict of nodes."""

    value: Any
    #: The line of the value and of its key, from 1; 0: they are not from a file.
    line: int = 0
    key_line: int = 0
    #: The type that YAML or TOML gives the text: ``str``, ``int``, ``float``, ``bool`` ...
    kind: str = "str"


def plain(node: ConfigNode) -> Any:
    """The value with the types that YAML or TOML gives its texts, as JSON has it."""
    if isinstance(node.value, dict):
        return {name: plain(value) for name, value in node.value.items()}
    if isinstance(node.value, list):
        return [plain(value) for value in node.value]
    if node.value is None or node.kind not in ("int", "float", "bool"):
        return node.value
    import yaml  # noqa: PLC0415 - 30 ms, for YAML only

    return yaml.safe_load(node.value)


def quoted(text: str) -> str:
    """``text`` in double quotes, with escapes for control characters, shortened."""
    shown = text if len(text) <= MAX_QUOTED_CHARACTERS else text[: MAX_QUOTED_CHARACTERS - 3] + "..."
    return f'"{escape_controls(shown)}"'


class FaultList:
    """The faults of one input, by line.

    Args:
        source: the name of the file or of the option.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        #: The faults by line; of later ones only the number is known.
        self._found: dict[Fault, int] = {}
        self._count = self._more = 0

    def __len__(self) -> int:
        return self._count

    def where(self, line: int) -> str:
        """``file:line``; for line 0 only the source, as the input has no lines."""
        return f"{self.source}:{line}" if line else self.source

    def add(self, line: int, problem: str, expected: str = "") -> None:
        """Add a fault: the problem, with the text quoted, and ``expected ...``."""
        self._count += 1
        if len(self._found) < MAX_FAULTS:
            self._found[Fault(self.where(line), problem, expected)] = line
        else:
            self._more += 1

    def add_kind(self, node: ConfigNode, label: str, expected: str) -> None:
        """Add the fault that a node is a text, a list, a mapping or empty, and should not be."""
        value = node.value
        kind = "is a mapping" if isinstance(value, dict) else "is a list"
        if value is None or isinstance(value, str):
            kind = "has no value" if value is None else f"is {quoted(value)}"
        if isinstance(value, str) and re.fullmatch(r"[\w-]+:\S+", value) and "mapping" in expected:
            expected = 'expected a space after the ":"'
        self.add(node.line, f"{label} {kind}", expected)

    def check(self, line: int, label: str, text: str, read: Callable[[str], T]) -> T | None:
        """Return ``read(text)``; if that raises ``ValueError``, add a fault and return ``None``.

        Args:
            line: of the text.
            label: the name of the value, as in ``slots``.
            read: raises ``ValueError("expected ...")``.
        """
        try:
            return read(text)
        except ValueError as error:
            self.add(line, f"{label} is {quoted(text)}", str(error))
            return None

    def all(self) -> tuple[Fault, ...]:
        """Each fault once, in the order of the lines; at most `MAX_FAULTS`."""
        faults = sorted(self._found, key=lambda fault: self._found[fault])
        more = [Fault(self.source, f"and {self._more} more faults")] if self._more else []
        return (*faults, *more)

    def raise_any(self, error: type[InputError]) -> None:
        """Raise ``error`` with all faults, if there are any."""
        if self._found:
            raise error(self.all())


# ---------------------------------------------------------------------- tables of keys

#: Converts a node, for the key with this label; or adds faults and returns ``None``.
Read = Callable[[ConfigNode, str, FaultList], Any]


def as_written(node: ConfigNode, label: str, faults: FaultList) -> ConfigNode:
    """Return the node, which the caller of `read_mapping` converts."""
    return node


class KeySpec(Record):
    """One key of a mapping."""

    name: str
    #: The description in the reference documentation.
    help: str
    read: Read = as_written


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


def table(*keys: KeySpec) -> Keys:
    """Keys by name."""
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


# ---------------------------------------------------------------------- files, YAML, TOML


def read_text(path: str, kind: str, error: type[InputError]) -> str:
    """The text of a regular file, or of a descriptor (``<(...)`` of a shell), up to a limit.

    Args:
        path: the file.
        kind: of file, for messages: ``hostfile``.
        error: the class to raise.

    Raises:
        InputError: of class ``error``: the file can't be read, is too large, or is not text.
    """
    shown, data = shown_path(path), b""
    try:
        if path.startswith(_DESCRIPTOR_PATHS):
            with open(path, "rb") as file:
                data = read_most(file)
        else:
            data = read_regular(path)
        return data.decode("utf-8-sig")
    except OSError as cause:
        meant = similar_file(path) if isinstance(cause, FileNotFoundError) else ""
        expected = f"did you mean {shown_path(meant)}?" if meant else ""
        fault = Fault(shown, f"can't read the {kind}: {cause.strerror}", expected)
    except UnicodeDecodeError as cause:
        problem = f"not UTF-8 text: byte 0x{data[cause.start]:02x}"
        fault = Fault(f"{shown}:{data.count(10, 0, cause.start) + 1}", problem, "expected a text file")
    raise error([fault])


def shown_path(path: str) -> str:
    """A path for a message, on one line."""
    return path if path.isprintable() else repr(path)


def parse_yaml(text: str, faults: FaultList) -> list[ConfigNode]:
    """Return the documents in ``text`` that are not empty.

    Returns:
        No documents if there are faults, which were added.
    """
    import yaml  # noqa: PLC0415 - 30 ms, for YAML only

    before = len(faults)
    try:
        quick = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, but its messages are terse
        roots = yaml.compose_all(
            _without_tabs(text), Loader=yaml.SafeLoader if len(text) <= _LARGE_FILE_CHARACTERS else quick
        )
        nodes = [_node(root, 0, faults, set()) for root in roots]
        return [node for node in nodes if node.value is not None] if len(faults) == before else []
    except RecursionError:
        faults.add(0, "nested too deep", "expected a few levels")
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # "\\UFFFFFFFF" is a ValueError
        _add_syntax_fault(text, error, faults)
    return []


def _without_tabs(text: str) -> str:
    """Replace the tabs by which JSON is indented, because YAML can't have them. Other texts stay."""
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except ValueError:
        return text
    return text.replace("\t", " ")  # strings of JSON have none


def _node(node: Any, key_line: int, faults: FaultList, seen: set[int]) -> ConfigNode:
    line = int(node.start_mark.line) + 1
    made = ConfigNode(None, line, key_line or line)
    if id(node) in seen:
        faults.add(line, "aliases (*NAME) are not supported", "write the value at each place")
        return made
    seen.add(id(node))
    if not node.tag.startswith(_CORE_TAG_PREFIX):
        faults.add(line, f"tag {quoted(node.tag)}", "expected a value without a tag")
    if node.id == "sequence":
        return replace(made, value=[_node(item, 0, faults, seen) for item in node.value])
    if node.id == "scalar":
        text = _with_joined_surrogates(str(node.value))
        _check_fit(text, line, faults)
        if node.tag == f"{_CORE_TAG_PREFIX}null":
            return made
        return replace(made, value=text, kind=node.tag.removeprefix(_CORE_TAG_PREFIX))
    found: dict[str, ConfigNode] = {}
    for key, value in node.value:
        at = int(key.start_mark.line) + 1
        if key.id != "scalar":
            faults.add(at, "a key is a list or a mapping", "expected a word")
            continue
        name = _with_joined_surrogates(str(key.value))
        if name in found:
            problem = f"key {quoted(name)} was already written at line {found[name].key_line}"
            faults.add(at, problem, "expected each key once")
        else:
            found[name] = _node(value, at, faults, seen)
    return replace(made, value=found)


def _with_joined_surrogates(text: str) -> str:
    """Return a text of JSON with one character in place of the two escapes for a character beyond 0xFFFF."""
    return re.sub(
        _SURROGATE_PAIR, lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
    )


def _check_fit(text: str, line: int, faults: FaultList) -> None:
    if re.search(_UNFIT_CHARACTERS, text):
        faults.add(line, f"{quoted(text)} contains a NUL or an unpaired surrogate")


def _add_syntax_fault(text: str, error: Exception, faults: FaultList) -> None:
    """Add the fault of a text that is not YAML, at the line where the faulty part begins."""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a number out of bounds"
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if context is not None and not str(getattr(error, "context", "")).startswith("while parsing a block"):
        mark = context
    before = text.count("\n", 0, getattr(error, "position", 0))  # of a character that YAML can't have
    lines = text.splitlines() or [""]
    line = min(1 + (int(mark.line) if mark else before), len(lines))
    shown = lines[line - 1].strip(" ")
    hint = 'expected quotes around text with brackets, as in "[fe80::1]:2"' if "[" in shown else ""
    if "\t" in problem or "\\t" in problem:
        problem, hint = "it begins with a tab", "expected spaces"
    elif "<block" in problem and not hint:
        problem, hint = "its indentation differs from the lines before it", "expected as many spaces"
    faults.add(line, f"{quoted(shown)} is not YAML: {problem}", hint)


def parse_toml(text: str, table: Sequence[str], faults: FaultList) -> ConfigNode | None:
    """A table of a TOML document; ``None``: it has no such table, or has faults, which were added.

    Args:
        text: the document.
        table: the keys that lead to the table; empty: the whole document.
    """
    try:
        return _toml_table(load_toml(text), table, _toml_lines(text), faults)
    except (RecursionError, MemoryError):
        faults.add(0, "nested too deep", "expected a few levels")
    except ValueError as error:  # of tomllib; a number with thousands of digits is another ValueError
        problem, _, position = str(error).partition(" (at ")
        found = re.match(r"line (\d+)", position)
        faults.add(int(found[1]) if found else len(text.splitlines()), f"not TOML: {problem}")
    return None


def _toml_table(
    value: Any, table: Sequence[str], lines: Mapping[tuple[str, ...], int], faults: FaultList
) -> ConfigNode | None:
    """See `parse_toml`."""
    for number, key in enumerate(table, 1):
        value = value.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            line = lines.get(tuple(table[:number]), 0)
            faults.add(
                line, f"{quoted('.'.join(table[:number]))} is not a table", "expected KEY = VALUE lines"
            )
            return None
    return node_of(value, faults, lines, tuple(table))


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key and table, found by its look: tomllib gives no lines.

    A key is a path of at most `_MAX_DOTTED_KEYS` names.
    """
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header, key = re.match(_TOML_TABLE, line), re.match(_TOML_KEY, line.strip())
        if header:
            table = path = _toml_path(header[1])
        elif key:
            path = (*table, *_toml_path(key[1]))
        else:
            continue
        for length in range(1, min(len(path), _MAX_DOTTED_KEYS) + 1):
            found.setdefault(path[:length], number)
    return found


def _toml_path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def node_of(
    value: Any,
    faults: FaultList,
    lines: Mapping[tuple[str, ...], int] = {},
    path: tuple[str, ...] = (),
    line: int = 0,
) -> ConfigNode:
    """A JSON or TOML value as a node.

    Args:
        value: the value.
        faults: new faults are added.
        lines: path -> line; without its line a value has that of the value it is in.
        path: the keys that lead to the value.
        line: of the value it is in.
    """
    line = lines.get(path, line)
    if isinstance(value, dict):
        items = value.items()
        found = {str(key): node_of(each, faults, lines, (*path, str(key)), line) for key, each in items}
        return ConfigNode(found, line, line)
    if isinstance(value, list):
        return ConfigNode([node_of(each, faults, lines, path, line) for each in value], line, line)
    text = None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    _check_fit(text or "", line, faults)
    return ConfigNode(text, line=line, key_line=line, kind=type(value).__name__)

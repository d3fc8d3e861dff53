"""Reads the user's YAML and TOML files into nodes, which are values with their lines.

`launcher.config.jobfile`, `hostfile` and `defaults` call it. PyYAML must not construct objects, so that a tag
runs no code and each value stays the text that was written: a host may be called ``no``. Aliases are refused,
because they could expand to gigabytes.

A job file, a TFJob or a hostfile may be among the objects of Kubernetes. So a file may contain several
documents, or lists of objects (``kubectl get -o yaml``), of which launch uses one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from launcher.common.errors import Fault, InputError
from launcher.common.record import Record, replace
from launcher.common.text import escape_controls, join_names, without_passwords
from launcher.common.trusted_io import meant_file, read_at_most, read_regular
from launcher.package_data import load_toml

T = TypeVar("T")

#: The beginnings of paths of descriptors that the caller has opened.
_DESCRIPTOR_PATHS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")

#: More faults are counted but not shown, because a binary file has thousands.
MAX_FAULTS = 100
#: Messages cut longer texts to this number of characters.
MAX_QUOTED_CHARACTERS = 80
#: Larger YAML files are read by the faster parser.
_LARGE_FILE_CHARACTERS = 100_000
#: The beginning of the tags of YAML's own types.
_CORE_TAG_PREFIX = "tag:yaml.org,2002:"
#: Matches a character that arguments and environments of programs cannot contain.
_UNFIT_CHARACTERS = "[\x00\ud800-\udfff]"
#: Matches two escapes of JSON that stand for one character.
_SURROGATE_PAIR = "[\ud800-\udbff][\udc00-\udfff]"
#: Matches the head of a table of TOML.
_TOML_TABLE = r"\s*\[+([^\[\]=]+)\]+\s*(#|$)"
#: Matches the beginning of a line of TOML with a key.
_TOML_KEY = r"""([\w.'" \t-]+)="""
#: The line of a longer key of TOML is not kept, so that a file with huge keys takes no huge memory. ``a.b.c``
#: consists of three names.
_MAX_DOTTED_KEYS = 10
#: The kind of object of Kubernetes that is a job for launch.
TFJOB = "TFJob"
#: Kinds of objects that contain a TFJob, with the place of the TFJob.
_KINDS_WITH_TFJOB = {"Experiment": "spec.trialTemplate.trialSpec, its placeholders filled in"}
#: Matches a placeholder that Katib fills in.
_KATIB_PLACEHOLDER = r"\$\{trialParameters\.[^}\n]*\}"
#: Matches a placeholder that Helm fills in.
_HELM_PLACEHOLDER = r"\{\{-?[ \t]*(?:\.(?:Values|Release|Chart|Capabilities)|include|toYaml)\b[^}\n]*\}\}"
#: Matches any placeholder of a template. Because YAML may contain it, it is a fault only in a file that is
#: not YAML.
_TEMPLATE_PLACEHOLDER = r"\{\{-[^}\n]*\}\}"


class ConfigNode(Record):
    """A value of a file as it was written, with its line."""

    #: A text, None, a list of nodes, or a dict of nodes.
    value: Any
    #: The line of the value, from 1. It is 0 if the value comes from no file.
    line: int = 0
    #: The line of its key, or 0.
    key_line: int = 0
    #: The type of the text in YAML or TOML: ``str``, ``int``, ``float``, ``bool`` ...
    kind: str = "str"


def plain(node: ConfigNode) -> Any:
    """Return the value of a node as plain Python objects, with all nodes in it.

    A number or a boolean, which a node keeps as the text that was written, becomes an object of its type.
    """
    if isinstance(node.value, dict):
        return {name: plain(value) for name, value in node.value.items()}
    if isinstance(node.value, list):
        return [plain(value) for value in node.value]
    if node.value is None or node.kind not in ("int", "float", "bool"):
        return node.value
    import yaml  # noqa: PLC0415 - takes 30 ms, and only YAML needs it

    return yaml.safe_load(node.value)


def quoted(text: str) -> str:
    """Return a text for messages: in double quotes, shortened, with escapes, without passwords of URLs."""
    text = without_passwords(text)
    shown = text if len(text) <= MAX_QUOTED_CHARACTERS else text[: MAX_QUOTED_CHARACTERS - 3] + "..."
    return f'"{escape_controls(shown)}"'


class FaultList:
    """The faults of one input, collected so that all of them are reported at once.

    Args:
        source: The name of the file or of the option, for messages.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        #: The first faults, each with its line.
        self._found: dict[Fault, int] = {}
        # `_count` is the number of all faults, and `_more` that of the faults that `_found` does not contain.
        self._count = self._more = 0

    def __len__(self) -> int:
        """Return the number of all faults, even of those that are not shown."""
        return self._count

    def where(self, line: int) -> str:
        """Return ``file:line``, or only the source for line 0, which means that the input has no lines."""
        return f"{self.source}:{line}" if line else self.source

    def add(self, line: int, problem: str, expected: str = "") -> None:
        """Add a fault.

        Args:
            line: The line, or 0.
            problem: What is wrong, with the offending text quoted.
            expected: What to write instead, which usually begins with ``expected``.
        """
        self._count += 1
        if len(self._found) < MAX_FAULTS:
            self._found[Fault(self.where(line), problem, expected)] = line
        else:
            self._more += 1

    def add_kind(self, node: ConfigNode, label: str, expected: str) -> None:
        """Add the fault that a node is a text, a list, a mapping or empty where another kind is expected.

        Args:
            node: The node.
            label: What messages call the node.
            expected: What to write instead.
        """
        value = node.value
        kind = "is a mapping" if isinstance(value, dict) else "is a list"
        if value is None:
            kind = "has no value"
        elif isinstance(value, str):
            kind = f"is {quoted(value)}"
            # YAML reads ``slots:2`` as a text, because no space follows the colon.
            if re.fullmatch(r"[\w-]+:\S+", value) and "mapping" in expected:
                expected = 'expected a space after the ":"'
        self.add(node.line, f"{label} {kind}", expected)

    def check(self, line: int, label: str, text: str, read: Callable[[str], T]) -> T | None:
        """Convert a text, or add a fault if it is wrong.

        Args:
            line: The line of the text.
            label: What messages call the value, such as ``slots``.
            text: The text.
            read: Converts the text, or raises ``ValueError("expected ...")``.

        Returns:
            The converted value, or None if a fault was added.
        """
        try:
            return read(text)
        except ValueError as error:
            self.add(line, f"{label} is {quoted(text)}", str(error))
            return None

    def all(self) -> tuple[Fault, ...]:
        """Return each fault once, in the order of the lines.

        These are at most `MAX_FAULTS`. If there are more, the last fault returned says how many.
        """
        faults = sorted(self._found, key=lambda fault: self._found[fault])
        more = [Fault(self.source, f"and {self._more} more faults")] if self._more else []
        return (*faults, *more)

    def raise_any(self, error: type[InputError]) -> None:
        """Raise an error of a class with all faults, if there are any."""
        if self._found:
            raise error(self.all())


# ---------------------------------------------------------------------- files, YAML, TOML


def read_text(path: str, kind: str, error: type[InputError]) -> str:
    """Return the text of a regular file, or of a descriptor such as ``<(...)`` of a shell makes.

    Args:
        path: The path of the file.
        kind: What messages call the file, such as ``hostfile``.
        error: The class of the error to raise.

    Raises:
        InputError: The file cannot be read, is too large, or is not text. The error belongs to the given
            class.
    """
    shown, data = escape_controls(path), b""
    try:
        if path.startswith(_DESCRIPTOR_PATHS):
            with open(path, "rb") as file:
                data = read_at_most(file)
        else:
            data = read_regular(path)
        return data.decode("utf-8-sig")
    except OSError as cause:
        expected = meant_file(path) if isinstance(cause, FileNotFoundError) else ""
        fault = Fault(shown, f"cannot read the {kind}: {cause.strerror}", expected)
    except UnicodeDecodeError as cause:
        problem = f"not UTF-8 text: byte 0x{data[cause.start]:02x}"
        # The line is one more than the line ends (byte 10) before the wrong byte.
        fault = Fault(f"{shown}:{data.count(10, 0, cause.start) + 1}", problem, "expected a text file")
    raise error([fault])


def parse_yaml(text: str, faults: FaultList) -> list[ConfigNode]:
    """Return the documents of a YAML text that are not empty.

    Args:
        text: The text.
        faults: Receives the faults of the text. With any of them, no documents are returned.
    """
    import yaml  # noqa: PLC0415 - takes 30 ms, and only YAML needs it

    faults_before = len(faults)
    try:
        # The parser in C, which PyYAML may lack, is ten times as fast, but its messages are terse.
        fast_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        loader = yaml.SafeLoader if len(text) <= _LARGE_FILE_CHARACTERS else fast_loader
        roots = yaml.compose_all(_without_tabs(text), Loader=loader)
        nodes = [_node(root, key_line=0, faults=faults, seen=set()) for root in roots]
        return [node for node in nodes if node.value is not None] if len(faults) == faults_before else []
    except RecursionError:
        faults.add(0, "nested too deep", "expected a few levels")
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # The escape "\\UFFFFFFFF" is a ValueError.
        _add_syntax_fault(text, error, faults)
    return []


def _without_tabs(text: str) -> str:
    """Return JSON with blanks in place of its tabs, because YAML refuses tabs in an indentation.

    A text that is not JSON is returned as it is.
    """
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except ValueError:
        return text
    return text.replace("\t", " ")  # Strings of JSON cannot contain tabs.


def _node(node: Any, key_line: int, faults: FaultList, seen: set[int]) -> ConfigNode:
    """Convert a node of PyYAML to a `ConfigNode`, with all nodes in it.

    The nodes keep texts as they were written. YAML's null becomes None.

    Args:
        node: The node of PyYAML.
        key_line: The line of its key, or 0 if it has none.
        faults: Receives the faults of the node.
        seen: The identities of the nodes so far. A node that comes again is an alias, which is a fault.
    """
    line = int(node.start_mark.line) + 1
    # Without a value this is YAML's null. Each other result is a copy of it with a value.
    empty = ConfigNode(None, line, key_line or line)
    if id(node) in seen:
        faults.add(line, "aliases (*NAME) are not supported", "write the value at each place")
        return empty
    seen.add(id(node))
    if not node.tag.startswith(_CORE_TAG_PREFIX):
        faults.add(line, f"tag {quoted(node.tag)}", "expected a value without a tag")
    if node.id == "sequence":
        return replace(empty, value=[_node(item, 0, faults, seen) for item in node.value])
    if node.id == "scalar":
        text = _with_joined_surrogates(str(node.value))
        _refuse_unfit_characters(text, line, faults)
        if node.tag == f"{_CORE_TAG_PREFIX}null":
            return empty
        return replace(empty, value=text, kind=node.tag.removeprefix(_CORE_TAG_PREFIX))
    members: dict[str, ConfigNode] = {}
    for key, value in node.value:
        line_of_key = int(key.start_mark.line) + 1
        if key.id != "scalar":
            faults.add(line_of_key, "a key is a list or a mapping", "expected a word")
            continue
        name = _with_joined_surrogates(str(key.value))
        if name in members:
            problem = f"key {quoted(name)} was already written at line {members[name].key_line}"
            faults.add(line_of_key, problem, "expected each key once")
        else:
            members[name] = _node(value, line_of_key, faults, seen)
    return replace(empty, value=members)


def _with_joined_surrogates(text: str) -> str:
    r"""Return a text with each pair of UTF-16 surrogates replaced by the character that it stands for.

    JSON writes a character beyond 0xFFFF as two escapes, such as ``\ud83d\ude00``. PyYAML makes two
    characters of them.
    """
    return re.sub(
        _SURROGATE_PAIR, lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
    )


def _refuse_unfit_characters(text: str, line: int, faults: FaultList) -> None:
    """Add a fault if a text contains a character that no argument of a program can contain.

    These are the NUL, and surrogates, which cannot be encoded in UTF-8.
    """
    if re.search(_UNFIT_CHARACTERS, text):
        faults.add(line, f"{quoted(text)} contains a NUL or an unpaired surrogate")


def _add_syntax_fault(text: str, error: Exception, faults: FaultList) -> None:
    """Add the fault of a text that is not YAML, at the line where the faulty part begins.

    Args:
        text: The text.
        error: What PyYAML raised. Its classes of errors have different attributes.
        faults: Receives the fault, with a hint for frequent mistakes.
    """
    # A marked error has a problem, and one about a character a reason. Otherwise a number could not be read.
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a number out of bounds"
    mark, context_mark = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    # The context is where the faulty part begins. But a block begins long before its faulty line.
    if context_mark and not str(getattr(error, "context", "")).startswith("while parsing a block"):
        mark = context_mark
    # An error about a character that YAML refuses has no mark, only a position.
    lines_before = int(mark.line) if mark else text.count("\n", 0, getattr(error, "position", 0))
    lines = text.splitlines() or [""]
    line = min(1 + lines_before, len(lines))
    shown = lines[line - 1].strip(" ")
    hint = 'expected quotes around text with brackets, as in "[fe80::1]:2"' if "[" in shown else ""
    # The texts are those of PyYAML.
    if "\t" in problem or "\\t" in problem:
        problem, hint = "it begins with a tab", "expected spaces"
    elif "<block" in problem and not hint:
        problem, hint = "its indentation differs from the lines before it", "expected as many spaces"
    faults.add(line, f"{quoted(shown)} is not YAML: {problem}", hint)


def parse_toml(text: str, table: Sequence[str], faults: FaultList) -> ConfigNode | None:
    """Return one table of a TOML document as a node.

    Args:
        text: The document.
        table: The names that lead to the table, such as ``("tool", "launch")``. Without any, the whole
            document is returned.
        faults: Receives the faults of the document.

    Returns:
        The table, or None if the document does not contain it or faults were added.
    """
    try:
        value: Any = load_toml(text)
        lines = _toml_lines(text)
        for number, key in enumerate(table, 1):
            value = value.get(key)
            if value is None:
                return None
            if not isinstance(value, dict):
                problem = f"{quoted('.'.join(table[:number]))} is not a table"
                faults.add(lines.get(tuple(table[:number]), 0), problem, "expected KEY = VALUE lines")
                return None
        return node_of(value, faults, lines, tuple(table))
    except (RecursionError, MemoryError):
        faults.add(0, "nested too deep", "expected a few levels")
    # This is an error of tomllib, or of `int` for a number with thousands of digits, which names no line.
    except ValueError as error:
        problem, _, position = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", position)
        faults.add(int(line[1]) if line else len(text.splitlines()), f"not TOML: {problem}")
    return None


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each key and table of a TOML document, by the names that lead to it.

    The lines are found by patterns, because tomllib does not report them. Keys of more than
    `_MAX_DOTTED_KEYS` names are missing.
    """
    line_by_path: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()  # The table whose keys follow.
    for number, line in enumerate(text.splitlines(), 1):
        header, key = re.match(_TOML_TABLE, line), re.match(_TOML_KEY, line.strip())
        if header:
            table = path = _toml_path(header[1])
        elif key:
            path = (*table, *_toml_path(key[1]))
        else:
            continue
        # The first ``a.b.c`` is also the first line of ``a`` and of ``a.b``.
        for length in range(1, min(len(path), _MAX_DOTTED_KEYS) + 1):
            line_by_path.setdefault(path[:length], number)
    return line_by_path


def _toml_path(dotted: str) -> tuple[str, ...]:
    """Return the names in a dotted key of TOML, such as ``a."b".c``, without quotes."""
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def node_of(
    value: Any,
    faults: FaultList,
    lines: Mapping[tuple[str, ...], int] = {},
    path: tuple[str, ...] = (),
    line: int = 0,
) -> ConfigNode:
    """Return a value of JSON or TOML as a node, with all values in it.

    Numbers and booleans become texts, as they are in YAML, and the node's ``kind`` says what they were.

    Args:
        value: The value.
        faults: Receives the faults of the value.
        lines: The known lines, by the keys that lead to a value.
        path: The keys that lead to this value.
        line: The line of the value that contains this one. It stands for a line that is unknown.
    """
    line = lines.get(path, line)
    if isinstance(value, dict):
        texts = {str(key): member for key, member in value.items()}
        members = {key: node_of(member, faults, lines, (*path, key), line) for key, member in texts.items()}
        return ConfigNode(members, line, line)
    if isinstance(value, list):
        return ConfigNode([node_of(item, faults, lines, path, line) for item in value], line, line)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    _refuse_unfit_characters(text, line, faults)
    return ConfigNode(None if value is None else text, line, line, kind=type(value).__name__)


# ---------------------------------------------------------------------- the one document


class Target(Record):
    """What the command line says about the tasks of a TFJob, so that it can become a job file."""

    #: The program with its arguments, for containers that have no command.
    program: tuple[str, ...] = ()
    #: What runs the tasks in containers: ``docker`` or ``kubernetes``. It is empty if nothing does.
    engine: str = ""
    #: Whether the containers use the images that the TFJob names.
    images: bool = False
    #: The names of variables that tasks get from the command line.
    variables: frozenset[str] = frozenset()


#: The target of a command line without such options.
NO_TARGET = Target()


def job_document(text: str, faults: FaultList, notes: list[str]) -> ConfigNode | None:
    """Return the document of a file that describes the job: its only TFJob, or else its only document.

    Args:
        text: The content of the file.
        faults: Receives the faults of the file.
        notes: Receives notes for the user.

    Returns:
        The document, which is a mapping, or None if faults were added.
    """
    documents = _documents(text, faults)
    if documents is None:
        return None
    jobs = [document for document in documents if is_tfjob(document)]
    if not jobs:
        return _only(documents, f"expected kind: {TFJOB}, or a mapping with command: and roles:", faults)
    if len(jobs) > 1:
        problem = f"the file has {len(jobs)} TFJobs, the first at line {jobs[0].line}"
        faults.add(jobs[1].line, problem, "expected one: launch starts one job")
        return None
    others = [f"{_kind(node) or 'a document'} (:{node.line})" for node in documents if node is not jobs[0]]
    if others:
        unused = f"of the same file it does not use {join_names(others)}"
        notes.append(f"{faults.where(jobs[0].line)}: launch uses this TFJob only; {unused}")
    return jobs[0]


def only_document(text: str, expected: str, faults: FaultList) -> ConfigNode | None:
    """Return the only document of a file, which must be a mapping and no object of Kubernetes.

    Args:
        text: The content of the file.
        expected: What messages say that the file should contain.
        faults: Receives the faults of the file.

    Returns:
        The document, or None if faults were added.
    """
    documents = _documents(text, faults)
    return None if documents is None else _only(documents, expected, faults)


def is_tfjob(node: ConfigNode) -> bool:
    """Return whether a document is a TFJob."""
    return _kind(node) == TFJOB


def _only(documents: Sequence[ConfigNode], expected: str, faults: FaultList) -> ConfigNode | None:
    """Return the only document of a file, which must be a mapping and no object of Kubernetes.

    Args:
        documents: The documents of the file that are not empty.
        expected: What messages say that the file should contain.
        faults: Receives the faults of the file.

    Returns:
        The document, or None if faults were added.
    """
    objects = [document for document in documents if _kind(document)]
    if objects:
        kinds = list(dict.fromkeys(map(_kind, objects)))
        place_of_tfjob = _KINDS_WITH_TFJOB.get(kinds[0])
        if place_of_tfjob:
            expected += f"; {kinds[0]} has a {TFJOB} at {place_of_tfjob}"
        faults.add(objects[0].line, f"this is a file of Kubernetes ({', '.join(kinds)})", expected)
        return None
    if len(documents) > 1:
        problem = f"a second document, after that at line {documents[0].line}"
        faults.add(documents[1].line, problem, "expected one document")
        return None
    document = documents[0] if documents else ConfigNode(None, 1, 1)
    if isinstance(document.value, dict):
        return document
    faults.add_kind(document, "the file", expected)
    return None


def _documents(text: str, faults: FaultList) -> list[ConfigNode] | None:
    """Return the documents of a file that are not empty.

    A list of Kubernetes is replaced by its objects. A placeholder of Katib or Helm that nobody has filled in
    is a fault.

    Args:
        text: The content of the file.
        faults: Receives the faults of the file.

    Returns:
        The documents, or None if faults were added.
    """
    # These faults are kept apart, because a placeholder that is not filled in may explain all of them.
    yaml_faults = FaultList(faults.source)
    documents = [each for node in parse_yaml(text, yaml_faults) for each in _objects(node)]
    is_yaml = not yaml_faults
    # Only a TFJob comes from Katib or Helm, so other files may contain placeholders. If a file is not
    # YAML, placeholders may be the reason, and then they are the fault that helps the user.
    if not is_yaml or any(map(is_tfjob, documents)):
        patterns = [_KATIB_PLACEHOLDER, _HELM_PLACEHOLDER, *([] if is_yaml else [_TEMPLATE_PLACEHOLDER])]
        # A placeholder within a comment does no harm.
        unfilled = re.search(rf"(?m)^(?![ \t]*#).*?({'|'.join(patterns)})", text)
        if unfilled:
            line = text.count("\n", 0, unfilled.start(1)) + 1
            expected = "expected the output of `helm template CHART`"
            if unfilled[1].startswith("$"):
                expected = "expected a value, as Katib writes it into the TFJob of each trial"
            faults.add(line, f"the placeholder {quoted(unfilled[1])} is not filled in", expected)
            return None
    if not is_yaml:
        parse_yaml(text, faults)  # It adds its faults to those that are reported.
        return None
    return documents


def _objects(node: ConfigNode) -> Iterator[ConfigNode]:
    """Yield the objects of a list of Kubernetes (``kind: List``), or else the document itself.

    A list within a list is replaced by its objects, too. An empty list is yielded as it is.
    """
    items = node.value["items"].value if _kind(node).endswith("List") and "items" in node.value else None
    if not items or not isinstance(items, list):
        yield node
        return
    for item in items:
        yield from _objects(item)


def _kind(node: ConfigNode) -> str:
    """Return the kind of an object of Kubernetes, such as ``Pod``.

    Returns:
        The kind, ``without a kind`` for an object that lacks it, or an empty text for any other document.
    """
    if not isinstance(node.value, dict):
        return ""
    # A mapping without the key yields itself, whose value is no text.
    kind = node.value.get("kind", node).value
    if "apiVersion" in node.value or kind == TFJOB or {"kind", "spec"} <= node.value.keys():
        return kind if isinstance(kind, str) and kind else "without a kind"
    return ""

"""Reads hosts from hostfiles and host lists.

``launch`` calls `read_hosts`, and the reader of job files calls `read_host_list`. No host is connected to or
looked up here. There are three forms: YAML, plain lines as MPI, DeepSpeed and PBS write them, and the inline
list of ``--hosts``. A plain line contains a host and its settings::

    # comment
    node1 slots=4 max-slots=8
    node4 4 all.q@node4 UNDEFINED
    user@node2:4 labels=fast,zone=a workdir="/data/my runs"
    node[03-16]
    fe80::1%eth0 slots = 2

Single or double quotes enclose any other characters, and a backslash is literal. ``#`` starts a comment where
a setting could start. A line with nothing but a name may be repeated, and each line is one slot, as in node
files of PBS. The line of ``node4`` comes from Grid Engine's PE_HOSTFILE.

Names become arguments of ssh and names of folders, so a name must not begin with ``-`` or contain a slash.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.common.errors import Fault, HostfileError
from launcher.common.record import replace
from launcher.common.text import escape_controls
from launcher.common.trusted_io import meant_file
from launcher.config import schema, values
from launcher.config.documents import ConfigNode, FaultList, only_document, quoted, read_text
from launcher.config.schema import KeySpec, MappingValues, key_table, several, single, text_of
from launcher.config.values import comma_separated
from launcher.job import Host

#: The largest number of hosts in a launch.
MAX_HOSTS = 4096
#: The largest length of a name before its ranges are expanded.
_MAX_ENTRY_CHARACTERS = 2000
#: The largest length of a name in the DNS.
_MAX_NAME_CHARACTERS = 253
# Numbers of slots that look like ports are refused: that of ssh, and all on which any user may listen.
_SSH_PORT = 22
_FIRST_USER_PORT = 1024
_YAML_ENDINGS = (".yaml", ".yml")
_FILE_ENDINGS = (*_YAML_ENDINGS, ".json", ".txt", ".hosts")
#: Matches an IPv6 address in brackets, perhaps followed by slots.
_BRACKETED = r"(?s)\[([^\[\]]*:[^\[\]]*)\](?::(.*))?"

#: Matches a word of a plain line, parts of which may be in quotes.
_TOKEN = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
#: Matches a setting of a plain line, whose value may be empty even if another setting follows.
_SETTING = rf"([A-Za-z_-]+)\s*=(?:\s+(?![A-Za-z_-]+\s*=))?((?:{_TOKEN})?)(?=\s|$)"
#: Matches what follows the host in a line of Grid Engine's PE_HOSTFILE: slots, queue, processors.
_GRID_ENGINE = r"([0-9]+)\s+\S+@\S+\s+\S+"
#: Matches LSF's LSB_MCPU_HOSTS, such as ``node1 4 node2 8``.
_LSF = r"[A-Za-z][\w.-]*[ \t]+[0-9]{1,3}(?:[ \t]+[A-Za-z][\w.-]*[ \t]+[0-9]{1,3})*"
#: Matches the head of a section in an inventory of Ansible, with the kind of the section.
_SECTION = r"\[[A-Za-z][\w.-]*(?::(vars|children))?\]"
#: What to write instead of a section, by its kind.
_SECTION_ADVICE = {
    None: "expected a host; leave out the groups of an inventory",
    "vars": "expected settings after each host, or below defaults: of a YAML file",
    "children": "expected hosts; leave out the groups of an inventory, and their names",
}
#: Our key for a name that other programs use in plain lines.
_FOREIGN_KEYS = {
    "cpu": "slots", "count": "slots", "max-slots": "max_slots", "slots_max": "max_slots",
    "slots-max": "max_slots", "username": "user",
}  # fmt: skip


# ---------------------------------------------------------------------- one entry


def split_entries(text: str) -> list[str]:
    """Return the entries of a list of hosts, which are separated by commas or ends of lines.

    Commas within brackets belong to a range, as in ``node[1,3]``, and do not separate entries.
    """
    # The split must not see what is in brackets, so other characters stand for its separators meanwhile.
    hidden, shown = str.maketrans(",\n", "\0\1"), str.maketrans("\0\1", ",\n")
    outside = re.sub(r"\[[^\[\]]*\]", lambda brackets: brackets[0].translate(hidden), text)
    return [entry.strip().translate(shown) for entry in re.split("[,\n]", outside)]


def parse_entry(text: str, bare_ipv6: bool) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Read one entry ``[user@]host[:slots]`` of a host list or hostfile.

    Args:
        text: The entry, which may contain ranges such as ``node[01-16]``.
        bare_ipv6: Whether to read ``fe80::1:2`` as an address. Otherwise an address needs brackets, because
            the ``:2`` could be slots.

    Returns:
        The names of the hosts, with ranges expanded, and the fields ``user`` and ``slots`` as far as the
        entry contains them.

    Raises:
        ValueError: The entry is wrong. The text says what was expected.
    """
    if "://" in text:
        raise ValueError("expected a host without a scheme, as in user@node1; its port is a key")
    user, at, rest = text.rpartition("@")  # Without an "@", `user` and `at` are empty.
    bracketed = re.fullmatch(_BRACKETED, rest)
    if re.search(r"\w\[[0-9]+:[0-9]+\]", rest):  # Ansible writes ranges in this way.
        with_dash = re.sub(r"(\[[0-9]+):", r"\1-", rest)
        raise ValueError(f'expected a range with "-", as in {with_dash}')
    if bracketed:
        host, number = bracketed.groups()
    elif bare_ipv6 and _is_ipv6(rest):
        host, number = rest, None
    elif rest.count(":") > 1:
        raise ValueError("expected an IPv6 address in brackets, as in [fe80::1]:2")
    else:
        host, colon, number = rest.partition(":")
        number = number if colon else None
    # The last "@" separates the user. An earlier one belongs to a user with a domain.
    if "@" in user and "." not in user.rpartition("@")[2]:
        raise ValueError('expected one "@", as in user@node1; a user of a domain is user@corp.org@node1')
    # The rest of the checks tells users of other programs what to write instead of the syntax there.
    # ClusterShell writes "@group", and joins sets of hosts by "!" and "&".
    if at and not user:
        raise ValueError(f"expected a host; `nodeset -f {text}` prints the hosts of a group of ClusterShell")
    if re.search(r"[\w\]][!&][@\w]", rest):
        raise ValueError('expected hosts without "!" and "&"; `nodeset -f` prints those that are left')
    names = _host_names(host)
    fields: dict[str, Any] = {"user": values.user_name(user)} if at else {}
    if number is not None:
        fields["slots"] = _inline_slots(number)
    return names, fields


def _inline_slots(text: str) -> int:
    """Return the slots after the colon of a host, as in ``node1:4``.

    TensorFlow's users are used to write a port there. So the number of a port is refused, with an advice.

    Raises:
        ValueError: The text is no number of slots, or may be a port. The message says what was expected.
    """
    try:
        slots = values.slots(text)
    except ValueError:
        raise ValueError(f'expected slots from 1 to {_FIRST_USER_PORT - 1} after the ":"') from None
    if slots != _SSH_PORT and slots < _FIRST_USER_PORT:
        return slots
    raise ValueError(
        f'expected slots after the ":", and {slots} is the form of a port: leave it out, as launch chooses '
        f"the ports of tasks; in a hostfile slots={slots} are slots, and port={slots} is that of ssh"
    )


def parse_address(text: str) -> tuple[str, ...]:
    """Return the addresses that the ``address`` of a host means: one, or several if it contains ranges.

    Args:
        text: A name, which may contain ranges, or an address. An IPv6 address may be in brackets.

    Raises:
        ValueError: The text is wrong. The message says what was expected.
    """
    bracketed = re.fullmatch(_BRACKETED, text)
    # The brackets stay if slots follow them, which is a fault.
    return _host_names(bracketed[1] if bracketed and bracketed[2] is None else text)


def _host_names(text: str) -> tuple[str, ...]:
    """Return the names that a text with ranges means, each of them checked.

    A text that another program would understand, such as ``^host``, gets an error that says what to write
    instead.

    Raises:
        ValueError: The text is no name of hosts. The message says what was expected.
    """
    if text.startswith("^"):
        raise ValueError('expected a host to use; remove excluded hosts ("^host") from the list')
    if text.startswith("+"):
        raise ValueError('expected a host\'s name: relative hosts of PRRTE ("+n2", "+e") are not supported')
    if ":" in text:
        if not _is_ipv6(text):
            raise ValueError('expected a name without ":", or an IPv6 address as in fe80::1%eth0')
        return (text,)
    if re.fullmatch("[1-9][0-9]*", text):
        raise ValueError(
            f'expected a host\'s name, and {text} is a number; slots follow a ":", as in node1:{text}'
        )
    if " " in text:
        raise ValueError("expected one host; several hosts have commas between them, or a line each")
    names = expand(text)
    is_ipv4 = re.compile(r"[0-9]+(\.[0-9]+){3}").fullmatch
    is_name = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*").fullmatch
    for name in names:
        if is_ipv4(name) and not all(int(byte) < 256 for byte in name.split(".")):
            raise ValueError("expected an IPv4 address, four numbers from 0 to 255")
        if not is_name(name):
            raise ValueError(
                "expected a host's name: letters, digits and any of .-_, not beginning with - or ."
            )
        if len(name) > _MAX_NAME_CHARACTERS:
            raise ValueError(f"expected at most {_MAX_NAME_CHARACTERS} characters in a host's name")
    return tuple(names)


def expand(text: str) -> list[str]:
    """Return all names that a text with ranges means, such as ``n[01-16]x[1,3]``.

    The last range varies fastest. A text without ranges is the only name.

    Raises:
        ValueError: Brackets are not in pairs, their numbers do not ascend, or there are too many names. The
            message says what was expected.
    """
    if len(text) > _MAX_ENTRY_CHARACTERS:
        raise ValueError(f"expected at most {_MAX_NAME_CHARACTERS} characters in a host's name")
    if not re.fullmatch(r"([^\[\]]|\[[^\[\]]*\])*", text):
        raise ValueError("expected brackets in pairs, as in node[01-16]")
    names = [""]  # Each part of the text is appended to every name so far.
    for part in re.findall(r"\[.*?\]|[^\[]+", text, re.DOTALL):
        numbers = [part]  # A part without brackets is the same in all names.
        if part.startswith("["):
            numbers = [number for span in part[1:-1].split(",") for number in _span(span)]
        if len(names) * len(numbers) > MAX_HOSTS:
            raise ValueError(f"expected at most {MAX_HOSTS} hosts")
        names = [name + number for name in names for number in numbers]
    return names


def _span(text: str) -> list[str]:
    """Return the numbers that a part of a range means, as texts with leading zeros.

    Args:
        text: A number ``7``, a span ``01-16``, or every second number of a span ``1-15/2``.

    Raises:
        ValueError: The text is no such part. The message says what was expected.
    """
    match = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9})(?:/([1-9][0-9]{0,8}))?)?", text.strip())
    if match is None:
        raise ValueError("expected numbers in the brackets, as in node[01-16] or node[1,3,5-7]")
    low, high = match[1], match[2] or match[1]
    if int(low) > int(high):
        raise ValueError(f"expected a range that goes up, as in [{high}-{low}]")
    padded = low != str(int(low))  # As in 01-16, where all numbers are as long as the first.
    # ``1-16`` is clear, but in ``01-100`` and ``1-016`` it is not how long the numbers should be.
    if len(low) != len(high) and (padded or high != str(int(high))):
        raise ValueError("expected both ends of a range with the same number of digits, as in [001-100]")
    if int(high) - int(low) >= MAX_HOSTS:
        raise ValueError(f"expected at most {MAX_HOSTS} hosts")
    numbers = range(int(low), int(high) + 1, int(match[3] or 1))
    return [f"{number:0{len(low) if padded else 1}}" for number in numbers]


def _is_ipv6(text: str) -> bool:
    """Return whether a text is an IPv6 address without brackets, perhaps with a zone (``fe80::1%eth0``)."""
    form = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9][A-Za-z0-9_.-]*)?"
    with suppress(OSError):
        return bool(re.fullmatch(form, text) and socket.inet_pton(socket.AF_INET6, text.partition("%")[0]))
    return False


# ---------------------------------------------------------------------- keys

ENV = KeySpec("env", schema.named_texts(values.env_name), "Environment variables of the tasks.")
WORKDIR = KeySpec("workdir", single(values.one_line), "The folder that the tasks run in.")
PYTHON = KeySpec("python", single(values.program_path), "The Python that runs .py files and modules.")
_VENV = "The Python environment of the tasks: a name of launch prepare or of conda, or a folder."
VENV = KeySpec("venv", single(values.environment), _VENV)
LABELS = KeySpec(
    "labels", several(values.label, comma_separated, pairs=True), "Labels by which roles choose."
)
_ROLES = KeySpec("roles", several(values.role_name, comma_separated), "Only tasks of these roles run here.")
_SPARE = KeySpec("spare", single(values.flag), "Only tasks of a lost host run here: true or false.")
_GPUS = KeySpec("gpus", several(values.gpu_id, values.gpu_ids), "How many GPUs the host has, or their ids.")

#: The keys of a host in a hostfile. Plain lines know all but ``name`` and ``env``.
HOST = key_table(
    KeySpec(
        "name", single(str), "The name or address that ssh connects to, perhaps with ranges: node[01-16]."
    ),
    KeySpec("address", single(parse_address), "The address for other tasks. Default: the name."),
    KeySpec("user", single(values.user_name), "The login user. Default: as ssh has it."),
    KeySpec("port", single(values.whole(1, 65535)), "The port of the ssh server. Default: as ssh has it."),
    KeySpec(
        "slots", single(values.slots), "The number of tasks. Default: 1, and more if all hosts are full."
    ),
    KeySpec("max_slots", single(values.slots), "The number of tasks if all slots are taken. Default: slots."),
    PYTHON,
    VENV,
    WORKDIR,
    _GPUS,
    _ROLES,
    LABELS,
    ENV,
    _SPARE,
)
_PLAIN_KEYS = {name: key for name, key in HOST.items() if name not in ("name", "env")}
_DEFAULT_KEYS = {name: key for name, key in HOST.items() if name not in ("name", "address", "spare")}
HOSTFILE = key_table(
    KeySpec("hosts", help="The hosts: names, or mappings with the keys of a host."),
    KeySpec("spares", help="The same for hosts with `spare: true`."),
    KeySpec(
        "defaults",
        schema.mapping(_DEFAULT_KEYS, "expected settings for all hosts"),
        "Settings of hosts that do not have them; env is merged.",
    ),
)


# ---------------------------------------------------------------------- files and lists


def read_hosts(hosts: str | Sequence[Host] | None, source: str = "") -> tuple[Host, ...]:
    """Return the hosts that the user names by a hostfile or by an inline list.

    The path of a file that exists is a hostfile. So is a text with a slash or with the ending of a hostfile,
    because a misspelt path must not start a job on a host of that name.

    Args:
        hosts: The path of a hostfile, an inline list, or hosts that were read before. None means no hosts.
        source: The option, or ``file:line``, for messages.

    Raises:
        HostfileError: The file cannot be read, or the hosts have faults, all of which it contains.
    """
    if not isinstance(hosts, str):
        return tuple(hosts or ())
    # A folder may have the name of a host by chance.
    if not names_file(hosts) and (os.path.isdir(hosts) or not os.path.exists(hosts)):
        return parse_list(hosts, source)
    shown = escape_controls(hosts)
    if not os.path.exists(hosts):
        expected = meant_file(hosts) or "expected a file, or host[:slots],..."
        raise HostfileError([Fault(source, f"{shown}: no such hostfile", expected)])
    if hosts.endswith(".py"):  # The value was forgotten, as in `launch --hosts train.py`.
        problem, expected = f"{shown} is a program, not a hostfile", f"expected --hosts X {shown}"
        raise HostfileError([Fault(source, problem, expected)])
    content = read_text(hosts, "hostfile", HostfileError)
    try:
        return parse_hostfile(content, hosts)
    except HostfileError:
        # One error about a job file is of more help than its many faults as a hostfile.
        if not re.search(r"(?m)^(roles[ \t]*:|kind[ \t]*:[ \t]*TFJob)", content):
            raise
    raise HostfileError([Fault(shown, f"this is a job file: launch {shown}")])


def names_file(text: str) -> bool:
    """Return whether a text looks like the path of a hostfile rather than like a list of hosts.

    The file need not exist.
    """
    # A range may contain a slash, too: ``node[1-9/2]`` means every second host.
    without_ranges = re.sub(r"\[[^\[\]]*\]", "", text)
    return "/" in without_ranges or text.lower().endswith(_FILE_ENDINGS)


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """Return the hosts in the text of a hostfile, in its order.

    Args:
        text: The content of the file, in YAML or in plain lines.
        source: The name of the file, for messages. If it ends with ``.yaml`` or ``.yml``, the text is read as
            YAML. It is also read so if one of its lines begins with ``hosts:`` or, as JSON does, with ``{``.

    Raises:
        HostfileError: The file has faults, all of which it contains.
    """
    text, faults = text.removeprefix("\ufeff"), FaultList(source)
    if source.lower().endswith(_YAML_ENDINGS) or re.search(r"(?m)^(\{|hosts[ \t]*:(?=\s|$))", text):
        hosts = _read_yaml(text, faults)
    else:
        builder = HostListBuilder(faults)
        _read_lines(re.sub("\r\n|\r", "\n", text).split("\n"), builder)
        hosts = builder.hosts()
    faults.raise_any(HostfileError)
    return hosts


def parse_list(text: str, source: str = "--hosts") -> tuple[Host, ...]:
    """Return the hosts in an inline list such as ``h1:2,user@h2,node[01-16],[fe80::1]:2``.

    Args:
        text: The list. Ends of lines count as commas. A list of LSF (LSB_MCPU_HOSTS) contains blanks instead,
            and a number of slots after each host: ``h1 4 h2 8``.
        source: The option, for messages.

    Raises:
        HostfileError: The list has faults, all of which it contains.
    """
    builder = HostListBuilder(FaultList(source))
    if re.fullmatch(_LSF, text.strip()):
        words = text.split()
        for name, slots in zip(words[::2], words[1::2], strict=True):
            settings = ConfigNode({"slots": ConfigNode(slots)})
            builder.add(name, line=0, settings=schema.read_mapping(settings, HOST, builder.faults))
    else:
        for entry in split_entries(text) if text.strip() else ():
            builder.add(entry, line=0)
    hosts = builder.hosts()
    builder.faults.raise_any(HostfileError)
    return hosts


def read_host_list(node: ConfigNode, faults: FaultList) -> tuple[Host, ...]:
    """Return the hosts in the list of a job file.

    Args:
        node: The value of ``hosts:``.
        faults: Receives the faults. With any of them the result is of no use.
    """
    builder = HostListBuilder(faults)
    _read_list(node, "hosts", builder, {})  # Only a hostfile has defaults for all of its hosts.
    return builder.hosts(node.line)


def _read_list(node: ConfigNode, label: str, builder: HostListBuilder, defaults: Mapping[str, Any]) -> None:
    """Add the hosts of a list in YAML to a builder.

    An item is a text as in ``--hosts``, or a mapping with the keys of a host.

    Args:
        node: The list.
        label: What messages call it.
        builder: Receives the hosts and the faults.
        defaults: The settings of hosts that do not set them.
    """
    faults = builder.faults
    if not isinstance(node.value, list):
        faults.add_kind(node, label, "expected a list of hosts, as in [node1, node2]")
        return
    # The builder reports too many hosts at the first one above the limit, so no more than that is read.
    for entry in node.value[: MAX_HOSTS + 1]:
        if not isinstance(entry.value, dict):
            text = text_of(entry, "a host", faults)
            if text is not None and "=" in text:  # Settings as in a plain line: ``node1 slots=2``.
                expected = "expected a mapping, as in {name: node1, slots: 2}"
                faults.add(entry.line, f"host is {quoted(text)}", expected)
            elif text is not None:
                builder.add(text, entry.line, defaults=defaults)
            continue
        settings = schema.read_mapping(entry, HOST, faults)
        settings.report_missing("name", 'a host without "name"', "expected name: and its name or address")
        if "name" in settings:  # A name with a fault is not.
            builder.add(settings.pop("name"), entry.line, settings, defaults)


def _read_yaml(text: str, faults: FaultList) -> tuple[Host, ...]:
    """Return the hosts of a hostfile in YAML, spares last.

    Args:
        text: The content of the file.
        faults: Receives the faults of the file. With any of them the result is of no use.
    """
    expected = "expected hosts: and a list of hosts"
    node = only_document(text, expected, faults)
    if node is None:
        return ()
    keys = schema.read_mapping(node, HOSTFILE, faults)
    if keys.report_missing("hosts", '"hosts" is missing', expected):
        return ()
    builder, defaults = HostListBuilder(faults), keys.get("defaults", {})
    _read_list(keys["hosts"], "hosts", builder, defaults)
    if "spares" in keys:
        _read_list(keys["spares"], "spares", builder, {**defaults, "spare": True})
    return builder.hosts(keys["hosts"].line)


def _read_lines(lines: Sequence[str], builder: HostListBuilder) -> None:
    """Add the hosts of a hostfile's plain lines to a builder.

    An inventory of Ansible is refused by one fault for the head of each section. Its lines below ``[x:vars]``
    and ``[x:children]`` are skipped, because they contain no hosts and each would be another fault.
    """
    without_hosts = False  # Whether the lines belong to such a section.
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        section = re.match(_SECTION, line)
        if section:
            without_hosts = section[1] is not None
        if section or not without_hosts:
            _read_line(line, number, builder)


def _read_line(line: str, number: int, builder: HostListBuilder) -> None:
    """Add the host of a plain line, with its ``KEY=VALUE`` settings.

    Blanks around the ``=`` are allowed, and a comment may follow.

    Args:
        line: The line.
        number: The number of the line.
        builder: Receives the host and the faults.
    """
    faults, written = builder.faults, dict[str, ConfigNode]()
    first_word = re.match(_TOKEN, line)
    name = first_word[0] if first_word else line
    rest = line[len(name) :].lstrip()
    if advice := _line_advice(name, rest):
        faults.add(number, quoted(name), advice)
        return
    if grid_engine := re.fullmatch(_GRID_ENGINE, rest):
        rest = f"slots={grid_engine[1]}"  # Grid Engine writes the number of slots without a key.
    while rest and not rest.startswith("#"):
        setting = re.match(_SETTING, rest)
        if setting is None:
            word = rest.split(None, 1)[0]
            faults.add(number, quoted(word), _setting_advice(word))
            break
        key, value = _FOREIGN_KEYS.get(setting[1], setting[1]), _unquoted(setting[2])
        if key in written:
            faults.add(number, f"{key} is written twice, again as {quoted(value)}", "expected it once")
        written.setdefault(key, ConfigNode(value, number, number))
        rest = rest[setting.end() :].lstrip()
    settings = schema.read_mapping(ConfigNode(written, number), _PLAIN_KEYS, faults)
    builder.add(_unquoted(name), number, settings, repeatable=True)


def _line_advice(name: str, rest: str) -> str:
    """Return what to write instead of a line that belongs to another kind of file.

    Args:
        name: The first word of the line.
        rest: What follows.

    Returns:
        The advice. It is empty if the line may be a host.
    """
    if name.startswith(("//", "/*")):
        return 'expected "#" before a comment'
    if name == "-":
        return "expected a host; a list with dashes goes below hosts: in a file that ends with .yaml"
    if section := re.fullmatch(_SECTION, name):
        return _SECTION_ADVICE[section[1]]
    if name in ("Host", "HostName") and rest and "=" not in rest:
        return "expected a host; launch reads ~/.ssh/config by itself"
    if len(split_entries(name)) > 1:
        return "expected one host a line"
    return ""


def _setting_advice(word: str) -> str:
    """Return what to write instead of a word that is not a setting in the form ``KEY=VALUE``.

    Args:
        word: A word that follows the host in a plain line, one that is not YAML: ``node1 slots=2 gpus=1``. It
            may come from a hostfile of PRRTE, the launcher of Open MPI.
    """
    added_slots = re.fullmatch(r"slots\+=([0-9]+)", word)
    if added_slots:
        return f"expected slots={added_slots[1]}: PRRTE's += adds slots to a running job"
    return 'expected KEY=VALUE (quotes in pairs, one host a line, "#" before a comment)'


def _unquoted(text: str) -> str:
    """Return a text without the quotes around parts of it: ``my runs`` for ``"my runs"``."""
    return re.sub(r""""([^"]*)"|'([^']*)'""", r"\1\2", text)


class HostListBuilder:
    """A collector of the hosts of one input, which accepts each name once.

    Args:
        faults: Receives the faults. With any of them the hosts are of no use.
    """

    def __init__(self, faults: FaultList) -> None:
        self.faults = faults
        #: The hosts so far, by their names.
        self._hosts: dict[str, Host] = {}
        #: The names of hosts that were written without settings, which may come again.
        self._bare: set[str] = set()

    def hosts(self, line: int = 0) -> tuple[Host, ...]:
        """Return all hosts in the order of the input.

        An input without any host is a fault. It is added unless other faults already tell why there is none.

        Args:
            line: The line for this fault.
        """
        if not self._hosts and not self.faults:
            self.faults.add(line, "no hosts", "expected at least one")
        return tuple(self._hosts.values())

    def add(
        self,
        written: str,
        line: int,
        settings: MappingValues | None = None,
        defaults: Mapping[str, Any] = {},
        repeatable: bool = False,
    ) -> None:
        """Add the host, or the range of hosts, of one entry.

        Nothing is added if the entry has a fault. A name that was added before is a fault, too, unless both
        entries are bare names of a node file, see ``repeatable``.

        Args:
            written: ``[user@]host[:slots]``, whose user and slots override the defaults.
            line: The line of the entry.
            settings: The settings of the entry. None means an entry of a list, which cannot contain any.
            defaults: The settings of hosts that do not set them. Variables of ``env`` are merged.
            repeatable: Whether an entry without settings may be repeated, as in node files of PBS, where each
                time means one slot.
        """
        faults, faults_before = self.faults, len(self.faults)
        nodes = {} if settings is None else settings.nodes
        # In a list, the end of an IPv6 address without brackets could be slots. Elsewhere slots are settings.
        entry = faults.check(line, "host", written, lambda text: parse_entry(text, settings is not None))
        if entry is None:
            return
        names, inline_fields = entry
        # The user and the slots may stand with the name or below it, but not in both places.
        for key in [key for key in inline_fields if key in nodes]:
            problem = f"{key} is written twice, as {quoted(str(inline_fields[key]))} with the name"
            faults.add(nodes[key].key_line, problem, "expected it once")
        fields = {**defaults, **(settings or {}), **inline_fields}
        fields["env"] = tuple({**dict(defaults.get("env", ())), **dict(fields.get("env", ()))}.items())
        # Ranges in the address make one address for each host. Without an address a host is reached by name.
        addresses = fields.pop("address", None) or (None,) * len(names)
        if len(addresses) != len(names):
            problem = f"{quoted(written)} makes {len(names)} hosts, its address {len(addresses)}"
            faults.add(line, problem, "expected as many of both")
        slots, max_slots = fields.get("slots"), fields.get("max_slots")
        if slots and max_slots and max_slots < slots:
            problem = f'max_slots is "{max_slots}", slots "{slots}"'
            faults.add(line, problem, "expected at least as many max_slots")
        if len(faults) > faults_before:  # One of them is about this entry.
            return
        # In node files of PBS, each line with nothing but a name is one slot of that host.
        is_bare = repeatable and not nodes and "slots" not in inline_fields and len(names) == 1
        for name, address in zip(names, addresses, strict=True):
            if not self._add_host(Host(name, address, **fields, source=faults.where(line)), line, is_bare):
                return

    def _add_host(self, host: Host, line: int, is_bare: bool) -> bool:
        """Add a host, or one more slot of a known host if both entries are bare names.

        Args:
            host: The host.
            line: The line of its entry.
            is_bare: Whether the entry is nothing but a name, in a file in which names may be repeated.

        Returns:
            Whether this was possible. If not, a fault was added.
        """
        known = self._hosts.get(host.name)
        if known and is_bare and host.name in self._bare and known.user == host.user:
            # The first line set no slots, and was one slot, too.
            self._hosts[host.name] = replace(known, slots=(known.slots or 1) + 1)
        elif known:
            # Without a line all hosts come from one place, which the fault names anyway.
            where = f" at {known.source}" if line else ""
            self.faults.add(
                line, f"host {quoted(host.name)} was already written{where}", "expected each host once"
            )
            return False
        elif len(self._hosts) == MAX_HOSTS:
            problem = f"too many hosts with {quoted(host.name)}"
            self.faults.add(line, problem, f"expected at most {MAX_HOSTS}")
            return False
        else:
            self._hosts[host.name] = host
            if is_bare:
                self._bare.add(host.name)
        return True

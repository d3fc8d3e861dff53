"""Hostfiles and host lists -> hosts.

Three forms: YAML; plain lines as MPI, DeepSpeed and PBS write them; the inline list of ``--hosts``.

A plain line is a host and its settings::

    # comment
    node1 slots=4 max-slots=8
    user@node2:4 labels=fast,zone=a workdir="/data/my runs"
    node[03-16]
    fe80::1%eth0 slots = 2

Quotes, single or double, hold anything but themselves; there are no escapes. ``#`` begins a comment where a
word could begin. A line with a name alone may come again: one slot more each time, as in PBS node files.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from typing import Any

from launcher.config.faults import Faults, quoted, read_text, shown_path
from launcher.config.hostlist import MOST_HOSTS, Entry, parse_entry, split_entries
from launcher.config.keys import HOST, HOST_DEFAULTS, HOSTFILE
from launcher.config.schema import Form, Node, Values, parse_yaml, read_mapping, text_of, wrong_kind
from launcher.errors import Fault, HostfileError
from launcher.job import Host

_FILE_ENDINGS = (".yaml", ".yml", ".txt", ".hosts")
_YAML_ENDINGS = (".yaml", ".yml")

#: Other programs' names for our keys, in plain lines.
_ALIASES = {
    "cpu": "slots", "count": "slots", "max-slots": "max_slots", "slots_max": "max_slots",
    "slots-max": "max_slots", "username": "user",
}  # fmt: skip
#: Keys of plain lines.
_PLAIN = {name: key for name, key in HOST.items() if key.form is not Form.PAIRS and name != "name"}
_WORD = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
_SETTING = r"""([A-Za-z_-]+)(\s*=\s*)((?:"[^"]*"|'[^']*'|[^\s"'])*)(?=\s|$)"""

#: Fields of ``Host`` by name, but for ``address``: the addresses of a range.
Settings = dict[str, Any]


def read_hosts(text: str) -> tuple[Host, ...]:
    """The hosts of a hostfile or of an inline list.

    A path that exists is a file, but a folder with a host's name is not meant. A text with a slash or with
    the ending of a hostfile is a file, too: a typing error there must not start a job on hosts of that name.

    Raises:
        HostfileError: it can't be read, or is wrong; all faults at once.
    """
    like_a_path = "/" in text or text.lower().endswith(_FILE_ENDINGS)
    if not os.path.exists(text) or (os.path.isdir(text) and not like_a_path):
        if not like_a_path:
            return parse_list(text)
        what, expected = "no such hostfile", "expected a file, or host[:slots],..."
        raise HostfileError([Fault(shown_path(text), what, expected)])
    content = read_text(text, "hostfile", HostfileError)
    try:
        return parse_hostfile(content, text)
    except HostfileError:
        if re.search(r"(?m)^roles[ \t]*:", content):
            what = f"this is a job file: launch {shown_path(text)}"
            raise HostfileError([Fault(shown_path(text), what)]) from None
        raise


def this_machine(environ: Mapping[str, str]) -> Host:
    """The host of a job without hosts: room for every task, and the GPUs that its tasks may see.

    ``CUDA_VISIBLE_DEVICES`` says which; as for CUDA, an id below 0 hides it and all that follow. Without that
    variable the driver is asked.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    gpus: tuple[str, ...] | None = None
    if visible is not None:
        ids = map(str.strip, visible.split(","))
        gpus = tuple(itertools.takewhile(lambda gpu: gpu and not gpu.startswith("-"), ids))
    else:
        try:
            gpus = tuple(str(index) for index, _ in enumerate(os.listdir("/proc/driver/nvidia/gpus")))
        except OSError:
            pass
    return Host("localhost", address="127.0.0.1", gpus=gpus)


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """The hosts of a hostfile, in the order written.

    Args:
        text: what the file holds.
        source: its name: for messages, and because its ending may tell the form.

    Raises:
        HostfileError: with every fault of the file.
    """
    text, faults = text.removeprefix("\ufeff"), Faults(source)
    if source.lower().endswith(_YAML_ENDINGS) or re.search(r"(?m)^hosts[ \t]*:(?=\s|$)", text):
        hosts = _read_yaml(text, faults)
    else:
        inventory = Inventory(faults)
        for number, line in enumerate(re.split("\r\n|\n|\r", text), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                _read_line(line.strip(), number, inventory)
        hosts = inventory.hosts()
    faults.raise_any(HostfileError)
    return hosts


def parse_list(text: str, source: str = "--hosts") -> tuple[Host, ...]:
    """The hosts of a list such as ``h1:2,user@h2,node[01-16],[fe80::1]:2``.

    Raises:
        HostfileError: with every fault of the list.
    """
    faults = Faults(source)
    inventory = Inventory(faults)
    for entry in split_entries(text) if text.strip() else ():
        inventory.add(entry, 0, {})
    hosts = inventory.hosts()
    faults.raise_any(HostfileError)
    return hosts


class Inventory:
    """The hosts of one input, in the order written: ranges become names, no host comes twice.

    Args:
        faults: where faults go; with any of them the hosts are not to be used.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._hosts: dict[str, Host] = {}
        #: Hosts that were written as a name alone.
        self._bare: set[str] = set()

    def hosts(self) -> tuple[Host, ...]:
        """All of them; a fault if there are none (and no other fault)."""
        if not self._hosts and not self.faults:
            self.faults.add(0, "no hosts", "expected at least one")
        return tuple(self._hosts.values())

    def add(
        self,
        written: str,
        line: int,
        settings: Settings,
        values: Values | None = None,
        bare: bool = False,
    ) -> None:
        """Add the host, or the range of hosts, of one entry.

        Args:
            written: ``[user@]host[:slots]``; its user and slots win over the settings.
            line: where.
            settings: what else is known of it.
            values: those of the settings that are written beside the name; ``None``: nothing can be, as
                within a list.
            bare: a name alone, which may come again: one slot more each time.
        """
        entry = self.faults.check(
            line, "host", written, lambda text: parse_entry(text, bare_ipv6=values is not None)
        )
        if entry is None:
            return
        own = {"user": entry.user, "slots": entry.slots}
        own = {key: value for key, value in own.items() if value is not None}
        again = [key for key in own if values is not None and key in values.nodes]
        for key in again:
            what = f"{key} is written twice, as {quoted(str(own[key]))} with the name"
            self.faults.add(values.line_of(key) if values else line, what, "expected it once")
        settings = {**settings, **own}
        addresses = settings.pop("address", None) or (None,) * len(entry.names)
        if again or not slots_agree(settings, line, self.faults) or (bare and self._counted_again(entry)):
            return
        if len(addresses) != len(entry.names):
            what = f"{quoted(written)} makes {len(entry.names)} hosts, its address {len(addresses)}"
            self.faults.add(line, what, "expected as many of both")
            return
        for name, address in zip(entry.names, addresses, strict=True):
            if not self._put(Host(name, address, **settings), line):
                return
            if bare:
                self._bare.add(name)

    def _counted_again(self, entry: Entry) -> bool:
        """Add a slot to a host that was written before as a name alone; whether it was."""
        name = entry.names[0]
        host = self._hosts.get(name)
        if host is None or name not in self._bare or host.user != entry.user or len(entry.names) > 1:
            return False
        self._hosts[name] = host._replace(slots=(host.slots or 1) + 1)
        return True

    def _put(self, host: Host, line: int) -> bool:
        """Add one host; whether its name is new."""
        first = self._hosts.get(host.name)
        if first is not None:
            what = f"host {quoted(host.name)} was already written" + (f" at {first.source}" if line else "")
            self.faults.add(line, what, "expected each host once")
        elif len(self._hosts) == MOST_HOSTS:
            what = f"too many hosts with {quoted(host.name)}"
            self.faults.add(line, what, f"expected at most {MOST_HOSTS}")
        else:
            self._hosts[host.name] = host._replace(source=self.faults.where(line))
            return True
        return False


def slots_agree(settings: Mapping[str, Any], line: int, faults: Faults) -> bool:
    """Whether ``max_slots`` is no less than ``slots``; if not, it is a fault."""
    slots, most = settings.get("slots"), settings.get("max_slots")
    if slots is None or most is None or most >= slots:
        return True
    faults.add(line, f'max_slots is "{most}", slots "{slots}"', "expected at least as many max_slots")
    return False


# ---------------------------------------------------------------------- plain lines


def _read_line(line: str, number: int, inventory: Inventory) -> None:
    faults, before = inventory.faults, len(inventory.faults)
    first = re.match(_WORD, line)
    name = first[0] if first else line
    if name.startswith(("//", "/*")):
        faults.add(number, quoted(name), 'expected "#" before a comment')
        return
    written = _settings(line[len(name) :].lstrip(), number, faults)
    values = read_mapping(Node(written, number), _PLAIN, faults)
    bare = not written and len(faults) == before and ":" not in name
    inventory.add(_unquoted(name), number, dict(values.given), values, bare)


def _settings(rest: str, number: int, faults: Faults) -> dict[str, Node]:
    """The ``KEY=VALUE`` settings of a line, blanks around ``=`` allowed, up to a comment."""
    found: dict[str, Node] = {}
    while rest and not rest.startswith("#"):
        match = re.match(_SETTING, rest)
        # ``python= slots=4``: the empty value would take the next setting for itself.
        if match is None or (match[2][-1].isspace() and re.match(_SETTING, match[3])):
            what = quoted(rest.split(None, 1)[0])
            expected = 'expected KEY=VALUE (quotes in pairs, one host a line, "#" before a comment)'
            faults.add(number, what, expected)
            break
        key, value = _ALIASES.get(match[1], match[1]), _unquoted(match[3])
        if key in found:
            faults.add(number, f"{key} is written twice, again as {quoted(value)}", "expected it once")
        found.setdefault(key, Node(value, number, number))
        rest = rest[match.end() :].lstrip()
    return found


def _unquoted(text: str) -> str:
    return re.sub(
        r""""([^"]*)"|'([^']*)'""", lambda match: match[1] if match[1] is not None else match[2], text
    )


# ---------------------------------------------------------------------- YAML


def _read_yaml(text: str, faults: Faults) -> tuple[Host, ...]:
    node = parse_yaml(text, faults)
    expected = "expected hosts: and a list of hosts"
    if node is None or not isinstance(node.value, dict):
        if node is not None:
            wrong_kind(node, "the file", faults, expected)
        return ()
    values = read_mapping(node, HOSTFILE, faults)
    defaults: Settings = {}
    written = values.get("defaults")
    if written is not None and isinstance(written.value, dict):
        defaults = read_mapping(written, HOST_DEFAULTS, faults).given
        if not slots_agree(defaults, written.line, faults):
            del defaults["max_slots"]
    elif written is not None:
        wrong_kind(written, "defaults", faults, "expected settings for all hosts")
    if "hosts" not in values.nodes:
        faults.add(values.line, '"hosts" is missing', expected)
        return ()
    return read_host_list(values.nodes["hosts"], faults, defaults)


def read_host_list(node: Node, faults: Faults, defaults: Settings | None = None) -> tuple[Host, ...]:
    """The hosts of a YAML list, in a hostfile or in a job file.

    Args:
        node: what is written at ``hosts:``.
        faults: where faults go; with any of them the result is not to be used.
        defaults: settings of entries that do not say otherwise; ``env`` is merged.
    """
    if not isinstance(node.value, list):
        wrong_kind(node, "hosts", faults, "expected a list of hosts")
        return ()
    inventory = Inventory(faults)
    for entry in node.value[: MOST_HOSTS + 1]:
        if not isinstance(entry.value, dict):
            text = text_of(entry, "a host", faults)
            if text is not None:
                inventory.add(text, entry.line, dict(defaults or {}))
            continue
        values = read_mapping(entry, HOST, faults)
        if "name" not in values.nodes:
            faults.add(entry.line, 'a host without "name"', "expected name: and its name or address")
        if "name" in values.given:
            env = {**dict((defaults or {}).get("env", ())), **dict(values.get("env", ()))}
            settings = {**(defaults or {}), **values.given, "env": tuple(env.items())}
            inventory.add(settings.pop("name"), entry.line, settings, values)
    if not node.value:
        faults.add(node.line, "no hosts", "expected at least one")
    return inventory.hosts()

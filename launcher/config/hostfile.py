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
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from launcher.config.faults import Faults, quoted, read_text, shown_path
from launcher.config.hostlist import parse_word, split_entries
from launcher.config.inventory import Inventory, Settings, written_twice
from launcher.config.keys import HOST, Form, Key
from launcher.config.values import each_once
from launcher.errors import Fault, HostfileError
from launcher.job import Host

_FILE_ENDINGS = (".yaml", ".yml", ".txt", ".hosts")
_YAML_ENDINGS = (".yaml", ".yml")
#: A line that only YAML hostfiles have.
_YAML_MARK = re.compile(r"(?m)^hosts[ \t]*:(?=\s|$)")
_JOB_MARK = re.compile(r"(?m)^roles[ \t]*:")

#: Other programs' names for our keys, in plain lines.
_ALIASES = {
    "cpu": "slots", "count": "slots", "max-slots": "max_slots", "slots_max": "max_slots",
    "slots-max": "max_slots", "username": "user",
}  # fmt: skip
#: Keys of plain lines.
_PLAIN = {name: key for name, key in HOST.items() if key.form is not Form.PAIRS and name != "name"}

_LINE_END = re.compile("\r\n|\n|\r")
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
_SETTING = re.compile(r"""([A-Za-z_-]+)(\s*=\s*)((?:"[^"]*"|'[^']*'|[^\s"'])*)(?=\s|$)""")
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")


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
        if _JOB_MARK.search(content):
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
    if source.lower().endswith(_YAML_ENDINGS) or _YAML_MARK.search(text):
        from launcher.config import hostfile_yaml  # PyYAML takes 30 ms to import

        hosts = hostfile_yaml.read(text, faults)
    else:
        hosts = _read_plain(text, faults)
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
        inventory.add_entry(entry, {}, 0)
    hosts = inventory.hosts()
    faults.raise_any(HostfileError)
    return hosts


def _read_plain(text: str, faults: Faults) -> tuple[Host, ...]:
    inventory = Inventory(faults)
    for number, line in enumerate(_LINE_END.split(text), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            _read_line(line.strip(), number, inventory, faults)
    return inventory.hosts()


def _read_line(line: str, number: int, inventory: Inventory, faults: Faults) -> None:
    if _foreign_comment(line, number, faults):
        return
    first = _WORD.match(line)
    name = _unquoted(first[0] if first else line)
    word = faults.check(number, "host", name, lambda text: parse_word(text, bare_ipv6=True))
    before = len(faults)
    settings: Settings = {}
    for written, value in _pairs(line[first.end() :] if first else "", number, faults):
        key = _ALIASES.get(written, written)
        if key not in _PLAIN:
            faults.unknown(number, written, tuple(_PLAIN))
        elif key in settings:
            faults.add(number, f"{key} is written twice, again as {quoted(value)}", "expected it once")
        else:
            settings[key] = faults.check(number, key, value, partial(_value, _PLAIN[key]))
    if word is not None and not written_twice(word, dict.fromkeys(settings, number), faults):
        bare = not settings and word.slots is None and len(faults) == before
        known = {key: value for key, value in settings.items() if value is not None}
        inventory.add(name, word, known, number, bare)


def _value(key: Key, text: str) -> Any:
    """The value of a key written as one text."""
    if key.form is Form.VALUE:
        return key.read(text)
    words = key.split(text)
    found = tuple(map(key.read, words))
    each_once(words)
    return found


def _pairs(text: str, number: int, faults: Faults) -> Iterator[tuple[str, str]]:
    """The ``key=value`` pairs of a line, blanks around ``=`` allowed, up to a comment."""
    rest = text.lstrip()
    while rest and not rest.startswith("#"):
        match = _SETTING.match(rest)
        # ``python= slots=4``: the empty value would take the next setting for itself.
        swallowed = match and match[2][-1].isspace() and _SETTING.match(match[3])
        if match is None or swallowed:
            if not _foreign_comment(rest, number, faults):
                what = quoted(rest.split(None, 1)[0])
                faults.add(number, what, "expected KEY=VALUE (quotes in pairs, one host a line)")
            return
        yield match[1], _unquoted(match[3])
        rest = rest[match.end() :].lstrip()


def _foreign_comment(text: str, number: int, faults: Faults) -> bool:
    """Whether a comment as in C begins here: a fault."""
    if not text.startswith(("//", "/*")):
        return False
    faults.add(number, quoted(text.split(None, 1)[0]), 'expected "#" before a comment')
    return True


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda match: match[1] if match[1] is not None else match[2], text)

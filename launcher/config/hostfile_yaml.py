"""The YAML form of hostfiles: ``hosts:``, a list, and ``defaults:`` for all of them."""

from __future__ import annotations

import yaml

from launcher.config.faults import Faults
from launcher.config.hostlist import parse_word
from launcher.config.inventory import MOST_HOSTS, Inventory, Settings, slots_agree, written_twice
from launcher.config.keys import HOST, HOST_DEFAULTS, HOSTFILE
from launcher.config.schema import line_of, parse_yaml, read_mapping, text_of, wrong_kind
from launcher.job import Host


def read(text: str, faults: Faults) -> tuple[Host, ...]:
    node = parse_yaml(text, faults)
    expected = "expected hosts: and a list of hosts"
    if not isinstance(node, yaml.MappingNode):
        if node is not None:
            wrong_kind(node, "the file", faults, expected)
        return ()
    values = read_mapping(node, HOSTFILE, faults)
    defaults: Settings = {}
    if isinstance(written := values.get("defaults"), yaml.MappingNode):
        defaults = read_mapping(written, HOST_DEFAULTS, faults).given
        if not slots_agree(defaults, line_of(written), faults):
            del defaults["max_slots"]
    elif written is not None:
        wrong_kind(written, "defaults", faults, "expected settings for all hosts")
    if "hosts" not in values.nodes:
        faults.add(values.line, '"hosts" is missing', expected)
        return ()
    return read_host_list(values.nodes["hosts"], faults, defaults)


def read_host_list(node: yaml.Node, faults: Faults, defaults: Settings | None = None) -> tuple[Host, ...]:
    """The hosts of a YAML list, in a hostfile or in a job file.

    Args:
        node: what is written at ``hosts:``.
        faults: where faults go; with any of them the result is not to be used.
        defaults: settings of entries that do not say otherwise; ``env`` is merged.
    """
    if not isinstance(node, yaml.SequenceNode):
        wrong_kind(node, "hosts", faults, "expected a list of hosts")
        return ()
    if not node.value:
        faults.add(line_of(node), "no hosts", "expected at least one")
    if len(node.value) > MOST_HOSTS:
        what = f"{len(node.value)} entries in hosts"
        faults.add(line_of(node), what, f"expected at most {MOST_HOSTS}")
    inventory = Inventory(faults)
    for entry in node.value[:MOST_HOSTS]:
        line = line_of(entry)
        if not isinstance(entry, yaml.MappingNode):
            text = text_of(entry, "a host", faults)
            if text is not None:
                inventory.add_entry(text, dict(defaults or {}), line)
            continue
        values = read_mapping(entry, HOST, faults)
        if "name" not in values.nodes:
            faults.add(line, 'a host without "name"', "expected name: and its name or address")
        name = values.given.pop("name", None)
        if name is None:
            continue
        word = faults.check(
            values.line_of("name"), "name", name, lambda text: parse_word(text, bare_ipv6=True)
        )
        if word is not None and not written_twice(word, values.lines, faults):
            env = {**dict((defaults or {}).get("env", ())), **dict(values.get("env", ()))}
            settings = {**(defaults or {}), **values.given, "env": tuple(env.items())}
            inventory.add(name, word, settings, line)
    return inventory.hosts()

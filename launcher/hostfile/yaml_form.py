"""The YAML form: ``hosts:``, a list, and ``defaults:`` for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.hostfile.inline import add_entry
from launcher.hostfile.inventory import MOST_HOSTS, Inventory, said_twice, slots_agree
from launcher.hostfile.names import parse_word
from launcher.hostfile.settings import MANY, ONE, Settings, each_once
from launcher.job import Host
from launcher.marked.checks import label
from launcher.marked.faults import Faults
from launcher.marked.fields import Fields, as_table, as_text, wrong_kind
from launcher.marked.nodes import Items, Node, Table
from launcher.marked.yaml_nodes import compose

if TYPE_CHECKING:
    from typing import Any

_SETTINGS = (*ONE, *MANY, "env")
_A_LIST = "expected hosts: and a list of hosts"
_ENTRY = ("name", *_SETTINGS)
_DEFAULTS = tuple(key for key in _SETTINGS if key != "address")


def read(text: str, faults: Faults) -> tuple[Host, ...]:
    """The hosts of a YAML file."""
    table = as_table(compose(text, faults), "the file", faults, _A_LIST)
    if table is None:
        return ()
    fields = Fields(table, ("hosts", "defaults"), faults)
    defaults = _defaults(fields, faults)
    hosts = fields.node("hosts")
    if hosts is None:
        faults.add(fields.line, '"hosts" is missing', _A_LIST)
        return ()
    return read_hosts(hosts, faults, defaults)


def _defaults(fields: Fields, faults: Faults) -> Settings:
    table = fields.table("defaults", "expected settings for all hosts")
    if table is None:
        return {}
    settings = _settings(Fields(table, _DEFAULTS, faults))
    if not slots_agree(settings, table.line, faults):
        del settings["max_slots"]
    return settings


def read_hosts(node: Node, faults: Faults, defaults: Settings | None = None) -> tuple[Host, ...]:
    """The hosts of a list, wherever it stands (job files have one too).

    Args:
        node: what is written at ``hosts:``.
        faults: where faults go; with any of them the result is not to be used.
        defaults: settings of entries that do not say otherwise; ``env`` is merged.
    """
    if not isinstance(node, Items):
        wrong_kind(node, "hosts", faults, "expected a list of hosts")
        return ()
    if not node.items:
        faults.add(node.line, "no hosts", "expected at least one")
    inventory = Inventory(faults)
    if len(node.items) > MOST_HOSTS:
        faults.add(node.line, f"{len(node.items)} entries in hosts", f"expected at most {MOST_HOSTS}")
    for entry in node.items[:MOST_HOSTS]:
        _add(inventory, entry, defaults or {}, faults)
    return inventory.hosts()


def _add(inventory: Inventory, entry: Node, defaults: Settings, faults: Faults) -> None:
    if isinstance(entry, Table):
        _add_table(inventory, Fields(entry, _ENTRY, faults), defaults)
        return
    text = as_text(entry, "a host", faults)
    if text is not None:
        add_entry(inventory, text, defaults, entry.line, faults)


def _add_table(inventory: Inventory, fields: Fields, defaults: Settings) -> None:
    if fields.node("name") is None:
        fields.faults.add(fields.line, 'a host without "name"', "expected name: and its name or address")
    word = fields.read("name", lambda text: parse_word(text, bare_ipv6=True))
    settings = _settings(fields)
    lines = {key: fields.line_of(key) for key in _SETTINGS if fields.node(key) is not None}
    if word is None or said_twice(word, lines, fields.faults):
        return
    env = {**dict(defaults.get("env", ())), **dict(settings.get("env", ()))}
    merged = {**defaults, **settings, "env": tuple(env.items())}
    inventory.add(fields.read("name", str) or "", word, merged, fields.line)


def _settings(fields: Fields) -> Settings:
    """What is said, by key; keys with a fault or without a value are left out."""
    read: dict[str, Any] = {key: fields.read(key, check) for key, check in ONE.items()}
    read.update({key: read_words(fields, key) for key in MANY})
    read["env"] = fields.pairs("env")
    return {key: value for key, value in read.items() if value is not None}


def read_words(fields: Fields, key: str) -> tuple[str, ...] | None:
    """A setting of several words: a list, a text with commas, or (labels only) a mapping."""
    node = fields.node(key)
    if key == "labels" and isinstance(node, Table):
        return _mapped_labels(fields)
    many = MANY[key]
    words = fields.words(key, many.check, many.split)
    if node is None or words is None:
        return None
    return fields.faults.check(node.line, key, ",".join(words), lambda _: each_once(words))


def _mapped_labels(fields: Fields) -> tuple[str, ...]:
    pairs = fields.pairs("labels", label) or ()
    line = fields.line_of("labels")
    words = [fields.faults.check(line, "labels", f"{name}={value}", label) for name, value in pairs]
    return tuple(word for word in words if word is not None)

"""Puts the hosts of one input together: ranges become names, no host comes twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.config.faults import Faults, quoted
from launcher.config.hostlist import Pattern, Word, host_name, parse_word
from launcher.job import Host

MOST_HOSTS = 4096

#: Fields of ``Host`` (``address`` still a pattern), by name.
Settings = dict[str, Any]


class Inventory:
    """The hosts of one input, in the order written: ranges become names, no host comes twice."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._hosts: dict[str, Host] = {}
        #: Hosts that were written as a name alone.
        self._bare: set[str] = set()

    def hosts(self) -> tuple[Host, ...]:
        """All of them; a fault if there are none (and no other fault)."""
        if not self._hosts and not self._faults:
            self._faults.add(0, "no hosts", "expected at least one")
        return tuple(self._hosts.values())

    def add_entry(self, text: str, settings: Settings, line: int) -> None:
        """Add one ``[user@]host[:slots]``."""
        word = self._faults.check(line, "host", text, parse_word)
        if word is not None:
            self.add(text, word, settings, line)

    def add(self, written: str, word: Word, settings: Settings, line: int, bare: bool = False) -> None:
        """Add the host, or the range of hosts, of one entry.

        Args:
            written: the entry's name as the user wrote it, for faults.
            word: the parsed name; its user and slots win over ``settings``.
            settings: what else is written of it.
            line: where.
            bare: a name alone, which may come again: one slot more each time.
        """
        in_word = {"user": word.user, "slots": word.slots}
        settings = {**settings, **{key: value for key, value in in_word.items() if value is not None}}
        if bare and self._counted_again(word):
            return
        address: Pattern | None = settings.pop("address", None)
        size, total = word.pattern.size, len(self._hosts) + word.pattern.size
        if total > MOST_HOSTS:
            what = f"{total} hosts with {quoted(written)}"
            self._faults.add(line, what, f"expected at most {MOST_HOSTS} in all")
        elif address is not None and address.size != size:
            what = f"{quoted(written)} makes {size} hosts, its address {address.size}"
            self._faults.add(line, what, "expected as many of both")
        elif slots_agree(settings, line, self._faults):
            addresses = iter(address.names()) if address else None
            for name in word.pattern.names():
                shown = next(addresses) if addresses else None
                checked = [
                    self._faults.check(line, "host", each, host_name) for each in (name, shown or name)
                ]
                if None in checked or not self._put(Host(name, shown, **settings), line):
                    return
                if bare:
                    self._bare.add(name)

    def _counted_again(self, word: Word) -> bool:
        """Add a slot to a host that was written before as a name alone; whether it was."""
        name = next(word.pattern.names()) if word.pattern.size == 1 else ""
        host = self._hosts.get(name)
        if host is None or name not in self._bare or host.user != word.user or word.slots is not None:
            return False
        self._hosts[name] = host._replace(slots=(host.slots or 1) + 1)
        return True

    def _put(self, host: Host, line: int) -> bool:
        """Add one host; whether its name is new."""
        first = self._hosts.get(host.name)
        if first is not None:
            what = f"host {quoted(host.name)} was already written" + (f" at {first.source}" if line else "")
            self._faults.add(line, what, "expected each host once")
            return False
        self._hosts[host.name] = host._replace(source=self._faults.where(line))
        return True


def slots_agree(settings: Mapping[str, Any], line: int, faults: Faults) -> bool:
    """Whether ``max_slots`` is no less than ``slots``; if not, it is a fault."""
    slots, most = settings.get("slots"), settings.get("max_slots")
    if slots is None or most is None or most >= slots:
        return True
    faults.add(line, f'max_slots is "{most}", slots "{slots}"', "expected at least as many max_slots")
    return False


def written_twice(word: Word, lines: Mapping[str, int], faults: Faults) -> bool:
    """Whether ``user@`` or ``:slots`` of a name is written again as a setting; that is a fault.

    Args:
        word: the parsed name.
        lines: the settings of the entry, and the line of each.
        faults: where faults go.
    """
    in_word = {"user": word.user, "slots": word.slots}
    again = [(key, value) for key, value in in_word.items() if value is not None and key in lines]
    for key, value in again:
        what = f"{key} is written twice, as {quoted(str(value))} with the name"
        faults.add(lines[key], what, "expected it once")
    return bool(again)

"""Putting together the hosts of one input: ranges become names, no host comes twice, not too many come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.hostfile.names import Word, host_name
from launcher.hostfile.ranges import Pattern
from launcher.hostfile.settings import Settings
from launcher.job import Host
from launcher.marked.faults import Faults, quoted

MOST_HOSTS = 4096


class Inventory:
    """The hosts found so far, in the order written."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._hosts: dict[str, Host] = {}
        #: The line of each host, and whether that line was nothing but its name.
        self._lines: dict[str, tuple[int, bool]] = {}

    def hosts(self) -> tuple[Host, ...]:
        """All of them; it is a fault if there are none (and nothing else went wrong)."""
        if not self._hosts and not self._faults:
            self._faults.add(0, "no hosts", "expected at least one")
        return tuple(self._hosts.values())

    def add(self, written: str, word: Word, settings: Settings, line: int, repeatable: bool = False) -> None:
        """Add the host, or the range of hosts, of one entry.

        Args:
            written: the entry's name as the user wrote it, for faults.
            word: what it says.
            settings: what else is said of it; ``user`` and ``slots`` of the word win.
            repeatable: a name alone may come again, for a slot more each time (PBS node files).
        """
        said = {"user": word.user, "slots": word.slots}
        merged = {**settings, **{key: value for key, value in said.items() if value is not None}}
        bare = repeatable and word.pattern.size == 1 and not settings and word.slots is None
        if bare and self._again(next(word.pattern.names()), merged.get("user"), line):
            return
        if self._fits(written, word.pattern, line) and slots_agree(merged, line, self._faults):
            for host in self._expand(written, word.pattern, merged, line):
                if not self._put(host, line, bare):
                    return

    def _again(self, name: str, user: str | None, line: int) -> bool:
        """Count a repeated name; whether it was one."""
        host = self._hosts.get(name)
        if host is None or not self._lines[name][1] or host.user != user:
            return False
        self._hosts[name] = host._replace(slots=(host.slots or 1) + 1)
        return True

    def _fits(self, written: str, pattern: Pattern, line: int) -> bool:
        if len(self._hosts) + pattern.size <= MOST_HOSTS:
            return True
        total = f"{len(self._hosts) + pattern.size} hosts with {quoted(written)}"
        self._faults.add(line, total, f"expected at most {MOST_HOSTS} in all")
        return False

    def _expand(self, written: str, pattern: Pattern, settings: Settings, line: int) -> Iterator[Host]:
        address: Pattern | None = settings.get("address")
        if address is not None and address.size != pattern.size:
            what = f"{quoted(written)} makes {pattern.size} hosts, its address {address.size}"
            self._faults.add(line, what, "expected as many of both")
            return
        rest = {key: value for key, value in settings.items() if key != "address"}
        addresses = iter(address.names()) if address else None
        for name in pattern.names():
            shown = next(addresses) if addresses else None
            if self._named(name, line) and (shown is None or self._named(shown, line)):
                yield Host(name=name, address=shown, source=self._faults.where(line), **rest)
            else:
                return

    def _named(self, name: str, line: int) -> bool:
        return self._faults.check(line, "host", name, host_name) is not None

    def _put(self, host: Host, line: int, bare: bool) -> bool:
        if host.name in self._hosts:
            first = self._hosts[host.name].source
            what = f"host {quoted(host.name)} was already written" + (f" at {first}" if line else "")
            self._faults.add(line, what, "expected each host once")
            return False
        self._hosts[host.name] = host
        self._lines[host.name] = (line, bare)
        return True


def said_twice(word: Word, lines: Mapping[str, int], faults: Faults) -> bool:
    """Whether ``user@`` or ``:slots`` of a name is said again by a setting; that is a fault.

    Args:
        word: what the name says.
        lines: the settings that the entry has besides, and the line of each.
    """
    said = {"user": word.user, "slots": word.slots}
    again = [key for key, value in said.items() if value is not None and key in lines]
    for key in again:
        what = f"{key} is said twice, as {quoted(str(said[key]))} with the name"
        faults.add(lines[key], what, "expected it once")
    return bool(again)


def slots_agree(settings: Settings, line: int, faults: Faults) -> bool:
    """Whether ``max_slots`` is no less than ``slots``; if not, it is a fault."""
    slots, most = settings.get("slots"), settings.get("max_slots")
    if slots is None or most is None or most >= slots:
        return True
    faults.add(line, f'max_slots is "{most}", slots "{slots}"', "expected at least as many max_slots")
    return False

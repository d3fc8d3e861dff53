"""Addresses that mean something else to another host: from the inventory, and from what names resolve to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address

from launcher.checking.records import Finding, Severity, Sight
from launcher.job import Host, is_loopback

_WRITE = "write an address that all hosts can use as `address:` into the hostfile"
#: Seconds after which looking up a name is slow: it is done for each connection.
_SLOW = 2.0


def of_inventory(hosts: Sequence[Host]) -> Iterator[Finding]:
    """Addresses that can't be right whatever the hosts are; a list of nothing but this machine is fine."""
    own = [host for host in hosts if is_loopback(host.shown_address)]
    if len(own) < len(hosts):
        for host in own:
            seen = f"other hosts are told to connect to {host.shown_address}, which is themselves"
            yield Finding(Severity.PROBLEM, "address", (host.name,), seen, _WRITE)
    by_address: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        by_address[plain(host.shown_address)].append(host.name)
    for address, names in by_address.items():
        if len(names) > 1:
            seen = f"have the same address {address}"
            yield Finding(
                Severity.PROBLEM, "address", tuple(names), seen, "one of them is wrong, or too many"
            )


def of_machines(hosts: Sequence[Host], facts: Mapping[str, Mapping[str, object]]) -> Iterator[Finding]:
    """Two names of one machine, and a numeric address that another host has.

    Args:
        hosts: the inventory.
        facts: of each host, at least ``hostname`` and ``addresses``.
    """
    machines: dict[tuple[object, object, tuple[str, ...]], list[str]] = defaultdict(list)
    for name, seen in facts.items():
        machines[seen.get("boot"), seen["hostname"], addresses_of(seen)].append(name)
    for (_, hostname, addresses), names in machines.items():
        if len(names) > 1 and addresses and not all(map(is_loopback, names)):
            what = f"are one machine, which calls itself {hostname}"
            yield Finding(Severity.NOTE, "same-machine", tuple(names), what)
    for host in hosts:
        if host.name in facts and is_address(host.shown_address):
            yield from _somebody_elses(host, facts)


def _somebody_elses(host: Host, facts: Mapping[str, Mapping[str, object]]) -> Iterator[Finding]:
    """Not having an address is common (a router may translate it); another host's having it is not."""
    address = plain(host.shown_address)
    mine = addresses_of(facts[host.name])
    for other, seen in facts.items():
        if other != host.name and address in addresses_of(seen) and address not in mine:
            what = f"its address {address} is not its own but {other}'s"
            yield Finding(Severity.PROBLEM, "address", (host.name,), what, _WRITE)


def addresses_of(facts: Mapping[str, object]) -> tuple[str, ...]:
    """The addresses of a host's interfaces, each in its usual form."""
    found = facts.get("addresses")
    return tuple(plain(str(address)) for address in found) if isinstance(found, (list, tuple)) else ()


def is_address(text: str) -> bool:
    """Whether it is a number and no name."""
    try:
        ip_address(_bare(text))
    except ValueError:
        return False
    return True


def plain(text: str) -> str:
    """An address in its usual form, ``fd00::1``; a name as it is, in lower case."""
    try:
        return str(ip_address(_bare(text)))
    except ValueError:
        return text.lower()


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


# ---------------------------------------------------------------------- what names resolve to


def of_names(sights: Sequence[Sight]) -> Iterator[Finding]:
    """What the address of each host means on each; a ``localhost`` among others is for `of_inventory`."""
    for sight in sights:
        for target in sights:
            seen = sight.names.get(target.host.shown_address)
            address = target.host.shown_address
            if (
                seen is not None
                and not is_address(address)
                and not (len(sights) > 1 and is_loopback(address))
            ):
                yield from _of_name(sight, target, seen, sights)


def _of_name(
    sight: Sight, target: Sight, seen: Mapping[str, object], sights: Sequence[Sight]
) -> Iterator[Finding]:
    """One name on one host."""
    name = target.host.shown_address
    found = [plain(str(address)) for address in _items(seen["found"])]
    if not found:
        what = f"{name} can't be resolved: {seen['why']}"
        yield Finding(Severity.PROBLEM, "name", (sight.name,), what, f"look at /etc/hosts there, or {_WRITE}")
        return
    if sight is not target or len(sights) > 1:
        yield from _misleading(sight, target, found, sights)
    if isinstance(took := seen["seconds"], float) and took > _SLOW:
        what = f"looking up {name} takes {took:.1f} s"
        advice = "a name server in /etc/resolv.conf there does not answer"
        yield Finding(Severity.WARNING, "name-slow", (sight.name,), what, advice)


def _misleading(
    sight: Sight, target: Sight, found: Sequence[str], sights: Sequence[Sight]
) -> Iterator[Finding]:
    """A name that leads to the host itself, or to a third one."""
    name = target.host.shown_address
    loopback = [address for address in found if is_loopback(address)]
    if loopback and sight is target:
        if not is_loopback(name):
            what = f"its own name {name} means {loopback[0]} there"
            advice = (
                "harmless to TensorFlow, but a program that tells others what its own name resolves to "
                "misleads them: Debian writes such a line into /etc/hosts"
            )
            yield Finding(Severity.NOTE, "own-name", (sight.name,), what, advice)
        return
    if loopback:
        what = f"{name} means {loopback[0]} there, the host itself"
        yield Finding(Severity.PROBLEM, "name", (sight.name,), what, f"mend /etc/hosts there, or {_WRITE}")
        return
    mine = addresses_of(target.facts)
    for other in sights:
        theirs = addresses_of(other.facts)
        if other is not target and not set(found) & set(mine) and set(found) & set(theirs):
            what = f"{name} means {found[0]} there, which is {other.name}"
            advice = f"mend /etc/hosts there, or {_WRITE}"
            yield Finding(Severity.PROBLEM, "name", (sight.name,), what, advice)


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else ()

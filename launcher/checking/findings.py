"""All findings of a check, the worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.checking.addresses import of_inventory, of_machines, of_names
from launcher.checking.clocks import of_clocks
from launcher.checking.pairs import of_pairs
from launcher.checking.records import Finding, Pair, Reach, Sight, merged
from launcher.checking.resources import of_resources
from launcher.checking.surroundings import of_surroundings
from launcher.checking.versions import of_versions
from launcher.job import Host


def findings(hosts: Sequence[Host], sights: Sequence[Sight], pairs: Sequence[Pair]) -> tuple[Finding, ...]:
    """What is to be said of these hosts.

    Args:
        hosts: the inventory, also those that could not be looked at.
        sights: what the probes saw, of each host that has one.
        pairs: what became of the connections between them.
    """
    found = _all(hosts, sights, pairs)
    return merged(found, [host.name for host in hosts])


def _all(hosts: Sequence[Host], sights: Sequence[Sight], pairs: Sequence[Pair]) -> Iterator[Finding]:
    yield from of_inventory(hosts)
    yield from of_machines(hosts, {sight.name: sight.facts for sight in sights})
    yield from of_pairs(_beyond_names(pairs, sights), {host.name: host.shown_address for host in hosts})
    yield from of_names(sights)
    yield from of_versions(sights)
    yield from of_clocks({sight.name: sight.offset for sight in sights if sight.offset is not None})
    for sight in sights:
        yield from of_resources(sight)
        yield from of_surroundings(sight, sights)


def _beyond_names(pairs: Sequence[Pair], sights: Sequence[Sight]) -> list[Pair]:
    """Without those that can only fail, for their name means nothing there: `of_names` says so."""
    unknown = {
        (sight.name, target.name)
        for sight in sights
        for target in sights
        if not sight.names.get(target.host.shown_address, {"found": True})["found"]
    }
    return [p for p in pairs if p.reach is not Reach.UNKNOWN_NAME or (p.source, p.target) not in unknown]

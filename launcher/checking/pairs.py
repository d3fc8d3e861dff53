"""Who tries to reach whom, and what is to be said of it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from launcher.checking.records import Finding, Pair, Reach, Severity
from launcher.text import listed

#: Up to so many hosts everybody tries everybody.
ALL_UP_TO = 32
#: Above: a ring, and so many pairs drawn by chance (what 32 hosts have). Both directions each.
RANDOM_PAIRS = ALL_UP_TO * (ALL_UP_TO - 1) // 2

#: Seconds of a round trip: slow in itself, or slow beside the others.
_SLOW = 0.05
_ODD = 0.005
_TIMES_MEDIAN = 10
#: Packets that a host had to send again, of the dozen that a connection takes, that are no accident.
_LOSSY = 2

_ADVICE = {
    Reach.REFUSED: "a firewall rejects it, or the address leads to another machine: look at both",
    Reach.TIMED_OUT: "a firewall drops it, or there is no way: tasks use ports of the range in "
    "/proc/sys/net/ipv4/ip_local_port_range, so open that between the hosts",
    Reach.NO_ROUTE: "look at `ip route` there; `address:` in the hostfile may name a better address",
    Reach.UNKNOWN_NAME: "write an address it can resolve as `address:` into the hostfile",
    Reach.SOMEBODY_ELSE: "the address leads to another machine or a proxy: write the right one as `address:` "
    "into the hostfile",
    Reach.STUCK: "the largest packet (MTU) differs on the way: compare `ip link` on both",
    Reach.CUT_OFF: "something on the way ends the connections: a firewall, or a proxy",
    Reach.FAILED: "",
    Reach.UNTRIED: "",
}


def choose_pairs(hosts: Sequence[str], seed: int) -> list[tuple[str, str]]:
    """Who tries whom, from and to: each itself, and all others; of many hosts a ring and a random choice.

    Args:
        hosts: their names.
        seed: the same draws the same pairs.
    """
    if len(hosts) <= ALL_UP_TO:
        return [(source, target) for source in hosts for target in hosts]
    chosen = {frozenset(pair) for pair in zip(hosts, (*hosts[1:], hosts[0]), strict=True)}
    draw = random.Random(seed)
    possible = len(hosts) * (len(hosts) - 1) // 2
    enough = min(possible, len(chosen) + RANDOM_PAIRS)
    while len(chosen) < enough:
        chosen.add(frozenset(draw.sample(hosts, 2)))
    place = {name: number for number, name in enumerate(hosts)}
    both = [pair for unordered in chosen for pair in (tuple(unordered), tuple(unordered)[::-1])]
    ordered = [(pair[0], pair[1]) for pair in both] + [(name, name) for name in hosts]
    return sorted(ordered, key=lambda pair: (place[pair[0]], place[pair[1]]))


def of_pairs(pairs: Sequence[Pair], addresses: Mapping[str, str]) -> Iterator[Finding]:
    """Hosts that do not reach each other, or badly.

    Args:
        pairs: what became of each connection.
        addresses: of each host, as other tasks are told.
    """
    yield from _unreached(pairs, addresses)
    yield from _slow([pair for pair in pairs if pair.rtt_s is not None and pair.source != pair.target])
    yield from _lossy(pairs)


def _unreached(pairs: Sequence[Pair], addresses: Mapping[str, str]) -> Iterator[Finding]:
    """One finding for each host and way of failing: which others it does not reach."""
    failed: dict[tuple[str, Reach, str], list[str]] = defaultdict(list)
    tried: dict[str, int] = defaultdict(int)
    for pair in pairs:
        tried[pair.source] += 1
        if pair.reach not in (Reach.OK, Reach.UNTRIED):
            failed[pair.source, pair.reach, pair.why].append(pair.target)
    for (source, reach, why), targets in failed.items():
        whom = _whom(source, targets, tried[source], addresses)
        seen = f"can't reach {whom}: {reach.value}{f' ({why})' if why else ''}"
        yield Finding(Severity.PROBLEM, "unreachable", (source,), seen, _ADVICE[reach])


def _whom(source: str, targets: Sequence[str], tried: int, addresses: Mapping[str, str]) -> str:
    if list(targets) == [source]:
        return f"itself at {addresses[source]}"
    others = tried - 1
    if others > 1 and len(targets) >= others:
        return f"any of the {others} others" + (", nor itself" if source in targets else "")
    return listed([_named(name, addresses[name]) for name in targets])


def _named(name: str, address: str) -> str:
    return name if name == address else f"{name} ({address})"


def _slow(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Round trips that are long, or much longer than the usual one here."""
    if not pairs:
        return
    times = sorted(pair.rtt_s or 0.0 for pair in pairs)
    usual = times[len(times) // 2]
    slow = [p for p in pairs if (p.rtt_s or 0) > _SLOW or (p.rtt_s or 0) > max(_ODD, _TIMES_MEDIAN * usual)]
    for host, mine in _by_culprit(slow):
        others = dict.fromkeys(pair.target if pair.source == host else pair.source for pair in mine)
        worst = max(pair.rtt_s or 0.0 for pair in mine)
        seen = f"round trips between it and {listed(list(others))} take up to {milliseconds(worst)}"
        beside = f"; half of all take {milliseconds(usual)} or less" if len(pairs) > 2 else ""
        advice = "every training step waits for the slowest: look at the network between them"
        yield Finding(Severity.WARNING, "slow", (host,), seen + beside, advice)


def _by_culprit(pairs: Sequence[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    """The host that most of these have in common and which they are; then the same of the rest."""
    left = list(pairs)
    while left:
        counted = Counter(name for pair in left for name in (pair.source, pair.target))
        host = counted.most_common(1)[0][0]
        yield host, [pair for pair in left if host in pair[:2]]
        left = [pair for pair in left if host not in pair[:2]]


def _lossy(pairs: Sequence[Pair]) -> Iterator[Finding]:
    for source, mine in _by_source([pair for pair in pairs if pair.retransmits]):
        lost = sum(pair.retransmits for pair in mine)
        if lost >= _LOSSY:
            targets = [pair.target for pair in mine]
            seen = f"{lost} packets to {listed(targets)} were lost and sent again"
            advice = "a bad cable, a wrong duplex setting or an overloaded link: look at `ip -s link` on both"
            yield Finding(Severity.WARNING, "loss", (source,), seen, advice)


def _by_source(pairs: Sequence[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    found: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[pair.source].append(pair)
    yield from found.items()


def milliseconds(seconds: float) -> str:
    """``0.21 ms``, ``3.4 ms``, ``120 ms``."""
    value = seconds * 1000
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"

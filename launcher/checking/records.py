"""What was seen, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from launcher.job import Host

if TYPE_CHECKING:
    from typing import Any


class Severity(Enum):
    """How bad it is, the worst first."""

    #: A run on these hosts will fail, or do something else than was asked for.
    PROBLEM = "problem"
    #: It may.
    WARNING = "warning"
    #: Good to know.
    NOTE = "note"


class Finding(NamedTuple):
    """One thing that is to be said of some hosts."""

    severity: Severity
    #: What it is about, one word, the same in every version: for programs.
    kind: str
    #: Names of the hosts concerned, in the order of the inventory.
    hosts: tuple[str, ...]
    #: What was seen.
    seen: str
    #: What to try; may be empty.
    advice: str = ""


class Offset(NamedTuple):
    """How far a host's clock is ahead of the launcher's, in seconds, and by how much that may be wrong."""

    seconds: float
    uncertainty: float


class Sight(NamedTuple):
    """What the probe on one host saw of it."""

    host: Host
    #: See ``launcher.agent.probe_facts``.
    facts: Mapping[str, Any]
    offset: Offset | None = None
    #: Of the address of each host: ``found`` addresses, ``why`` there are none, ``seconds``.
    names: Mapping[str, Mapping[str, Any]] = {}

    @property
    def name(self) -> str:
        """The host's."""
        return self.host.name

    def version(self, package: str) -> str | None:
        """The version of a package that the Python of the tasks would import; ``None``: it has none."""
        found = self.facts["task_python"].get(package)
        return None if found is None else str(found)


class Reach(Enum):
    """What became of a connection."""

    OK = "ok"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    UNKNOWN_NAME = "unknown name"
    #: Another program answers at this address and port, or another host.
    SOMEBODY_ELSE = "somebody else"
    #: Small packets arrive and large ones do not.
    STUCK = "stuck"
    CUT_OFF = "cut off"
    FAILED = "failed"
    #: The host that should have tried did not say what became of it.
    UNTRIED = "not tried"


class Pair(NamedTuple):
    """A connection from a task's host to the port of another's."""

    source: str
    target: str
    reach: Reach
    #: Seconds of the fastest round trip, where there was one.
    rtt_s: float | None = None
    #: Packets of the source that had to be sent again.
    retransmits: int = 0
    #: What the kernel of the source said.
    why: str = ""


def offset_of(samples: Iterable[tuple[float, float, float]]) -> Offset | None:
    """The offset of a clock, from the sample with the least round trip: it leaves the least room for doubt.

    Args:
        samples: when we asked, what it said, when we heard it; the outer two by our clock.
    """
    best = min(samples, key=lambda sample: sample[2] - sample[0], default=None)
    if best is None:
        return None
    asked, said, heard = best
    return Offset(said - (asked + heard) / 2, max(0.0, heard - asked) / 2)


def odd_ones(values: Mapping[str, str]) -> tuple[str, dict[str, list[str]]]:
    """What most hosts have, and who has what else.

    Args:
        values: by host, in the order of the inventory; at least one. Of equally many the first is the usual.
    """
    usual = max(dict.fromkeys(values.values()), key=lambda value: list(values.values()).count(value))
    others: dict[str, list[str]] = {}
    for host, value in values.items():
        if value != usual:
            others.setdefault(value, []).append(host)
    return usual, others


def merged(found: Iterable[Finding], order: Iterable[str]) -> tuple[Finding, ...]:
    """The worst first; what is the same of several hosts is said once.

    Args:
        found: each of one or more hosts.
        order: of the hosts.
    """
    place = {name: number for number, name in enumerate(order)}
    together: dict[tuple[Severity, str, str, str], list[str]] = {}
    for finding in found:
        key = (finding.severity, finding.kind, finding.seen, finding.advice)
        hosts = together.setdefault(key, [])
        hosts.extend(name for name in finding.hosts if name not in hosts)
    worst = list(Severity)
    joined = [
        Finding(severity, kind, tuple(sorted(hosts, key=lambda name: place.get(name, -1))), seen, advice)
        for (severity, kind, seen, advice), hosts in together.items()
    ]
    return tuple(sorted(joined, key=lambda finding: worst.index(finding.severity)))

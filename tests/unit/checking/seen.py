"""Sights of hosts in good health, to be spoilt by tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.checking.findings import findings
from launcher.checking.records import Finding, Offset, Pair, Reach, Severity, Sight
from launcher.job import Host

PYTHON = {
    "asked": "python3",
    "path": "/usr/bin/python3",
    "state": "ok",
    "said": "",
    "version": "3.11.7",
    "tensorflow": "2.21.0",
    "distribution": "tensorflow",
    "keras": "3.15.1",
    "tf_keras": "2.21.0",
    "numpy": "2.4.6",
}
FOLDER = {"path": "/home/me", "free": 50_000_000_000, "why": ""}


def facts(number: int = 1, **changed: Any) -> dict[str, Any]:
    """What a probe tells of a host that has everything; see ``launcher.agent.probe_facts``."""
    healthy = {
        "hostname": f"host{number}",
        "boot": f"boot-{number}",
        "addresses": [f"10.0.0.{number}"],
        "cpus": 8,
        "memory": 64_000_000_000,
        "available": 32_000_000_000,
        "load": [0.5, 0.5, 0.5],
        "python": "3.11.7",
        "folders": {"home": FOLDER, "tmp": {**FOLDER, "path": "/tmp"}},
        "shm": 32_000_000_000,
        "limits": {"files": 65536, "processes": None},
        "environment": {"TF_USE_LEGACY_KERAS": "1"},
        "gpus": {"state": "none", "said": "", "list": []},
        "task_python": PYTHON,
        "leftovers": {"processes": [], "count": 0, "busy": 0, "folders": []},
    }
    return {**healthy, **changed}


def sight(number: int = 1, host: Host | None = None, offset: float = 0.0, **changed: Any) -> Sight:
    """``node1`` and so on; ``changed`` facts."""
    return Sight(host or Host(f"node{number}"), facts(number, **changed), Offset(offset, 0.01))


def python(number: int = 1, **changed: Any) -> Sight:
    """A host whose Python says something else."""
    return sight(number, task_python={**PYTHON, **changed})


def said(*sights: Sight, pairs: Sequence[Pair] = ()) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Severity, kind, hosts and text of all findings."""
    found = findings([sight.host for sight in sights], sights, pairs)
    return [(f.severity.value, f.kind, f.hosts, f.seen) for f in found]


def only(*sights: Sight, pairs: Sequence[Pair] = ()) -> Finding:
    """The one finding there is."""
    found = findings([sight.host for sight in sights], sights, pairs)
    assert len(found) == 1, found
    return found[0]


def pair(source: int, target: int, reach: Reach = Reach.OK, rtt_s: float | None = None, **more: Any) -> Pair:
    """``node1`` to ``node2``; a quick one if it is well."""
    return Pair(
        f"node{source}",
        f"node{target}",
        reach,
        0.0002 if rtt_s is None and reach is Reach.OK else rtt_s,
        **more,
    )


PROBLEM, WARNING, NOTE = Severity

"""Findings of a check, by tables."""

from __future__ import annotations

import json
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.events import HostFacts
from launcher.common.record import as_dict
from launcher.common.validation import FieldReader
from launcher.findings import HostCheck, HostInspection, ReachResult, findings, findings_of_agents
from launcher.job import Host

GPU = {"index": "0", "uuid": "GPU-12ab", "name": "A100"}


def facts(number: int, **changed: Any) -> HostInspection:
    """The facts of host ``number`` without any fault; of ``python`` only what differs is given."""
    python = {"state": "ok", "output": "", "asked": "python3", "path": "/usr/bin/python3"}
    python.update(version="3.11.7", tensorflow="2.21.0", keras="2.0")
    python.update(changed.pop("python", {}))
    agent = HostFacts(
        f"node{number}", addresses=(f"10.0.0.{number}",), cpus=4, memory=8 << 30, python="3.11.7",
        executable="", user=0,
    )  # fmt: skip
    usual: dict[str, Any] = {
        "agent": as_dict(agent),
        "available": 8 << 30,
        "folders": {"workdir": {"path": "/home/me", "free": 50 << 30, "why": ""}},
        "environment": {},
        "gpus": {"state": "none", "output": "", "list": []},
        "task_python": python,
    }
    return HostInspection(*FieldReader().read(HostInspection, json.loads(json.dumps({**usual, **changed}))))


def reports(*changes: dict[str, Any], gpus: tuple[str, ...] = ()) -> list[HostCheck]:
    """Reports of node1, node2, ... with these changes."""
    made = []
    for number, changed in enumerate(changes, 1):
        changed = dict(changed)
        clock = changed.pop("clock", 0.0)
        host = Host(f"node{number}", gpus=gpus or None)
        made.append(HostCheck(host, facts(number, **changed), clock))
    return made


def listed(
    of: list[HostCheck], pairs: tuple[ReachResult, ...] = ()
) -> list[tuple[str, str, tuple[str, ...], str]]:
    found = findings([report.host for report in of], of, pairs)
    return [(each.severity, each.kind, each.hosts, each.seen) for each in found]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{}, {}, {}], []),
        ([{}, {"clock": 45.0}, {}], ["problem clock node2"]),
        ([{"clock": 3.0}], ["warning clock node1"]),
        ([{"python": {"state": "failed", "output": "a\nlibc is missing"}}], ["problem python node1"]),
        ([{"folders": {"tmp": {"path": "/tmp", "free": 5_000_000, "why": ""}}}], ["warning disk node1"]),
        ([{"available": 200_000_000}], ["warning memory node1"]),
        ([{"gpus": {"state": "failed", "output": "no driver", "list": []}}], ["warning gpus node1"]),
    ],
)
def test_findings_of_hosts(changes: list[dict[str, Any]], expected: list[str], snapshot: SnapshotAssertion):
    found = listed(reports(*changes))
    assert [f"{severity} {kind} {','.join(hosts)}" for severity, kind, hosts, _ in found] == expected
    assert "\n".join(text for *_, text in found) == snapshot


def test_a_finding_of_several_hosts_stands_once_and_the_worst_comes_first():
    bare: dict[str, Any] = {"python": {"tensorflow": None}}
    full = {**bare, "folders": {"tmp": {"path": "/tmp", "free": 0, "why": "full"}}}
    found = listed(reports(bare, full))
    assert [(severity, kind, hosts) for severity, kind, hosts, _ in found] == [
        ("problem", "disk", ("node2",)),
        ("warning", "tensorflow-missing", ("node1", "node2")),
    ]


def test_gpus_of_the_hostfile():
    found = listed(reports({"gpus": {"state": "ok", "output": "", "list": [GPU]}}, gpus=("0", "1")))
    ((severity, kind, hosts, text),) = found
    assert (severity, kind, hosts, "GPU 1" in text) == ("problem", "gpus", ("node1",), True)


def test_addresses_of_the_inventory():
    hosts = [Host("node1"), Host("a", address="10.0.0.9"), Host("b", address="10.0.0.9"), Host("localhost")]
    found = findings_of_agents(hosts, {"node1": facts(1).agent})
    assert [(each.severity, each.hosts) for each in found] == [
        ("problem", ("localhost",)),
        ("problem", ("a", "b")),
    ]


def test_the_address_of_another_host():
    hosts = [Host("node1"), Host("alias"), Host("c", address="10.0.0.1")]
    found = findings_of_agents(hosts, {"node1": facts(1).agent, "alias": facts(1).agent, "c": facts(3).agent})
    assert [(each.kind, each.hosts) for each in found] == [("address", ("c",)), ("address", ("c",))]

"""Findings of a check, by tables."""

from __future__ import annotations

import json
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.events import HostFacts
from launcher.common.record import as_dict
from launcher.common.validation import FieldReader
from launcher.findings import HostCheck, HostInspection, findings, findings_of_agents
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


BARE: dict[str, Any] = {"python": {"tensorflow": None}}
FULL = {**BARE, "folders": {"tmp": {"path": "/tmp", "free": 0, "why": "full"}}}
HAS_GPU_0 = {"state": "ok", "output": "", "list": [GPU]}


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
        ([{"asked_gpus": ("0", "1"), "gpus": HAS_GPU_0}], ["problem gpus node1"]),
        # what several hosts have is one finding, and the worst comes first
        ([BARE, FULL], ["problem disk node2", "warning tensorflow-missing node1,node2"]),
    ],
)  # fmt: skip
def test_findings_of_hosts(changes: list[dict[str, Any]], expected: list[str], snapshot: SnapshotAssertion):
    """Of node1, node2, ... with these changes."""
    reports = []
    for number, changed in enumerate(map(dict, changes), 1):
        clock, gpus = changed.pop("clock", 0.0), changed.pop("asked_gpus", None)
        reports.append(HostCheck(Host(f"node{number}", gpus=gpus), facts(number, **changed), clock))
    found = findings([report.host for report in reports], reports, ())
    assert [f"{each.severity} {each.kind} {','.join(each.hosts)}" for each in found] == expected
    assert "\n".join(each.seen for each in found) == snapshot


def test_addresses_of_the_inventory():
    hosts = [Host("node1"), Host("a", address="10.0.0.9"), Host("b", address="10.0.0.9"), Host("localhost")]
    found = findings_of_agents(hosts, {"node1": facts(1).agent})
    wrong = [(each.severity, each.hosts) for each in found]
    assert wrong == [("problem", ("localhost",)), ("problem", ("a", "b"))]


def test_the_address_of_another_host():
    hosts = [Host("node1"), Host("alias"), Host("c", address="10.0.0.1")]
    found = findings_of_agents(hosts, {"node1": facts(1).agent, "alias": facts(1).agent, "c": facts(3).agent})
    assert [(each.kind, each.hosts) for each in found] == [("address", ("c",)), ("address", ("c",))]

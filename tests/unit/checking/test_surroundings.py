"""Proxies, settings and leftovers."""

from __future__ import annotations

import pytest

from launcher.checking.records import Finding, Severity, merged
from launcher.checking.surroundings import is_excepted
from launcher.job import Host
from tests.unit.checking.seen import NOTE, WARNING, only, said, sight


def proxied(**environment: str):
    host = Host("node1", address="10.0.0.1")
    return sight(1, host, environment={"TF_USE_LEGACY_KERAS": "1", **environment})


OTHER = sight(2, Host("node2.lab"))


@pytest.mark.parametrize("name", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_a_proxy_that_grpc_uses(name: str):
    found = only(proxied(**{name: "http://proxy:3128"}), OTHER)
    assert (found.severity, found.kind, found.hosts) == (WARNING, "proxy", ("node1",))
    assert found.seen == (
        f"{name}=http://proxy:3128 makes gRPC connect to 10.0.0.1, node2.lab through a proxy"
    )
    assert "-x no_proxy=10.0.0.1,node2.lab" in found.advice


@pytest.mark.parametrize("name", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"])
def test_a_proxy_that_grpc_does_not_know(name: str):
    assert only(proxied(**{name: "http://proxy:3128"}), OTHER).severity is NOTE


def test_a_proxy_with_exceptions_for_all():
    assert said(proxied(http_proxy="http://p", no_proxy="localhost,.lab,10.0.0.0/8"), OTHER) == []


def test_a_proxy_with_exceptions_for_some():
    assert "to node2.lab through" in only(proxied(http_proxy="http://p", no_proxy="10.0.0.1"), OTHER).seen


def test_grpcs_own_exceptions_come_first():
    found = only(proxied(http_proxy="http://p", no_grpc_proxy="nowhere", no_proxy=".lab,10.0.0.1"), OTHER)
    assert "10.0.0.1, node2.lab" in found.seen


@pytest.mark.parametrize(
    ("address", "exceptions", "excepted"),
    [
        ("node1", "node1", True),
        ("node1", "NODE1 , x", True),
        ("node1.lab", "lab", True),
        ("node1", "node1.lab", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.2.0.0/16", False),
        ("fd00::1", "fd00::/8", True),
        ("10.1.2.3", "fd00::/8", False),
        ("10.1.2.3", "10.0.0.0/99", False),
        ("node1", "", False),
        ("node1", ",,", False),
        ("node1", "10.0.0.0/8", False),
    ],
)
def test_exceptions(address: str, exceptions: str, excepted: bool):
    assert is_excepted(address, exceptions) is excepted


def test_gpus_that_the_environment_hides():
    gpu = {"index": "0", "uuid": "GPU-1", "name": "A100", "memory": "80 GB"}
    environment = {"CUDA_VISIBLE_DEVICES": "", "TF_USE_LEGACY_KERAS": "1"}
    found = only(sight(1, gpus={"state": "ok", "said": "", "list": [gpu]}, environment=environment))
    assert (found.severity, found.kind) == (NOTE, "environment")


def test_leftovers():
    left = {"processes": [{"pid": 7, "name": "python3"}], "count": 1, "busy": 2, "folders": ["a"]}
    found = said(sight(1, leftovers=left))
    assert found == [
        ("note", "leftovers", ("node1",), "1 process of an earlier run is left: python3 (7)"),
        ("note", "busy", ("node1",), "another run of launch is there, with 2 of its processes"),
        ("note", "leftovers", ("node1",), "folders of runs: a"),
    ]


def test_the_worst_comes_first_and_the_same_is_said_once():
    def of(severity: Severity, host: str) -> Finding:
        return Finding(severity, "kind", (host,), "seen")

    found = merged(
        [of(NOTE, "b"), of(WARNING, "b"), of(NOTE, "a"), of(Severity.PROBLEM, "c")], ["a", "b", "c"]
    )
    assert [(f.severity, f.hosts) for f in found] == [
        (Severity.PROBLEM, ("c",)), (WARNING, ("b",)), (NOTE, ("a", "b")),
    ]  # fmt: skip

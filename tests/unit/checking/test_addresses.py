"""Addresses and names that lead elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.checking.addresses import plain
from launcher.checking.records import Sight
from launcher.job import Host
from tests.unit.checking.seen import NOTE, PROBLEM, WARNING, facts, only, said, sight


def resolved(*found: str, why: str = "", seconds: float = 0.01) -> dict[str, Any]:
    return {"found": list(found), "why": why, "seconds": seconds}


def seeing(number: int, **names: dict[str, Any]) -> Sight:
    """A host, and what the names of all hosts mean there."""
    usual = {f"node{n}": resolved(f"10.0.0.{n}") for n in (1, 2, 3)}
    return sight(number)._replace(names={**usual, **names})


def test_localhost_among_others():
    found = only(sight(1, Host("localhost")), sight(2))
    assert (found.severity, found.kind, found.hosts) == (PROBLEM, "address", ("localhost",))
    assert "told to connect to localhost, which is themselves" in found.seen
    assert "address:" in found.advice


@pytest.mark.parametrize("address", ["localhost", "127.0.0.3", "::1"])
def test_an_address_of_nobody_else(address: str):
    assert only(sight(1, Host("node1", address=address)), sight(2)).kind == "address"


def test_localhost_with_an_address_is_fine():
    assert said(sight(1, Host("localhost", address="10.0.0.1")), sight(2)) == []


def test_a_list_of_nothing_but_this_machine_is_fine():
    here = facts(1)
    sights = [Sight(Host("127.0.0.1"), here), Sight(Host("127.0.0.2"), here)]
    assert said(*sights) == []


def test_the_same_address_twice():
    found = only(sight(1, Host("a", address="fd00::1")), sight(2, Host("b", address="[FD00:0::1]")))
    assert (found.hosts, found.seen) == (("a", "b"), "have the same address fd00::1")


def test_one_machine_by_two_names():
    found = only(sight(1, Host("node1")), sight(1, Host("10.0.0.1")))
    assert (found.severity, found.hosts) == (NOTE, ("node1", "10.0.0.1"))
    assert found.seen == "are one machine, which calls itself host1"


def test_an_address_of_another_host():
    found = only(sight(1, Host("a", address="10.0.0.2")), sight(2, Host("b")))
    assert (found.severity, found.hosts) == (PROBLEM, ("a",))
    assert found.seen == "its address 10.0.0.2 is not its own but b's"


def test_an_address_of_nobody_may_be_translated():
    assert said(sight(1, Host("a", address="203.0.113.9")), sight(2)) == []


def test_names_that_mean_what_they_should():
    assert said(*(seeing(n) for n in (1, 2, 3))) == []


def test_a_name_that_means_oneself():
    found = only(seeing(1, node2=resolved("127.0.1.1")), seeing(2), seeing(3))
    assert (found.severity, found.kind, found.hosts) == (PROBLEM, "name", ("node1",))
    assert found.seen == "node2 means 127.0.1.1 there, the host itself"
    assert "/etc/hosts" in found.advice


def test_debians_own_name_is_worth_a_note():
    own = [seeing(n, **{f"node{n}": resolved("127.0.1.1")}) for n in (1, 2)]
    found = [(severity, kind, hosts) for severity, kind, hosts, _ in said(*own)]
    assert found == [("note", "own-name", ("node1",)), ("note", "own-name", ("node2",))]


def test_a_name_that_means_a_third_one():
    found = only(seeing(1, node2=resolved("10.0.0.3")), seeing(2), seeing(3))
    assert (found.severity, found.hosts) == (PROBLEM, ("node1",))
    assert found.seen == "node2 means 10.0.0.3 there, which is node3"


def test_a_name_that_means_several_is_right_with_one():
    assert said(seeing(1, node2=resolved("10.0.0.3", "10.0.0.2")), seeing(2), seeing(3)) == []


def test_a_name_that_nobody_knows_is_said_once():
    unknown = {"node3": resolved(why="Name or service not known")}
    found = only(seeing(1, **unknown), seeing(2, **unknown), seeing(3))
    assert (found.severity, found.hosts) == (PROBLEM, ("node1", "node2"))
    assert found.seen == "node3 can't be resolved: Name or service not known"


def test_a_slow_name_server():
    found = only(seeing(1, node2=resolved("10.0.0.2", seconds=5.2)), seeing(2))
    assert (found.severity, found.kind, found.hosts) == (WARNING, "name-slow", ("node1",))
    assert found.seen == "looking up node2 takes 5.2 s"


def test_a_host_alone_may_call_itself_what_it_likes():
    assert said(sight(1)._replace(names={"node1": resolved("127.0.1.1")})) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("fd00:0000:0:0:0:0:0:0001", "fd00::1"),
        ("[fd00::1]", "fd00::1"),
        ("Node1", "node1"),
    ],
)
def test_plain(text: str, expected: str):
    assert plain(text) == expected

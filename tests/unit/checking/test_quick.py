"""The quick form, from what agents tell."""

from __future__ import annotations

import os

from launcher.agent.hostfacts import host_facts
from launcher.checking.quick import quick
from launcher.checking.records import Offset
from launcher.job import Host


def facts(number: int, python: str = "3.11.7") -> dict[str, object]:
    """As ``AgentReady`` brings them."""
    return {"hostname": f"host{number}", "addresses": [f"10.0.0.{number}"], "cpus": 2, "python": python}


READY = {"a": facts(1), "b": facts(2)}
A, B = Host("a"), Host("b")


def said(*arguments) -> list[tuple[str, tuple[str, ...], str]]:
    return [(f.severity.value, f.hosts, f.seen) for f in quick(*arguments)]


def test_all_is_well():
    assert said([A, B], READY) == []
    assert said([Host("localhost")], {"localhost": host_facts()}) == []


def test_a_python_that_differs():
    ready = {**READY, "b": facts(2, "3.8.18")}
    assert said([A, B], ready) == [("warning", ("b",), "Python 3.8, the others have 3.11")]


def test_the_agents_python_is_not_always_that_of_the_tasks():
    ready = {**READY, "b": facts(2, "3.8.18")}
    assert said([A, Host("b", venv="tf")], ready) == []
    assert said([A, Host("b", python="venv/bin/python")], ready) == []
    assert len(said([A, Host("b", python="/opt/bin/python3")], ready)) == 1


def test_addresses():
    here = os.uname().nodename
    found = said([Host("localhost"), B], {"localhost": {**facts(1), "hostname": here}, "b": facts(2)})
    assert found[0][:2] == ("problem", ("localhost",))
    found = said([Host("a", address="10.0.0.2"), B], READY)
    assert found == [("problem", ("a",), "its address 10.0.0.2 is not its own but b's")]


def test_clocks():
    offsets = {"a": Offset(0.0, 0.1), "b": Offset(40.0, 0.1)}
    assert said([A, B], READY, offsets) == [("problem", ("b",), "its clock is 40s ahead of the others")]


def test_a_host_whose_agent_is_not_ready():
    assert said([A, B], {"a": facts(1)}) == []

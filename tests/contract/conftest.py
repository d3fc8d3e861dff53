"""An agent behind each transport, and a check that it leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.event_loop import EventLoop
from tests.contract.driver import Driver
from tests.contract.sites import SITES, Eyes, Site
from tests.docker.conftest import real_engine
from tests.docker.site import NOT_HERE
from tests.seeing import MARK
from tests.ssh.lab import Lab

#: Fixtures of other folders.
__all__ = ["real_engine"]

#: ``LAUNCH_TEST_CONTRACT=docker``: all tests by this transport. By default only this machine has all, as the
#: agent is the same everywhere.
ASKED_FOR = os.environ.get("LAUNCH_TEST_CONTRACT", "").split()
_HERE = Path(__file__).parent
#: Seconds a test in a container may take, its fixtures left out: they have limits of their own.
_LIMIT = 120
#: Tests by every transport: what it starts, and how its links end.
_EVERYWHERE = {
    "test_ready", "test_closing", "test_hanging_up", "test_a_launcher_that_is_gone",
    "test_a_signal_to_agent_or_watchdog", "test_an_agent_that_does_not_answer_is_killed_with_all_it_started",
}  # fmt: skip
#: Further tests, or modules: what a connection does to output and start; an agent that is process 1.
_MORE = {
    "ssh": {
        "test_output.py", "test_what_a_task_finds", "test_signals_are_as_the_kernel_has_them",
        "test_arguments_and_environment_arrive_as_they_were", "test_forked_tasks",
        "test_pwd_is_the_folder",
        "test_ports_are_held_against_all_other_processes", "test_another_agent_is_not_touched",
    },
    "docker": {
        "test_exits.py", "test_preload.py", "test_ports_are_held_against_all_other_processes",
        "test_pwd_is_the_folder", "test_processes_that_belong_to_no_task_go_with_the_agent",
    },
}  # fmt: skip
#: Cases of tests by every transport that only some have, beside this machine. A signal to the watchdog of a
#: container or pod is one to its main process, and both processes end as one does. Slurm signals the agent at
#: scancel. What an agent does without its watchdog is the same everywhere.
_CASES = {
    "agent SIGTERM": {"ssh", "slurm"},
    "watchdog SIGTERM": {"ssh", "docker", "kubernetes"},
    "both killed": {"ssh", "slurm"},
    "watchdog stopped": {"ssh", "docker"},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each transport's name in turn."""
    if "transport" in metafunc.fixturenames:
        module, test = Path(metafunc.module.__file__).name, metafunc.function.__name__
        named = [
            name
            for name in sorted(SITES)
            if name == "local" or test in _EVERYWHERE or {test, module} & _MORE.get(name, set())
        ]
        metafunc.parametrize("transport", ASKED_FOR or named)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lives as long as the session must be there before a test looks at what it leaves."""
    if not ASKED_FOR:
        items[:] = [item for item in items if item.path.parent != _HERE or _is_proven_by(item)]
    for item in items:
        if item.path.parent != _HERE or not isinstance(item, pytest.Function):
            continue
        if "[local" in item.name:
            item.add_marker(pytest.mark.forks)
        if "[docker" in item.name:
            item.fixturenames = ["real_engine", *item.fixturenames]
            if item.name in NOT_HERE:
                item.add_marker(pytest.mark.skip(reason="an agent in a container has too little of the CPU"))
        own = any(f"[{name}" in item.name for name in ("docker", "kubernetes"))
        if own and item.get_closest_marker("timeout") is None:  # the first waits for an engine or a cluster
            item.add_marker(pytest.mark.timeout(_LIMIT, func_only=True))
        for name in ("slurm", "kubernetes"):
            if f"[{name}" in item.name and "site" in item.fixturenames:
                item.fixturenames = [name, *item.fixturenames]


def _is_proven_by(item: pytest.Item) -> bool:
    """Whether the transport of a test has its case."""
    transport, _, case = item.name.partition("[")[2].rstrip("]").partition("-")
    return transport == "local" or transport in _CASES.get(case, {transport})


@pytest.fixture(scope="session")
def one_host() -> Iterator[Lab]:
    """A host to reach over SSH."""
    with Lab(1) as lab:
        yield lab


@pytest.fixture
def site(transport: str, request: pytest.FixtureRequest, nothing_left: str) -> Iterator[Site]:
    """The host behind it."""
    assert transport in SITES, f"tests/contract/sites.py needs a Site for {transport}"
    with SITES[transport](request) as made:
        yield made


@pytest.fixture
def eyes(site: Site) -> Eyes:
    """What is seen on it."""
    return Eyes(site)


@pytest.fixture
def open_agent(site: Site, nothing_left: str) -> Iterator[Callable[[], Driver]]:
    """Opens agents; each is over, and their links are closed, at the end of the test."""
    drivers: list[Driver] = []
    with EventLoop() as loop:

        def opened() -> Driver:
            drivers.append(Driver(site.open(loop), site.host.name, {MARK: nothing_left}, loop))
            drivers[-1].ready()
            return drivers[-1]

        yield opened
        for driver in drivers:
            driver.link.shut_down()
        ends = [driver.to_the_end() for driver in drivers]
        for driver in drivers:
            driver.link.close()
    assert None not in ends, "an agent did not end"


@pytest.fixture
def agent(open_agent: Callable[[], Driver]) -> Driver:
    """One agent, ready."""
    return open_agent()

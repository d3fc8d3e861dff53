"""Four hosts for all tests here, healthy before each, and a check that nothing is left on any after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backends.ssh.connections import SshConnections
from launcher.config.settings import Settings
from launcher.job import Host
from tests.conftest import Launch
from tests.ssh.connecting import Home
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab
from tests.told import Told


@pytest.fixture(scope="session")
def four_hosts() -> Iterator[Lab]:
    """The lab, as the last test left it: tests take `lab`."""
    if os.geteuid() != 0:
        pytest.skip("needs root: hosts made of network namespaces")
    with Lab(4) as lab:
        yield lab


@pytest.fixture
def lab(four_hosts: Lab, nothing_left: str) -> Iterator[Lab]:
    """Four hosts, healthy. Nothing may be left on them but the launcher's cache."""
    four_hosts.heal()
    yield four_hosts
    left = four_hosts.settled()
    four_hosts.heal()
    if left:
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def hosts(lab: Lab) -> list[LabHost]:
    """Its hosts."""
    return lab.hosts


@pytest.fixture
def ssh_launch(lab: Lab, launch: Launch) -> Launch:
    """The installed command, with the keys of the lab in its home: ``--hosts node1,node2`` works."""
    lab.move_in(launch.home)
    return launch


@pytest.fixture
def home(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of the launching user, with the keys of the lab."""
    return Home(tmp_path / "home", lab, monkeypatch)


@pytest.fixture
def caller(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its path; the runs of the test's own process go there, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home.path / "state"))
    return home.path


@pytest.fixture
def told() -> Iterator[Told]:
    """What the user is told, but for what comes on a busy machine."""
    with Told(waits=False) as told:
        yield told


@pytest.fixture
def fleet(lab: Lab, caller: Path, told: Told) -> Iterator[SshConnections]:
    """Connections to all four, made by `caller`."""
    with SshConnections([Host(host.name) for host in lab.hosts], Settings()) as fleet:
        fleet.connect()
        yield fleet

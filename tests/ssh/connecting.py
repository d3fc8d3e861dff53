"""How tests connect to the hosts of the lab: from a home of their own, once and not for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import HostsError, TransportError
from launcher.job import Host
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.hosts import SshHosts
from tests.ssh.errand_stubs import receive
from tests.ssh.lab import Lab

#: Once, and for as long as a busy machine may take for a step.
ONCE = SshSettings(connect_timeout=30.0, attempts=1)
#: Once, and not for long: for hosts that say nothing.
QUICK = SshSettings(connect_timeout=1.0, attempts=1)


class Home:
    """The home of whoever connects, with a key that all hosts take, and all their host keys."""

    def __init__(self, path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        path.mkdir()
        lab.move_in(path)
        monkeypatch.setenv("HOME", str(path))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        self.path = path
        self.known = path / ".ssh/known_hosts"
        self.key = path / ".ssh/id_ed25519"
        self._config = path / ".ssh/config"

    def config(self, text: str) -> None:
        """Put this before what its ``.ssh/config`` says."""
        self._config.write_text(text + "\n" + self._config.read_text())


def works(*hosts: Host, settings: SshSettings = ONCE) -> list[str]:
    """That all can be connected to, and asked something; what was told meanwhile."""
    told: list[str] = []
    with SshHosts(hosts, settings, told.append) as fleet:
        fleet.connect()
        for host in hosts:
            assert fleet.is_alive(host.name)
            errand = fleet.run(host.name, "launcher.agent.processes:descendants_of", 1)
            receive(errand)
            assert errand.wait(30) is not None, errand.stderr()
            errand.close()
    return told


def refusal(*hosts: Host, settings: SshSettings = ONCE, tell: Callable[[str], None] = print) -> str:
    """Why they can't be connected to."""
    with SshHosts(hosts, settings, tell) as fleet, pytest.raises(HostsError) as caught:
        fleet.connect()
    assert isinstance(caught.value, TransportError) and caught.value.exit_code == 125
    assert str(caught.value) == "\n".join(caught.value.faults)
    return str(caught.value)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)

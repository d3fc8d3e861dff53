"""How tests connect to the hosts of the lab."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from launcher.backends.programs import RemoteProgram
from launcher.backends.ssh.connections import SshConnections
from launcher.config.settings import Settings
from launcher.config.table import CONNECT_TIMEOUT
from launcher.job import Host
from tests.seeing import soon
from tests.ssh.lab import Lab
from tests.told import Told

#: For as long as a busy machine may take for a step.
PATIENT = Settings().with_values({CONNECT_TIMEOUT: 30.0})
#: Not for long: for hosts that say nothing.
QUICK = Settings().with_values({CONNECT_TIMEOUT: 1.0})


class Home:
    """The home of the connecting user, with a key that all hosts take, and all their host keys."""

    def __init__(self, path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        path.mkdir()
        lab.move_in(path)
        monkeypatch.setenv("HOME", str(path))
        for name in ("SSH_AUTH_SOCK", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        self.path = path
        self.known = path / ".ssh/known_hosts"
        self.key = path / ".ssh/id_ed25519"
        self._config = path / ".ssh/config"

    def config(self, text: str) -> None:
        """Put this before what its ``.ssh/config`` says."""
        self._config.write_text(text + "\n" + self._config.read_text())


def works(*hosts: Host, settings: Settings = PATIENT, attempts: int = 1) -> list[str]:
    """That all can be connected to, and asked something; the notices meanwhile."""
    with Told(waits=False) as told, SshConnections(hosts, settings, attempts) as fleet:
        assert fleet.connect() == {}
        for host in hosts:
            assert fleet.is_alive(host.name)
            with closing(fleet.run(host.name, "launcher.agent.processes:descendants_of", 1)) as program:
                soon(partial(_has_ended, program), 60)
    return told.lines


def _has_ended(program: RemoteProgram) -> bool:
    return program.recv(1) == b""


def refusal(*hosts: Host, settings: Settings = PATIENT, attempts: int = 1) -> str:
    """Why they cannot be connected to."""
    with SshConnections(hosts, settings, attempts) as fleet:
        failed = fleet.connect()
    assert failed
    return "\n".join(f"{host}: {why}" for host, why in failed.items())

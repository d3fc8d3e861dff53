"""How tests connect to the hosts of the lab, and run programs of `tests/stubs/programs.py` there."""

from __future__ import annotations

import select
import time
from pathlib import Path

import pytest

from launcher.backends import bootstrap
from launcher.backends.programs import RemoteProgram
from launcher.backends.ssh.connections import SshConnections
from launcher.backends.ssh.program import start_ssh_program
from launcher.config.settings import Settings
from launcher.config.table import CONNECT_TIMEOUT
from launcher.job import Host
from tests.ssh.lab import Lab
from tests.told import Told

_STUBS = "tests.stubs.programs"
#: Seconds for what a host does in a moment, also on a busy machine.
TIME_LIMIT = 60.0


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
            program = fleet.run(host.name, "launcher.agent.processes:descendants_of", 1)
            receive(program)
            assert program.wait(30) is not None, program.stderr()
            program.close()
    return told.lines


def refusal(*hosts: Host, settings: Settings = PATIENT, attempts: int = 1) -> str:
    """Why they can't be connected to."""
    with SshConnections(hosts, settings, attempts) as fleet:
        failed = fleet.connect()
    assert failed
    return "\n".join(f"{host}: {why}" for host, why in failed.items())


def start(hosts: SshConnections, host: str, function: str, arguments: object) -> RemoteProgram:
    """Start one of the functions there."""
    python = hosts.python(host)
    startup = bootstrap.startup(python, f"{_STUBS}:{function}", arguments)
    return start_ssh_program(hosts.connection(host), python, startup)


def receive(program: RemoteProgram, until: int | None = None, seconds: float = TIME_LIMIT) -> bytes:
    """All that comes up to the end, or so many bytes."""
    deadline = time.monotonic() + seconds
    received = b""
    while until is None or len(received) < until:
        data = program.recv(1 << 20)
        if data == b"":
            if error := program.start_error():
                raise error
            return received
        if data is not None:
            received += data
            continue
        left = deadline - time.monotonic()
        assert left > 0, f"not in time; it sent {received[-1000:]!r}; stderr: {program.stderr()!r}"
        select.select([program], [], [], left)
    return received


def send(program: RemoteProgram, data: bytes, seconds: float = TIME_LIMIT) -> bytes:
    """Send all of it; what came back meanwhile."""
    deadline = time.monotonic() + seconds
    view, received = memoryview(data), b""
    while view:
        sent = program.send(view)
        view = view[sent:]
        assert time.monotonic() < deadline, f"not in time; stderr: {program.stderr()!r}"
        if not sent:
            # No short time-out: the descriptor becomes ready when more can be sent.
            select.select([program], [program] if received else [], [], seconds)
        received += program.recv(1 << 20) or b""
    return received

"""A site: the host behind a transport, as a test can look at it from beside the agent.

A new transport gets a class here, what makes one, and a line in SITES; the suite itself stays as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from launcher.backends.backend import Allocation, LaunchRequest
from launcher.backends.connections import AgentArguments, AgentLink, Connections
from launcher.backends.link import ReconnectingLink
from launcher.backends.local import fork_agent
from launcher.config.settings import Settings
from launcher.event_loop import EventLoop
from launcher.job import Host, JobSpec
from tests.kubernetes.cluster import Cluster as Kubernetes
from tests.seeing import ROOT, soon
from tests.slurm.cluster import Cluster as Slurm
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab
from tests.told import Told


class Site(Protocol):
    """One host."""

    #: As the transport gets it.
    host: Host
    #: A Python 3 of the host, and a folder there for the test.
    python: str
    folder: str
    #: Whether the kernel's log numbers its processes as they do themselves.
    kernel_pids: bool
    #: The end of the link when the watchdog is killed, when agent and watchdog are, and when it gets SIGTERM.
    watchdog_killed: str
    both_killed: str

    def open(self, loop: EventLoop) -> AgentLink:
        """Start an agent there."""

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> bytes:
        """Run a command there to its end, and return what it printed.

        Raises:
            subprocess.CalledProcessError: it failed.
        """


class LocalSite:
    """This machine."""

    host = Host("here")
    python = sys.executable
    kernel_pids = True
    watchdog_killed = both_killed = "its watchdog was killed by SIGKILL"

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> bytes:
        """See `Site.run`."""
        return subprocess.run(list(argv), input=stdin, stdout=subprocess.PIPE, timeout=60, check=True).stdout

    def open(self, loop: EventLoop) -> AgentLink:
        """See `Site.open`."""
        return fork_agent(self.host.name)


class RemoteSite(LocalSite):
    """The first host of an allocation, connected to as by a launch.

    Args:
        host: the host.
        connections: to it.
        folder: see `Site`.
        enter: the beginning of commands that run there, beside the transport.
    """

    python = "python3"
    kernel_pids = False
    watchdog_killed = "its watchdog was killed"
    both_killed = "the agent was killed"

    def __init__(self, host: Host, connections: Connections, folder: Path, enter: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self.host, self._connections, self._enter = host, connections, enter

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> bytes:
        """See `Site.run`."""
        return super().run([*self._enter, *argv], stdin)

    def open(self, loop: EventLoop) -> AgentLink:
        """See `Site.open`."""
        return ReconnectingLink(loop, self._connections, AgentArguments.new(self.host.name))


@contextmanager
def connected(
    allocating: AbstractContextManager[Allocation], *expected: str
) -> Iterator[tuple[Host, Connections]]:
    """The first host of an allocation, and connections; the user is told only what begins as expected."""
    with allocating as allocation, allocation.connect(allocation.hosts) as made, Told(waits=False) as told:
        yield allocation.hosts[0], made
    assert [line for line in told.lines if not line.startswith(expected)] == []


def request(*hosts: Host) -> LaunchRequest:
    """What a backend is asked for."""
    return LaunchRequest("x", JobSpec(()), Settings(), hosts)


@contextmanager
def _here(fixtures: pytest.FixtureRequest) -> Iterator[Site]:
    yield LocalSite(fixtures.getfixturevalue("tmp_path"))


class LabSite(RemoteSite):
    """A host of the lab, entered beside its sshd: what is seen there owes nothing to the transport."""

    there: LabHost

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> bytes:
        """See `Site.run`."""
        return self.there.run(argv, stdin).stdout


@contextmanager
def _in_the_lab(
    lab: Lab, allocate: Callable[[LaunchRequest], AbstractContextManager[Allocation]]
) -> Iterator[Site]:
    """Its connection is opened before the test and closed after it; nothing may be left there."""
    lab.heal()
    there = lab.hosts[0]
    with connected(allocate(request(there.record()))) as made:
        site = LabSite(*made, there.home / "test")
        site.there = there
        site.run(["mkdir", site.folder])
        yield site
        site.run(["rm", "-r", site.folder])
    assert lab.settled() == []


def _over_ssh(fixtures: pytest.FixtureRequest) -> AbstractContextManager[Site]:
    from launcher.backends.ssh.allocation import SshAllocation  # not on the path of the other transports

    lab: Lab = fixtures.getfixturevalue("one_host")
    fixtures.getfixturevalue("monkeypatch").setenv("HOME", str(lab.client_home))
    return _in_the_lab(lab, SshAllocation)


def _by_command(fixtures: pytest.FixtureRequest) -> AbstractContextManager[Site]:
    """The first backend of docs/extending.md: the ssh command."""
    module: dict[str, Any] = {}
    exec(compile(example_backends()[0], "docs/extending.md", "exec"), module)
    lab: Lab = fixtures.getfixturevalue("one_host")
    return _in_the_lab(lab, partial(module["BACKEND"].allocate, str(lab.ssh_config)))


@contextmanager
def _in_a_room(fixtures: pytest.FixtureRequest) -> Iterator[Site]:
    """A host that is known when the launch runs, and an agent that is the main process of its command."""
    from tests.stubs.rooms import BACKEND, RoomOptions

    folder: Path = fixtures.getfixturevalue("tmp_path")
    fixtures.getfixturevalue("monkeypatch").setenv("LEDGER", str(folder / "ledger"))
    (folder / "test").mkdir()
    allocation = BACKEND.allocate(RoomOptions(1), request())
    # The agent is the program at the other end of the first connection.
    with connected(allocation, "room1: connection lost (it was closed") as made:
        yield RemoteSite(*made, folder / "test")


def example_backends() -> list[str]:
    """The sources of the modules that docs/extending.md shows."""
    page = (ROOT / "docs/extending.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)


@contextmanager
def _in_docker(fixtures: pytest.FixtureRequest) -> Iterator[Site]:
    from tests.docker.site import in_docker

    with in_docker(fixtures.getfixturevalue("real_engine"), fixtures.getfixturevalue("tmp_path")) as site:
        yield site


@contextmanager
def _on_a_node(fixtures: pytest.FixtureRequest) -> Iterator[Site]:
    from launcher.backends.slurm import BACKEND, SlurmOptions

    slurm: Slurm = fixtures.getfixturevalue("slurm")
    folder: Path = fixtures.getfixturevalue("tmp_path")
    patch: pytest.MonkeyPatch = fixtures.getfixturevalue("monkeypatch")
    for name, value in fixtures.getfixturevalue("held").items():
        patch.setenv(name, value)
    patch.setenv("PATH", f"{slurm.commands(folder)}:{os.environ['PATH']}")
    (folder / "test").mkdir()
    with connected(BACKEND.allocate(SlurmOptions(), request())) as made:
        yield RemoteSite(*made, folder / "test", slurm.inside("n1"))
    soon(lambda: not slurm.steps())


@contextmanager
def _in_a_pod(fixtures: pytest.FixtureRequest) -> Iterator[Site]:
    from tests.kubernetes.site import in_a_pod

    cluster: Kubernetes = fixtures.getfixturevalue("kubernetes")
    patch: pytest.MonkeyPatch = fixtures.getfixturevalue("monkeypatch")
    folder: Path = fixtures.getfixturevalue("tmp_path")
    patch.setenv("KUBECONFIG", str(cluster.user))
    patch.setenv("PATH", f"{cluster.commands(folder)}:{os.environ['PATH']}")
    with in_a_pod(cluster) as site:
        yield site


#: What makes the site of each transport, for one test.
SITES: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Site]]] = {
    "local": _here,
    "ssh": _over_ssh,
    "command": _by_command,
    "rooms": _in_a_room,
    "docker": _in_docker,
    "slurm": _on_a_node,
    "kubernetes": _in_a_pod,
}


class Eyes:
    """What a test sees and does on a site."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def code(self, source: str, *args: str) -> str:
        """Run Python code there: what it printed."""
        return self.site.run([self.site.python, "-I", "-S", "-c", source, *args]).decode().strip()

    def write(self, name: str, data: bytes, mode: int = 0o755) -> str:
        """A file in the test's folder: its path."""
        path = os.path.join(self.site.folder, name)
        self.site.run(["sh", "-c", 'cat >"$1" && chmod "$2" "$1"', "sh", path, f"{mode:o}"], data)
        return path

    def alive(self, *pids: int) -> list[int]:
        """Those of these processes that exist and are no zombies."""
        look = (
            "import sys\n"
            "for pid in sys.argv[1:]:\n"
            "    try: state = open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0]\n"
            "    except OSError: continue\n"
            "    if state not in 'ZX': print(pid)\n"
        )
        return [int(word) for word in self.code(look, *map(str, pids)).split()]

    def status(self, pid: int, name: str) -> str:
        """A line of ``/proc/PID/status``."""
        lines = self.site.run(["cat", f"/proc/{pid}/status"]).decode().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))

    def kill(self, number: int, *pids: int) -> None:
        """Signal processes, all at once."""
        self.site.run(["kill", f"-{number}", *map(str, pids)])

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
from pathlib import Path
from typing import Any, Protocol

import pytest

from launcher.backends.connections import AgentArguments, AgentLink, Connections
from launcher.backends.local import fork_agent
from launcher.config.settings import Settings
from launcher.event_loop import EventLoop
from launcher.job import Host, JobSpec
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


class SshSite:
    """A host of the lab, entered beside its sshd: what is seen there owes nothing to the transport."""

    kernel_pids = False
    watchdog_killed = "its watchdog was killed"
    both_killed = "the agent was killed"

    def __init__(self, hosts: Connections, host: LabHost) -> None:
        self._hosts = hosts
        self.host = host.record()
        self.folder = str(host.home / "test")
        self._lab_host = host
        self.python = self.run(["sh", "-c", "command -v python3"]).decode().strip()

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> bytes:
        """See `Site.run`."""
        return self._lab_host.run(argv, stdin, timeout=60).stdout

    def open(self, loop: EventLoop) -> AgentLink:
        """See `Site.open`."""
        from launcher.backends.link import ReconnectingLink  # not on the path of the other backends

        return ReconnectingLink(loop, self._hosts, AgentArguments.new(self.host.name))


@contextmanager
def _here(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield LocalSite(request.getfixturevalue("tmp_path"))


@contextmanager
def _over_ssh(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Its connection is opened before the test and closed after it; nothing may be left there."""
    # Not on the path of the other transports.
    from launcher.backends.ssh.connections import SshConnections
    from launcher.config.settings import Settings

    lab: Lab = request.getfixturevalue("one_host")
    request.getfixturevalue("monkeypatch").setenv("HOME", str(lab.client_home))
    lab.heal()
    with Told(waits=False) as told, SshConnections([lab.hosts[0].record()], Settings()) as fleet:
        fleet.connect()
        site = SshSite(fleet, lab.hosts[0])
        site.run(["mkdir", site.folder])
        yield site
        site.run(["rm", "-r", site.folder])
    assert lab.settled() == []
    assert told.lines == []


@contextmanager
def _by_command(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The first backend of docs/extending.md: the ssh command."""
    from launcher.backends.backend import LaunchRequest

    lab: Lab = request.getfixturevalue("one_host")
    lab.heal()
    module: dict[str, Any] = {}
    exec(compile(example_backends()[0], "docs/extending.md", "exec"), module)
    asked = LaunchRequest("x", JobSpec(()), Settings(), (lab.hosts[0].record(),))
    with (
        module["BACKEND"].allocate(str(lab.ssh_config), asked) as allocation,
        allocation.connect(allocation.hosts) as connections,
    ):
        site = SshSite(connections, lab.hosts[0])
        site.run(["mkdir", site.folder])
        with Told() as told:
            yield site
        site.run(["rm", "-r", site.folder])
    assert lab.settled() == []
    assert told.lines == []


class RoomSite(LocalSite):
    """A room of `tests.stubs.rooms`, which exists while its launch runs."""

    watchdog_killed = "its watchdog was killed"
    both_killed = "the agent was killed"

    def __init__(self, folder: Path, host: Host, hosts: Connections) -> None:
        super().__init__(folder)
        self.host, self._hosts = host, hosts

    def open(self, loop: EventLoop) -> AgentLink:
        """See `Site.open`."""
        from launcher.backends.link import ReconnectingLink

        return ReconnectingLink(loop, self._hosts, AgentArguments.new(self.host.name))


@contextmanager
def _in_a_room(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A host that is known when the launch runs, and an agent that is the main process of its command."""
    from launcher.backends.backend import LaunchRequest
    from tests.stubs.rooms import BACKEND, RoomOptions

    folder: Path = request.getfixturevalue("tmp_path")
    request.getfixturevalue("monkeypatch").setenv("LEDGER", str(folder / "ledger"))
    (folder / "test").mkdir()
    with (
        BACKEND.allocate(RoomOptions(1), LaunchRequest("x", JobSpec(()), Settings())) as allocation,
        allocation.connect(allocation.hosts) as made,
        Told() as told,
    ):
        yield RoomSite(folder / "test", allocation.hosts[0], made)
    # The agent is the program at the other end of the first connection.
    assert [it for it in told.lines if not it.startswith("room1: connection lost (it was closed")] == []


def example_backends() -> list[str]:
    """The sources of the modules that docs/extending.md shows."""
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)


@contextmanager
def _in_docker(request: pytest.FixtureRequest) -> Iterator[Site]:
    from tests.docker.site import in_docker

    with in_docker(request.getfixturevalue("real_engine"), request.getfixturevalue("tmp_path")) as site:
        yield site


class SlurmSite(RoomSite):
    """A node of Slurm: the agent is the main process of a step."""

    python = "python3"
    kernel_pids = False

    def __init__(self, folder: Path, enter: Sequence[str], *rest: Any) -> None:
        super().__init__(folder, *rest)
        self._enter = enter

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> bytes:
        """See `Site.run`."""
        return super().run([*self._enter, *argv], stdin)


@contextmanager
def _on_a_node(request: pytest.FixtureRequest) -> Iterator[Site]:
    from launcher.backends.backend import LaunchRequest
    from launcher.backends.slurm import BACKEND, SlurmOptions
    from tests.seeing import soon
    from tests.slurm.cluster import Cluster

    slurm: Cluster = request.getfixturevalue("slurm")
    environ: dict[str, str] = request.getfixturevalue("held")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    folder: Path = request.getfixturevalue("tmp_path")
    for name, value in environ.items():
        patch.setenv(name, value)
    patch.setenv("PATH", f"{slurm.commands(folder)}:{os.environ['PATH']}")
    (folder / "test").mkdir()
    asked = LaunchRequest("x", JobSpec(()), Settings())
    with (
        BACKEND.allocate(SlurmOptions(), asked) as allocation,
        allocation.connect(allocation.hosts) as made,
        Told() as told,
    ):
        yield SlurmSite(folder / "test", slurm.inside("n1"), allocation.hosts[0], made)
    soon(lambda: not slurm.steps())
    assert told.lines == []


@contextmanager
def _in_a_pod(request: pytest.FixtureRequest) -> Iterator[Site]:
    from tests.kubernetes.cluster import Cluster
    from tests.kubernetes.site import in_a_pod

    cluster: Cluster = request.getfixturevalue("kubernetes")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    folder: Path = request.getfixturevalue("tmp_path")
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
        save = "import os, sys; f = open(sys.argv[1], 'wb'); f.write(sys.stdin.buffer.read()); f.close(); "
        save += "os.chmod(sys.argv[1], int(sys.argv[2]))"
        self.site.run([self.site.python, "-c", save, path, str(mode)], data)
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

    def parent(self, pid: int) -> int:
        """The parent of a process."""
        return int(self.status(pid, "PPid"))

    def status(self, pid: int, name: str) -> str:
        """A line of ``/proc/PID/status``."""
        lines = self.site.run(["cat", f"/proc/{pid}/status"]).decode().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))

    def kill(self, number: int, *pids: int) -> None:
        """Signal processes, all at once."""
        self.site.run(["kill", f"-{number}", *map(str, pids)])

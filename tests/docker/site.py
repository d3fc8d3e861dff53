"""A container as a site of the contract suite: entered from beside, by the kernel's own means."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from launcher.agent.processes import all_pids
from launcher.backends.backend import Allocation, LaunchRequest
from launcher.backends.connections import AgentLink
from launcher.backends.docker.container import Container, Mount, container_name
from launcher.backends.docker.fleet import ContainerFleet
from launcher.backends.docker.options import DockerOptions
from launcher.config.settings import Settings
from launcher.event_loop import EventLoop
from launcher.job import Host, JobSpec, Placement
from tests.docker.engine import BASE, Engine, at_engine
from tests.seeing import kill, pid_namespace, proc
from tests.told import Told

#: Tests of the suite that do not hold in a container. The kernel gives each session of a machine an equal
#: share of the CPU, but not within a container: there an agent is one of two hundred that want it.
NOT_HERE = (
    "test_two_hundred_processes_that_fork_and_end[docker-ignore-leave]",
    "test_two_hundred_processes_that_fork_and_end[docker-obey-leave]",
)
#: What of a container a test is in when it looks around there.
_ENTERED: tuple[str, ...] = ("--pid", "--mount", "--net", "--uts")
#: Where no process of the container is left: its pids mean nothing here.
_EMPTY = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]


class DockerSite:
    """A container: its transport makes it, once."""

    python = "python3"
    kernel_pids = False
    watchdog_killed = both_killed = "its container was killed by SIGKILL"
    entered = _ENTERED

    def __init__(self, engine: Engine, folder: Path, stack: ExitStack) -> None:
        self.host = Host("worker-0")
        self.folder = str(folder)
        self.told = stack.enter_context(Told(waits=False))
        self._lab = engine
        self._stack = stack
        environ = stack.enter_context(pytest.MonkeyPatch.context())
        environ.setenv("DOCKER_HOST", engine.host)
        self._inits: list[int] = []

    def open(self, loop: EventLoop) -> AgentLink:
        """See `tests.contract.sites.Site.open`."""
        if self._inits:
            pytest.skip("a container is a machine of its own, and has one agent")
        job = f"contract-{os.getpid()}-{os.urandom(4).hex()}"
        container = Container(
            self.host.name, image=BASE, python=self.python, mounts=(Mount(self.folder, self.folder),)
        )
        allocation = Allocation(LaunchRequest(job, JobSpec(()), Settings()))
        made = self._stack.enter_context(ContainerFleet(allocation, DockerOptions(BASE), [container], loop))
        self._stack.enter_context(made.running(Placement(())))
        found = self._lab.docker("inspect", "-f", "{{.State.Pid}}", container_name(job, self.host.name))
        self._inits.append(int(found))
        return made.link_to(self.host)

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> bytes:
        """See `tests.contract.sites.Site.run`."""
        if argv[0] == "kill":
            self._kill(int(argv[1][1:]), *map(int, argv[2:]))
            return b""
        enter = ["nsenter", "--target", str(self._inits[0]), *self.entered, "--"] if self._inits else []
        done = subprocess.run([*enter, *argv], input=stdin, stdout=subprocess.PIPE, timeout=60)
        if done.returncode and self._inits and not os.path.exists(f"/proc/{self._inits[0]}/root/proc"):
            return subprocess.run([*_EMPTY, *argv], stdout=subprocess.PIPE, timeout=60, check=True).stdout
        done.check_returncode()
        return done.stdout

    def _kill(self, number: int, *pids: int) -> None:
        """From outside: nothing in a container can kill its first process."""
        namespace = pid_namespace(self._inits[0])
        for pid in all_pids():
            if pid_namespace(pid) == namespace and _inner_pid(pid) in pids:
                kill(pid, number)


def _inner_pid(pid: int) -> int:
    """What a process is called in its own namespace; 0: it has ended."""
    numbers = re.search(rb"^NSpid:.*\t(\d+)$", proc(pid, "status"), re.M)
    return int(numbers[1]) if numbers else 0


@contextmanager
def in_docker(engine: Engine, folder: Path) -> Iterator[DockerSite]:
    """A site whose containers go with it."""
    with at_engine(alone=False), ExitStack() as stack:
        site = DockerSite(engine, folder, stack)
        yield site
    # Launches of other tests are killed meanwhile.
    removed = "removed what a killed launch had left: "
    assert [it for it in site.told.lines if not it.startswith(removed)] == []

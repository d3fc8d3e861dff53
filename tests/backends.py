"""The backends that scenarios run on: how a job gets there, and what a test breaks there.

A backend gets a class here and a line in BACKENDS. `tests.contract.sites` has the host behind each of them.
The fixtures of the backend's own folder check that nothing is left there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, Ended, Launch, Started
from tests.docker.conftest import alive, jobs
from tests.docker.engine import BASE, Engine
from tests.docker.host_engines import DockerHost
from tests.kubernetes.cluster import Cluster as Kubernetes
from tests.local.stops import processes_of
from tests.seeing import Family, RunFolder, last_run, soon
from tests.slurm.cluster import Cluster as Slurm
from tests.ssh.lab import Lab

#: Says on which backends a test runs.
on = pytest.mark.on
#: Seconds in which whatever runs on hosts is over by itself, on a busy machine.
SOON = 60.0
#: Says that it is up, and ends at SIGTERM; is deaf to it, with a child in a session of its own.
WAITS = ("sh", "-c", "echo up; exec sleep 300")
STAYS = ("sh", "-c", "trap '' TERM; (setsid sleep 300 &); echo up; sleep 300 & wait; sleep 300")
#: worker/1 serves a word at its own address, and worker/0 fetches it.
MEETS = """
import json, os, socket, time
addresses = json.loads(os.environ["CLUSTER_SPEC"])["worker"]
host, port = addresses[1].rsplit(":", 1)
if os.environ["TASK_ADDRESS"] == addresses[1]:
    with socket.create_server((host, int(port))) as server:
        line, _ = server.accept()
        line.sendall(socket.gethostname().encode())
else:
    for _ in range(600):
        try:
            line = socket.create_connection((host, int(port)), 5)
            break
        except OSError:
            time.sleep(0.05)
    print("met", line.recv(100).decode(), "at", host)
"""


class Backend:
    """Where the tasks of launches run: this machine."""

    #: The options that choose it, and the hosts of two workers.
    options: Sequence[str] = ()
    hosts: Sequence[str] = ("localhost", "localhost")
    #: What is before the name of worker/0 in its lines.
    prefix = ""
    #: Options by which whatever fails there is over soon.
    brief: Sequence[str] = ("--grace", "1")
    #: Whether a new host takes the name of one that is lost.
    renews = False
    #: What is before the command where it reaches the hosts, and in its environment.
    before: Sequence[str] = ()
    env: Mapping[str, str] = {}

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.launch: Launch = request.getfixturevalue("launch")
        #: Where jobs are started from, unless a test says where.
        self.folder: Path = request.getfixturevalue("tmp_path")
        self._family = Family(request.getfixturevalue("nothing_left"), self.folder / "pids")

    def start(self, *words: str | Path, **settings: Any) -> Started:
        """Start a job there."""
        return self.beside(*self.options, *words, **settings)

    def beside(self, *words: str | Path, **settings: Any) -> Started:
        """Start another command, from the same place."""
        command = (*self.before, *COMMAND)
        settings = {"cwd": self.folder, **settings, "env": {**self.env, **settings.get("env", {})}}
        return self.launch.start(*words, command=command, **settings)

    def __call__(self, *words: str | Path, code: int | None = None, **settings: Any) -> Ended:
        """Run a job to its end."""
        return self.start(*words, **settings).wait(SOON, code)

    def up(self, *words: str | Path, workers: int = 2, **settings: Any) -> Started:
        """Start a job, and wait until all of its workers have printed ``up``."""
        return self.start("--workers", str(workers), *words, **settings).up(workers, SOON)

    @property
    def run(self) -> RunFolder:
        """The newest run."""
        return last_run(self.launch)

    def command_lines(self) -> list[str]:
        """Those of all processes that anybody on the hosts sees, and of what is told about the tasks."""
        raise NotImplementedError

    def lose_host(self) -> None:
        """Lose the host of worker/1, with all its processes."""
        raise NotImplementedError

    def disconnect(self, started: Started) -> None:
        """Break the connections to the hosts; the agents live on."""
        raise NotImplementedError

    def is_empty(self) -> bool:
        """Whether no process of a launch is left."""
        return not self._family.alive()

    def empty(self) -> None:
        """Wait until all of a launcher that was killed is over, and have removed what can't go by itself."""
        soon(self.is_empty, SOON, "still there")


class Ssh(Backend):
    """Hosts of the SSH lab."""

    options: Sequence[str] = ("--hosts", "node1,node2")
    hosts = ("node1", "node2")
    prefix = "node1 "
    brief = (*Backend.brief, "--lease", "6")

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        request.getfixturevalue("ssh_launch")
        lab: Lab = request.getfixturevalue("lab")
        #: What its hosts are made of.
        self.machines = lab.hosts
        self.folder = Path("/")

    def command_lines(self) -> list[str]:
        """See `Backend`."""
        return [process.argv for machine in self.machines for process in machine.processes()]

    def lose_host(self) -> None:
        """See `Backend`."""
        self.machines[1].power_off()

    def is_empty(self) -> bool:
        """See `Backend`."""
        return not any(machine.processes() for machine in self.machines) and not self._code()

    def _code(self) -> list[str]:
        """What is left there of code that was copied for a run."""
        return [path for machine in self.machines for path in machine.files() if "/work/" in path]


class Docker(Backend):
    """Containers at the engine of this machine."""

    options = ("--docker", BASE)
    hosts = ("worker-0", "worker-1")
    renews = True

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self.engine: Engine = request.getfixturevalue("docker")

    def command_lines(self) -> list[str]:
        """See `Backend`."""
        names = alive(self.engine, self.run.path.name)
        return [self.engine.docker(*words, name) for words in (["inspect"], ["top"]) for name in names]

    def lose_host(self) -> None:
        """See `Backend`."""
        self.engine.docker("kill", f"tf-launcher-{self.run.path.name}-worker-1")

    def is_empty(self) -> bool:
        """See `Backend`."""
        return not any(alive(self.engine, job) for job in jobs(self.launch))

    def empty(self) -> None:
        """The next launch removes the containers and the network."""
        super().empty()
        ended = self("true")
        assert "removed what a killed launch had left: " in ended.err


class DockerOnHosts(Ssh):
    """Containers at the engines of hosts."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        Backend.__init__(self, request)
        self.engines: list[DockerHost] = request.getfixturevalue("engines")
        self.machines = [engine.host for engine in self.engines]
        self.options = ("--hosts", request.getfixturevalue("hostfile"), "--docker", BASE)
        self.engine = self.engines[0].engine

    def start(self, *words: str | Path, **settings: Any) -> Started:
        """See `Backend`; the folder of the test is on the hosts only if it is copied there."""
        is_there = {"--sync", "--workdir"} & {*words}
        return super().start(*(() if is_there else ("--no-mount",)), *words, **settings)

    def command_lines(self) -> list[str]:
        """See `Backend`."""
        told = [it.engine.docker("inspect", name) for it in self.engines for name in it.containers()]
        return [*told, *super().command_lines()]

    def disconnect(self, started: Started) -> None:
        """Kill the clients of one engine, and cut off the other one for ten seconds."""
        one, other = self.machines
        other.cut()
        clients = [it.pid for it in one.processes() if it.argv.startswith("docker run")]
        one.run(["kill", "-KILL", *map(str, clients)])
        time.sleep(10)
        other.restore()

    def is_empty(self) -> bool:
        """See `Backend`."""
        return not any(engine.left() for engine in self.engines) and not self._code()


class OnNodes(Backend):
    """Nodes of an allocation of Slurm."""

    hosts = ("n1", "n2")
    prefix = "n1 "
    brief = Ssh.brief

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self._request = request
        self.cluster: Slurm = request.getfixturevalue("slurm")
        self.before = self.cluster.enter
        self.env = request.getfixturevalue("held")
        request.getfixturevalue("slurm_clean")

    def command_lines(self) -> list[str]:
        """See `Backend`."""
        return [line for _, line in self.cluster.processes()]

    def lose_host(self) -> None:
        """See `Backend`."""
        self.cluster.link("n2", "down")
        self._request.addfinalizer(self._repair)

    def _repair(self) -> None:
        self.cluster.link("n2", "up")
        soon(lambda: self.cluster.run("sinfo", "-h", "-t", "idle,mix,alloc", "-o", "%D") == "3", SOON)

    def is_empty(self) -> bool:
        """See `Backend`."""
        return not self.cluster.left([self.env["SLURM_JOB_ID"]])


class Pods(Backend):
    """Pods of Kubernetes."""

    hosts = Docker.hosts
    brief = Ssh.brief
    renews = True

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self.cluster: Kubernetes = request.getfixturevalue("kubernetes")
        self.options = ("--kubernetes", self.cluster.image)
        self.before, self.env = self.cluster.enter, self.cluster.environ
        request.getfixturevalue("kubernetes_clean")

    def command_lines(self) -> list[str]:
        """See `Backend`."""
        objects = self.cluster.kubectl("get", "jobs,pods,configmaps,secrets", "-o", "json")
        return [objects, *(line for _, line in self.cluster.processes())]

    def lose_host(self) -> None:
        """See `Backend`."""
        names = (str(pod["metadata"]["name"]) for pod in self.cluster.objects("pods"))
        (name,) = (name for name in names if "worker-1" in name)
        self.cluster.kubectl("delete", "pod", name, "--wait=false")

    def disconnect(self, started: Started) -> None:
        """Kill each kubectl that connects to an agent."""
        for pid in {*processes_of(started.pid)} - {started.pid}:
            os.kill(pid, signal.SIGKILL)

    def is_empty(self) -> bool:
        """See `Backend`."""
        pods = self.cluster.objects("pods")
        ended = (pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods)
        return all(ended) and not [*self.cluster.processes()]

    def empty(self) -> None:
        """The cluster would remove the Jobs later."""
        super().empty()
        self.cluster.kubectl("delete", "jobs", "--all")


#: What makes the backend of each name, for one test.
BACKENDS: dict[str, Callable[[pytest.FixtureRequest], Backend]] = {
    "local": Backend,
    "ssh": Ssh,
    "docker": Docker,
    "docker-ssh": DockerOnHosts,
    "slurm": OnNodes,
    "kubernetes": Pods,
}

"""Hosts with a Docker engine each: those of the SSH lab, a ``dockerd`` of its own in the namespaces of each.

A container with the network of its host is in the host's namespace then, as on a real one. What an engine
holds lies below the user's cache folder and is there the next time: the base image takes some seconds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Launch, executable
from tests.docker import engine as docker
from tests.docker.engine import Engine
from tests.seeing import alive, is_soon, pid_namespace, soon
from tests.ssh.host import CACHE, LabHost
from tests.ssh.lab import Lab

#: Seconds for an engine to come up, and to go.
_UP, _DOWN = 120.0, 60.0
#: What belongs to the engine of a host, and not to a test.
_ENGINE = ("dockerd", "containerd")
_START = (
    "setsid --fork dockerd --data-root $0 --exec-root /run/docker-exec --pidfile /run/dockerd.pid "
    '--bridge=none --iptables=false --ip-forward=false "$@" >/run/dockerd.log 2>&1 </dev/null'
)
#: A ``docker`` that stops the engine, and then is the real one.
_STICK = """#!/bin/sh
[ "$1" != {command} ] || kill -STOP $(cat /run/dockerd.pid)
exec {docker} "$@"
"""


class DockerHost:
    """One of them."""

    def __init__(self, host: LabHost, folder: Path) -> None:
        self.host = host
        self.name = host.name
        self._data = folder / "data"
        #: The engine as this machine reaches it.
        self.engine = Engine(f"unix:///proc/{host.pid}/root/run/docker.sock")

    def start(self, *args: str) -> None:
        """Start its engine, unless it runs, and wait until it answers; ``args`` on its command line."""
        if not self._answers():
            self.host.run(["sh", "-c", _START, str(self._data), *args])
            soon(self._answers, _UP, f"dockerd of {self.name} answers: {self._log()}")

    def stop(self) -> None:
        """End its engine, which ends its containers and its containerd."""
        self._kill("-TERM", self._processes("dockerd"))
        try:
            soon(lambda: not self._processes("dockerd"), _DOWN, f"dockerd of {self.name} ended")
        finally:
            self._kill("-KILL", self._processes(*_ENGINE))

    def kill(self) -> None:
        """End its engine by force, which leaves its containers as they are."""
        self._kill("-KILL", self._processes("dockerd"))

    def stick(self) -> None:
        """Have its engine keep all connections, and answer nothing."""
        self._kill("-STOP", self._processes("dockerd"))

    def stick_at(self, command: str) -> None:
        """Have it stick when a login asks ``docker`` for this, before it is asked. Its home has that."""
        program = self.host.home / "bin/docker"
        executable(program, _STICK.format(command=command, docker=shutil.which("docker")))
        (self.host.home / ".bashrc").write_text('PATH="$HOME/bin:$PATH"\n')

    def go_on(self) -> None:
        """Have it answer again."""
        self._kill("-CONT", self._processes("dockerd"))

    def inside(self) -> list[str]:
        """Command lines of what runs in its containers, which have pids of their own."""
        proc = self.host.there("/proc")
        own = ("", pid_namespace(1, proc))
        processes = self.host.processes()
        return [it.argv for it in processes if pid_namespace(it.pid, proc) not in own and alive(it.pid, proc)]

    def _answers(self) -> bool:
        return self.engine.tried("version", timeout=20).returncode == 0

    def _log(self) -> str:
        return self.host.run(["tail", "-5", "/run/dockerd.log"], check=False).stdout.decode(errors="replace")

    def _processes(self, *names: str) -> list[int]:
        return [it.pid for it in self.host.processes() if _is_engine(it.argv, names)]

    def _kill(self, signal: str, pids: list[int]) -> None:
        if pids:
            self.host.run(["kill", signal, *map(str, pids)], check=False)

    def containers(self) -> list[str]:
        """Names of all that are there, also of those that have ended."""
        return self.engine.lines("ps", "-a", "--format", "{{.Names}}")

    def left(self) -> list[str]:
        """What should not be there when no launch runs, a line each."""
        processes = [it.argv for it in self.host.processes() if not _is_engine(it.argv)]
        cache = self.host.home / CACHE
        files = [path for path in map(Path, self.host.files()) if cache not in (path, *path.parents)]
        files = [path for path in files if path not in cache.parents and path.name != ".docker"]
        # The engine's own: when containerd answers late, dockerd makes it write its stacks.
        files = [path for path in files if not path.match("/tmp/containerd.*.stacks.log")]
        return [
            *(f"{self.name}: container {name}" for name in self.containers()),
            *(f"{self.name}: process {argv}" for argv in processes),
            *(f"{self.name}: file {path}" for path in files),
        ]

    def heal(self) -> None:
        """Its engine up, no container, no process, an empty home."""
        self.host.restore()
        self.go_on()
        self.start()
        if found := self.engine.lines("ps", "-aq"):
            self.engine.tried("rm", "-f", *found)
        self._kill("-KILL", [it.pid for it in self.host.processes() if not _is_engine(it.argv)])
        self.host.kill_sshd_sessions()
        self.host.empty()


def _is_engine(argv: str, names: tuple[str, ...] = _ENGINE) -> bool:
    return os.path.basename(argv.split(" ")[0]).startswith(names)


#: The lab, and its hosts.
Site = tuple[Lab, list[DockerHost]]


# ---------------------------------------------------------------------- for tests


@pytest.fixture(scope="session")
def two_hosts() -> Iterator[Site]:
    """Each with an engine that has the base image; as the last test left them."""
    docker.check_programs()
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(2))
        folders = [stack.enter_context(docker.own_folder("host")) for _ in lab.hosts]
        hosts = [DockerHost(*each) for each in zip(lab.hosts, folders, strict=True)]
        for host in hosts:
            stack.callback(host.stop)
            host.start()
            docker.provide_base(host.engine)
        yield lab, hosts


@pytest.fixture
def engines(two_hosts: Site, launch: Launch) -> Iterator[list[DockerHost]]:
    """Healthy. Nothing may be left on their hosts."""
    lab, engines = two_hosts
    for engine in engines:
        engine.heal()
    lab.move_in(launch.home)
    yield engines
    if not is_soon(lambda: not any(engine.left() for engine in engines), 40):
        pytest.fail("left behind:\n  " + "\n  ".join(line for engine in engines for line in engine.left()))


@pytest.fixture
def hostfile(engines: list[DockerHost], tmp_path: Path) -> str:
    """Names the two hosts."""
    path = tmp_path / "two.yaml"
    records = (f"{{name: {engine.name}, address: {engine.host.address}}}" for engine in engines)
    path.write_text(f"hosts: [{', '.join(records)}]\n")
    return str(path)

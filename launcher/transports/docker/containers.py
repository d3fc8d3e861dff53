"""The containers of a job: at the engine of this machine, one a task; or one at the engine of each host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from launcher.agent.processes import new_agent_number
from launcher.errors import HostsError, TransportError
from launcher.job import Host, Placed, Placement
from launcher.text import listed
from launcher.transports import bootstrap
from launcher.transports.base import Connections, Hosts, Link, RemoteCommand, for_each
from launcher.transports.docker.container import (
    HOST_NETWORK,
    JOB,
    KEPT,
    Container,
    container_name,
    labels,
    network_name,
    run_command,
    with_folders,
    with_output_mounts,
)
from launcher.transports.docker.engine import Engine
from launcher.transports.docker.link import END, ContainerCommand, ContainerLink, Starting, await_agents
from launcher.transports.docker.options import DockerOptions
from launcher.transports.link import CONNECT, KILL, START, ReconnectingLink, lease_there

_T = TypeVar("_T")

#: The agent in a container here, and elsewhere, where it listens.
_RUN, _SERVE = "launcher.agent.main:run", "launcher.agent.main:serve"
#: The engine of this machine in lines for the user.
HERE = "this machine"
#: Seconds that an agent in a container waits for a new connection: a login and a ``docker exec``.
_RECONNECT = 4.0
#: Seconds for an answer of an engine that may hang, at the end.
_HURRY = 10.0


def each_engine(
    engines: Iterable[str], function: Callable[[str], _T], notice: Callable[[str], None], step: str
) -> dict[str, _T]:
    """The results of a function for all engines, called in threads; see `for_each`.

    Raises:
        HostsError: what was wrong with some of them.
    """
    results, failed = for_each(engines, function, notice, step)
    _raise(failed)
    return results


def _raise(failed: Mapping[str, str]) -> None:
    """Raise the faults of hosts, if there are any, each fault once."""
    by_fault: dict[str, list[str]] = {}
    for host, fault in failed.items():
        by_fault.setdefault(fault, []).append(host)
    if by_fault:
        raise HostsError(
            fault if hosts == [HERE] else f"{listed(sorted(hosts))}: {fault}"
            for fault, hosts in by_fault.items()
        )


class Containers:
    """The containers of a job. A context: at its end nothing of them is left, except with ``keep``.

    Once they are started it is a `launcher.transports.base.Opener`.

    Args:
        docker: the options.
        planned: one for each host.
        job: the job's id.
        notice: gets lines for the user; any thread may call it.
        hosts: where they run, a container on each; empty: all at the engine of this machine.
        commands: run the commands of the hosts' engines.
        programs: run programs on the hosts: the connections to the containers.
        lease: seconds that the tasks of a host outlive a lost connection.
    """

    def __init__(
        self,
        docker: DockerOptions,
        planned: Sequence[Container],
        job: str,
        notice: Callable[[str], None],
        hosts: Sequence[Host] = (),
        commands: Hosts | None = None,
        programs: Connections | None = None,
        lease: float = 60.0,
    ) -> None:
        self._docker, self._job, self._notice = docker, job, notice
        self._containers = {container.host: container for container in planned}
        self._labels = labels(job, docker.keep)
        self._programs, self._lease = programs, lease
        engines = {host.name: Engine(notice, host, commands) for host in hosts}
        self._engines = engines or {HERE: Engine(notice)}
        #: Here: the links, and the job's network, once it is known.
        self._links: dict[str, ContainerLink] = {}
        self._network = ""
        #: Elsewhere: the first connections to agents, and what later ones need.
        self._started: dict[str, ContainerCommand] = {}
        self._arguments: dict[str, dict[str, Any]] = {}

    def prepare(self) -> None:
        """See that every engine responds and has the image; remove what killed launches left there.

        Raises:
            HostsError: some can't be used; it names all of them.
        """
        each_engine(self._engines, self._prepare, self._notice, "its Docker engine")

    def _prepare(self, name: str) -> None:
        engine, docker = self._engines[name], self._docker
        rootless = engine.is_rootless()
        engine.sweep()
        engine.provide(docker.image, docker.pull)
        # What a task writes to a mount belongs to the caller: root in the containers of a rootless engine.
        user = docker.user or ("0:0" if rootless else "")
        if not user:
            user = f"{os.getuid()}:{os.getgid()}" if name == HERE else engine.paths([])[0]
        for host in list(self._containers) if name == HERE else [name]:
            self._containers[host] = self._containers[host]._replace(user=user)

    def start(self, placement: Placement, workdir: str | None = None) -> Placement:
        """Create all containers, and wait until each agent is up.

        Args:
            placement: the tasks; their output folders are mounted.
            workdir: where tasks run on hosts, if neither role nor host says it.

        Returns:
            The placement as the containers have it.

        Raises:
            HostsError: some can't be started; what was created is removed with the context.
        """
        for host, container in self._containers.items():
            self._containers[host] = with_output_mounts(container, placement)
        if HERE in self._engines:
            self._start_here()
            return placement
        folders: dict[str, list[str]] = {host: [] for host in self._containers}
        for placed in placement.tasks:
            folder = _workdir(placed, workdir)
            folders[placed.host.name] += [folder] if folder else []
        found = each_engine(
            self._engines, lambda host: self._start_there(host, folders[host]), self._notice, "its engine"
        )
        self._await_agents(self._started)
        tasks = (_settled(placed, _workdir(placed, workdir), found) for placed in placement.tasks)
        return of_image(placement._replace(tasks=tuple(tasks)))

    def _start_here(self) -> None:
        network, engine = network_name(self._job), self._engines[HERE]
        with ThreadPoolExecutor(1) as pool:  # a signal ends our wait, not the command that creates something
            self._network = pool.submit(engine.make_network, network, self._labels).result()
        for host, container in self._containers.items():
            program = bootstrap.program(_RUN, {"host": host, "agent": new_agent_number()})
            name, command = container_name(self._job, host), self._run_command(host, network)
            self._links[host] = ContainerLink(container, name, command, engine, program)
        self._await_agents(self._links)

    def _start_there(self, host: str, folders: Sequence[str]) -> dict[str, str]:
        """Start the container of a host; returns those folders of its tasks that are there, as full paths."""
        container, engine = self._containers[host], self._engines[host]
        sources = [mount.source for mount in container.mounts]
        found = engine.paths([*sources, *folders])[1]
        missing = [source for source in sources if source not in found]
        if missing:
            raise TransportError(f"there is no {listed(missing)} to mount")
        mounts = (
            mount._replace(
                source=found[mount.source],
                target=found[mount.source] if mount.target == mount.source else mount.target,
            )
            for mount in container.mounts
        )
        container = container._replace(mounts=tuple(mounts))
        there = {folder: found[folder] for folder in folders if folder in found}
        if not self._docker.no_mount:
            container = with_folders(container, there.values(), self._docker.read_only)
        self._containers[host] = container
        lease = self._lease
        arguments = {"host": host, "agent": new_agent_number(), "token": os.urandom(16).hex(), "lease": lease}
        self._arguments[host] = arguments
        program = bootstrap.program(_SERVE, {**arguments, "lease": lease_there(lease)})
        command = self._command(host, self._run_command(host, HOST_NETWORK))
        self._started[host] = ContainerCommand(command, container, program, is_run=True)
        return there

    def _run_command(self, host: str, network: str) -> list[str]:
        container = self._containers[host]
        python = bootstrap.loader(container.python)
        return run_command(container, container_name(self._job, host), network, self._labels, python)

    def _command(self, host: str, words: Sequence[str]) -> RemoteCommand:
        assert self._programs is not None
        return self._engines[host].start(self._programs, words)

    def _await_agents(self, pipes: Mapping[str, Starting]) -> None:
        _raise(await_agents(pipes, self._notice))

    def __enter__(self) -> Containers:
        return self

    def __exit__(self, *_: object) -> None:
        """End-of-file ends each agent, and so its container; what is left then is removed by force."""
        for command in list(self._started.values()):  # a thread may still be starting one
            command.close()
        if HERE not in self._engines:
            return
        for link in self._links.values():
            link.hang_up()
        until = time.monotonic() + END
        ended = all(link.wait(until - time.monotonic()) is not None for link in self._links.values())
        for link in self._links.values():
            link.close()
        engine = self._engines[HERE]
        if KEPT in self._labels:
            return
        removal = ["network", "rm", self._network]
        if ended and self._network and engine.docker(*removal, seconds=_HURRY).code == 0:
            return
        try:
            left = engine.remove(engine.things(self._job, _HURRY), _HURRY)
        except TransportError as error:
            left = [str(error)]
        if left:
            self._notice(
                f"not all of this job is removed ({'; '.join(left)}): `launch clean` does that later"
            )

    def kept(self) -> list[str]:
        """Lines about what ``--keep`` keeps."""
        if not self._docker.keep:
            return []
        here = HERE in self._engines
        names = [
            container_name(self._job, host) + ("" if here else f" on {host}") for host in self._containers
        ]
        return [
            f"kept, as --keep asks: {listed(names)} (docker ps -a --filter label={JOB}={self._job})",
            f"remove them:          launch clean{'' if here else ' --hosts ...'}",
        ]

    # ------------------------------------------------------------------ links

    def open(self, host: Host) -> Link:
        """See `launcher.transports.base.Opener.open`: the agent is up already."""
        if host.name in self._links:
            return self._links[host.name]
        return ReconnectingLink(host.name, self, self._arguments[host.name], self._notice, grace=_RECONNECT)

    def run(self, host: str, entry: str, arguments: object) -> RemoteCommand:
        """See `launcher.transports.base.Hosts.run`: start the agent, connect to it, or end it."""
        container, name = self._containers[host], container_name(self._job, host)
        if entry == KILL:
            return self._command(host, ["rm", "--force", "--volumes", name])
        if entry == START and (started := self._started.pop(host, None)) is not None:
            return started
        words = ["exec", "--interactive", name, *bootstrap.loader(container.python)]
        program = bootstrap.program(CONNECT, arguments)
        return ContainerCommand(self._command(host, words), container, program, is_run=False)

    def reconnect(self, host: str) -> None:
        """See `launcher.transports.base.Connections.reconnect`."""
        assert self._programs is not None
        self._programs.reconnect(host)


def of_image(placement: Placement) -> Placement:
    """The placement without the Python of the hosts: their containers have their own."""
    tasks = (placed._replace(host=placed.host._replace(python=None, venv=None)) for placed in placement.tasks)
    return placement._replace(tasks=tuple(tasks))


def _workdir(placed: Placed, of_job: str | None) -> str | None:
    return placed.role.workdir or placed.host.workdir or of_job


def _settled(placed: Placed, workdir: str | None, found: Mapping[str, Mapping[str, str]]) -> Placed:
    """A task in its folder, with the home that is the host's."""
    folder = found[placed.host.name].get(workdir or "")
    if folder is None or folder == workdir:
        return placed
    role = placed.role._replace(workdir=None)
    return placed._replace(role=role, host=placed.host._replace(workdir=folder))

"""Runs the containers of a launch: one for each task at this machine's engine, or one at each host's engine.

`launcher.backends.docker.allocation` makes the fleet. No container may be left after a launch, except with
``--keep``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from launcher.backends import bootstrap
from launcher.backends.backend import Allocation
from launcher.backends.cleaning import CleanRequest
from launcher.backends.connections import (
    AgentLink,
    Forwarding,
    by_reason,
    for_each,
    slow,
)
from launcher.backends.docker.container import (
    HOST_NETWORK,
    JOB_LABEL,
    KEPT_LABEL,
    OWNER_LABEL,
    Container,
    container_name,
    labels,
    network_name,
    run_command,
    with_folders,
    with_output_mounts,
)
from launcher.backends.docker.engine import Engine, EngineObject
from launcher.backends.docker.link import ContainerConnections
from launcher.backends.docker.options import DockerOptions
from launcher.backends.fleet import AgentFleet
from launcher.backends.link import ReconnectingLink
from launcher.backends.programs import RemoteProgram
from launcher.common.cluster import TaskId
from launcher.common.errors import HostsError, TransportError
from launcher.common.record import replace
from launcher.common.text import join_names
from launcher.config.table import LEASE
from launcher.event_loop import EventLoop
from launcher.job import Host, PlacedTask, Placement
from launcher.messages import say
from launcher.threads import in_thread

_T = TypeVar("_T")

#: The name of the engine of this machine, for messages.
_THIS_MACHINE = "this machine"
#: The step that a user waits for, for messages.
_START_STEP = "its engine to start the container"
#: The time for an answer after the job, from an engine that may hang.
_HURRIED_ANSWER_SECONDS = 10.0


def _for_all(
    names: Iterable[str],
    function: Callable[[str], _T],
    step: str,
    loop: EventLoop | None = None,
) -> dict[str, _T]:
    """Call a function for all engines or hosts in threads, and return the results, as `for_each` does.

    Raises:
        HostsError: The function failed for some of them. Each reason occurs once.
    """
    results, failed = for_each(names, function, step, loop=loop)
    if failed:
        raise HostsError(failed.values() if _THIS_MACHINE in failed else by_reason(failed))
    return results


def clean(request: CleanRequest) -> Iterator[str]:
    """Remove containers and networks of ended launches, and yield a line for each.

    The arguments are those of `launcher.backends.backend.Backend.clean`.
    """
    engines = {host.name: Engine(host, request.programs) for host in request.named_hosts}
    engines = engines or {_THIS_MACHINE: Engine()}

    def clean_engine(name: str) -> tuple[list[EngineObject], dict[str, str]]:
        if not engines[name].is_installed():
            return [], {}
        where = "" if name == _THIS_MACHINE else f" on {name}"

        def may_remove(item: EngineObject) -> bool:
            run, owner = item.labels.get(JOB_LABEL, ""), item.labels.get(OWNER_LABEL, "")
            return request.cleaning.may_remove(run, owner, f"{item.kind} {item.name}{where}")

        found = [*filter(may_remove, engines[name].objects())]
        return found, {} if request.dry_run else engines[name].remove(found)

    faults = []
    for name, (found, left) in _for_all(engines, clean_engine, "its Docker engine").items():
        faults += [fault if name == _THIS_MACHINE else f"{name}: {fault}" for fault in left.values()]
        where = "" if name == _THIS_MACHINE else f" on {name}"
        for item in found:
            if item.id not in left:
                yield f"{'would remove' if request.dry_run else 'removed'} {item.kind} {item.name}{where}"
    if faults:
        raise HostsError(faults)


class ContainerFleet:
    """A `launcher.backends.connections.Fleet` of containers.

    At its end no container is left, except with ``--keep``.

    Args:
        allocation: The hosts, each of which is a container.
        options: The options of the containers.
        planned: The container of each host.
        loop: The loop that drives the links to the agents.
        machines: The machines whose engines start the containers. None if the engine of this machine does.
    """

    local_agents: Sequence[int] = ()

    def __init__(
        self,
        allocation: Allocation,
        options: DockerOptions,
        planned: Iterable[Container],
        loop: EventLoop,
        machines: AgentFleet | None = None,
    ) -> None:
        self._allocation, self._request, self._docker = allocation, allocation.request, options
        self._loop, self._machines = loop, machines
        self._containers = {container.host: container for container in planned}
        self._labels = labels(self._request.run_name, self._docker.keep)
        self.has_remote_hosts = machines is not None and machines.has_remote_hosts
        self.seconds_until_tasks_ended = 0.0 if machines is None else None
        self._engines = {_THIS_MACHINE: Engine()}
        if machines is not None:
            hosts = [host for host in allocation.hosts if host.name in self._containers]
            self._engines = {host.name: Engine(host, machines) for host in hosts}
        #: The id of the job's network at the engine of this machine. Empty until it exists.
        self._network = ""
        #: The containers that have been started, by host.
        self._started: dict[str, ContainerConnections] = {}
        #: The engine as `recover` uses it to remove containers. The end of the launch does not wait for that.
        self._renewing = Engine()
        #: Held while a container replaces another one.
        self._starting = threading.Lock()
        #: Whether the launch is ending, so that no container may start.
        self._over = False
        self._stack = ExitStack()

    def __enter__(self) -> ContainerFleet:
        """Connect to the machines, and check their engines.

        Raises:
            HostsError: An engine cannot be used, or cannot get the image.
        """
        with ExitStack() as stack:
            if self._machines is not None:
                stack.enter_context(self._machines)
            _for_all(self._engines, self._prepare, "its Docker engine", self._loop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    @property
    def forwarding(self) -> Forwarding | None:
        """What forwards ports of the machines under the containers.

        None if only this machine runs containers.
        """
        return None if self._machines is None else self._machines.forwarding

    def _prepare(self, name: str) -> None:
        """Check that an engine responds and has the image, and remove what killed launches left at it."""
        engine, docker = self._engines[name], self._docker
        rootless = engine.is_rootless()
        engine.remove_leftovers()
        own = list(self._containers) if name == _THIS_MACHINE else [name]
        for image in dict.fromkeys(self._containers[host].image for host in own):
            engine.ensure_image(image, docker.pull)
        # What a task writes to a mount must belong to the caller, who is root in the containers of a rootless
        # engine.
        mine = f"{os.getuid()}:{os.getgid()}" if name == _THIS_MACHINE else ""
        user = docker.user or ("0:0" if rootless else mine)
        for host in own:
            self._containers[host] = replace(self._containers[host], user=user)

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Run a program on the machine of a container, outside the container.

        Raises:
            TransportError: The container runs on this machine, or its machine cannot be reached.
        """
        if self._machines is None:
            raise TransportError(f"{host}: this is a container of this machine")
        return self._machines.run(host, entry, arguments)

    def leftovers(self) -> Sequence[str]:
        """Return lines about the containers that ``--keep`` leaves, and how to remove them."""
        if not self._docker.keep:
            return ()
        names = [
            self._name(host) + ("" if self._machines is None else f" on {host}") for host in self._containers
        ]
        return [
            f"kept (--keep): {join_names(names)} (docker ps -a --filter "
            f"label={JOB_LABEL}={self._request.run_name})",
            f"remove them:          launch clean{'' if self._machines is None else ' --hosts ...'}",
        ]

    def _name(self, host: str) -> str:
        return container_name(self._request.run_name, host)

    # ------------------------------------------------------------------ containers

    @contextmanager
    def running(self, placement: Placement) -> Iterator[Placement]:
        """Create all containers, wait for their agents, and end the containers when the context is left."""
        with ExitStack() as stack:
            stack.callback(self._end)
            if self._machines is None:
                # No signal may interrupt the removal of the containers.
                stack.callback(self._request.ignore_signals)
            for host, tasks in placement.by_host().items():
                self._containers[host] = with_output_mounts(self._containers[host], tasks)
            if self._machines is None:
                self._start_here()
            else:
                placement = self._start_there(placement)
            yield placement

    def _start_here(self) -> None:
        """Make the network of the job, and start all containers at the engine of this machine."""
        network, engine = network_name(self._request.run_name), self._engines[_THIS_MACHINE]
        # The network is made in a thread, so that a signal does not interrupt the command that creates it.
        self._network = in_thread(partial(engine.make_network, network, self._labels))
        for host in self._containers:
            self._start(self._containers[host])
        _for_all(self._started, lambda host: self._started[host].first.await_agent(), _START_STEP)

    def _start(self, container: Container) -> ContainerConnections:
        """Start the container of a host. Its agent may not run yet when this returns."""
        host, name = container.host, self._name(container.host)
        if self._machines is None:
            network, engine = network_name(self._request.run_name), self._engines[_THIS_MACHINE]
        else:
            network, engine = HOST_NETWORK, self._engines[host]
        argv = run_command(container, name, network, self._labels, bootstrap.loader_command(container.python))
        programs = None if self._machines is None else self._machines.programs
        lease = self._request.settings[LEASE]
        started = ContainerConnections(container, name, argv, engine, programs, lease)
        self._started[host] = started
        return started

    def _start_there(self, placement: Placement) -> Placement:
        """Start a container on each host. Return the placement with folders as the containers see them."""

        def start(host: str) -> dict[TaskId, PlacedTask]:
            user, home = self._engines[host].login()
            container = self._containers[host]
            mounts = (
                replace(mount, source=_absolute(home, mount.source), target=_absolute(home, mount.target))
                for mount in container.mounts
            )
            container = replace(container, mounts=tuple(mounts), user=container.user or user)
            tasks = [self._in_folder(placed, home) for placed in placement.tasks if placed.host.name == host]
            if not self._docker.no_mount:
                folders = [placed.host.workdir for placed in tasks if placed.host.workdir]
                container = with_folders(container, folders, self._docker.read_only)
            self._start(container).first.await_agent()
            return {placed.task: placed for placed in tasks}

        found = _for_all(self._engines, start, _START_STEP, self._loop)
        tasks = (found[placed.host.name][placed.task] for placed in placement.tasks)
        return replace(placement, tasks=tuple(tasks))

    def _in_folder(self, placed: PlacedTask, home: str) -> PlacedTask:
        """Return a task whose host names the full path of the folder in which the task runs."""
        folder = placed.role.workdir or placed.host.workdir or self._allocation.spec.workdir
        if folder is None:
            return placed
        role = replace(placed.role, workdir=None)
        return replace(placed, role=role, host=replace(placed.host, workdir=_absolute(home, folder)))

    def _end(self) -> None:
        """End all agents by the end of their input, and so their containers.

        On other hosts only those containers are still left for which no link exists, because the links have
        ended the others. On this machine, whatever is left after that is removed by force.
        """
        if self._machines is not None:
            for started in list(self._started.values()):  # A thread may still be starting one.
                if not started.taken:
                    started.first.close()
            return
        self._renewing.abandon()
        with self._starting:
            self._over = True
        with slow("waiting for the Docker engine to remove the containers of this job"):
            self._remove_here()

    def _remove_here(self) -> None:
        """Wait for the containers of this machine to exit, and remove what is left of the job."""
        for_each(
            self._started, lambda host: self._started[host].first.close(), "its container to exit", quiet=True
        )
        if KEPT_LABEL in self._labels:
            return
        ended = all(started.first.wait(0.0) is not None for started in self._started.values())
        engine, seconds = self._engines[_THIS_MACHINE], _HURRIED_ANSWER_SECONDS
        if ended and self._network:
            removal = engine.docker("network", "rm", self._network, seconds=seconds)
            if removal.code == 0:
                return
        try:
            left = engine.remove(engine.objects(self._request.run_name, seconds), seconds)
        except TransportError as error:
            left = {"": str(error)}
        if left:
            why = "; ".join(left.values())
            say(f"not all of this job was removed ({why}): `launch clean` removes the rest later")

    def recover(self, host: str) -> None:
        """Remove the container of a host, which kills its tasks, and start another one."""
        name = self._name(host)
        left = self._renewing.remove([EngineObject(kind="container", id=name, name=name, labels={})])
        if left:
            raise TransportError(left[name])
        with self._starting:
            if self._over:
                raise TransportError("launch is exiting")
            started = self._start(self._containers[host])
        started.first.await_agent()

    def link_to(self, host: Host) -> AgentLink:
        """Return a link to the agent of a host, which runs already."""
        started = self._started[host.name]
        return ReconnectingLink(self._loop, started, started.arguments)


def _absolute(home: str, path: str) -> str:
    """Return the full path of a path on a host. It may be relative to the home of the login user."""
    return os.path.join(home, path[2:] if path == "~" or path.startswith("~/") else path)

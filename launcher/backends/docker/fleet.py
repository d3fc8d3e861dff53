"""The containers of a launch: one for each task at this machine's engine, or one at each host's engine."""

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

#: The engine of this machine in lines for the user.
_THIS_MACHINE = "this machine"
#: The step, in lines for users who wait.
_START_STEP = "its engine to start the container"
#: Seconds for an answer from an engine that may hang, after the job.
_HURRIED_ANSWER_SECONDS = 10.0


def _for_all(
    names: Iterable[str],
    function: Callable[[str], _T],
    step: str,
    loop: EventLoop | None = None,
) -> dict[str, _T]:
    """The results of a function for all engines or hosts, called in threads; see `for_each`.

    Raises:
        HostsError: the faults of some of them, each fault once.
    """
    results, failed = for_each(names, function, step, loop=loop)
    if failed:
        raise HostsError(failed.values() if _THIS_MACHINE in failed else by_reason(failed))
    return results


def clean(request: CleanRequest) -> Iterator[str]:
    """See `launcher.backends.backend.Backend.clean`."""
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
    """See `launcher.backends.connections.Fleet`. At the end no container is left, except with ``keep``.

    Args:
        allocation: The hosts, each of which is a container.
        options: Of the containers.
        planned: The container of each host.
        loop: Drives the links to the agents.
        machines: The machines whose engines start the containers. None: the engine of this machine does.
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
        #: The job's network here, once it is there.
        self._network = ""
        #: The containers that have been started, by host.
        self._started: dict[str, ContainerConnections] = {}
        #: Removes containers that others replace. At its end the launch does not wait for that.
        self._renewing = Engine()
        #: Held while a container takes the place of another; the launch ends.
        self._starting = threading.Lock()
        self._over = False
        self._stack = ExitStack()

    def __enter__(self) -> ContainerFleet:
        """Connect to the machines, and check their engines.

        Raises:
            HostsError: An engine cannot be used, or does not have the image.
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
        """See `Fleet.forwarding`."""
        return None if self._machines is None else self._machines.forwarding

    def _prepare(self, name: str) -> None:
        """Check that an engine responds and has the image; remove what killed launches left there."""
        engine, docker = self._engines[name], self._docker
        rootless = engine.is_rootless()
        engine.remove_leftovers()
        own = list(self._containers) if name == _THIS_MACHINE else [name]
        for image in dict.fromkeys(self._containers[host].image for host in own):
            engine.ensure_image(image, docker.pull)
        # What a task writes to a mount belongs to the caller: root in the containers of a rootless engine.
        mine = f"{os.getuid()}:{os.getgid()}" if name == _THIS_MACHINE else ""
        user = docker.user or ("0:0" if rootless else mine)
        for host in own:
            self._containers[host] = replace(self._containers[host], user=user)

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `Fleet.run`: on the host, not in its container."""
        if self._machines is None:
            raise TransportError(f"{host}: this is a container of this machine")
        return self._machines.run(host, entry, arguments)

    def leftovers(self) -> Sequence[str]:
        """See `Fleet.leftovers`."""
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
        """See `Fleet.running`: create all containers, and wait until each agent is up."""
        with ExitStack() as stack:
            stack.callback(self._end)
            if self._machines is None:
                stack.callback(self._request.ignore_signals)  # while they are removed
            for host, tasks in placement.by_host().items():
                self._containers[host] = with_output_mounts(self._containers[host], tasks)
            if self._machines is None:
                self._start_here()
            else:
                placement = self._start_there(placement)
            yield placement

    def _start_here(self) -> None:
        network, engine = network_name(self._request.run_name), self._engines[_THIS_MACHINE]
        # A signal does not end the command that creates something.
        self._network = in_thread(partial(engine.make_network, network, self._labels))
        for host in self._containers:
            self._start(self._containers[host])
        _for_all(self._started, lambda host: self._started[host].first.await_agent(), _START_STEP)

    def _start(self, container: Container) -> ContainerConnections:
        """Start a container; its agent may not be up yet."""
        host, name = container.host, self._name(container.host)
        if self._machines is None:
            network, engine = network_name(self._request.run_name), self._engines[_THIS_MACHINE]
        else:
            network, engine = HOST_NETWORK, self._engines[host]
        argv = run_command(container, name, network, self._labels, bootstrap.loader(container.python))
        programs = None if self._machines is None else self._machines.programs
        lease = self._request.settings[LEASE]
        started = ContainerConnections(container, name, argv, engine, programs, lease)
        self._started[host] = started
        return started

    def _start_there(self, placement: Placement) -> Placement:
        """Start a container on each host; the placement with folders as the containers have them."""

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
        """A task whose host names its folder, in full."""
        folder = placed.role.workdir or placed.host.workdir or self._allocation.spec.workdir
        if folder is None:
            return placed
        role = replace(placed.role, workdir=None)
        return replace(placed, role=role, host=replace(placed.host, workdir=_absolute(home, folder)))

    def _end(self) -> None:
        """End all agents by the end of their input, and so their containers.

        Of containers on hosts, only those are left here to which there was no link yet: the links have ended
        the others. Of this machine's containers, what is left after that is removed by force.
        """
        if self._machines is not None:
            for started in list(self._started.values()):  # a thread may still be starting one
                if not started.taken:
                    started.first.close()
            return
        self._renewing.abandon()
        with self._starting:
            self._over = True
        with slow("waiting for the Docker engine to remove the containers of this job"):
            self._remove_here()

    def _remove_here(self) -> None:
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
        """See `Fleet.recover`: remove a container, which kills its tasks, and start another."""
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
        """See `Fleet.link_to`: the agent is up already."""
        started = self._started[host.name]
        return ReconnectingLink(self._loop, started, started.arguments)


def _absolute(home: str, path: str) -> str:
    """A path on a host, in full: relative to the home of the login user."""
    return os.path.join(home, path[2:] if path == "~" or path.startswith("~/") else path)

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
from launcher.backends.connections import AgentLink, Forwarding, by_reason, for_each, slow
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
    names: Iterable[str], function: Callable[[str], _T], step: str, loop: EventLoop | None = None
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

    They are removed at the engine of each named host, or else at that of this machine. A dry run removes
    nothing. An engine that is not installed contains nothing to remove.

    Args:
        request: The request of ``launch clean``.

    Raises:
        HostsError: An engine cannot be asked. Or, after the last line, objects cannot be removed.
    """
    engines = {host.name: Engine(host, request.programs) for host in request.named_hosts}
    engines = engines or {_THIS_MACHINE: Engine()}

    def clean_engine(engine_name: str) -> tuple[list[EngineObject], dict[str, str]]:
        """Return the objects that may be removed, and why some of them remain, by their ids."""
        engine, removable = engines[engine_name], []
        try:
            objects = engine.objects() if engine.is_installed() else []
        except TransportError as error:
            # A dry run on this machine goes on without its engine: most users have launched no containers
            # there, and none runs now.
            if not request.dry_run or engine_name != _THIS_MACHINE:
                raise
            say(str(error))
            objects = []
        for item in objects:
            run, owner = item.labels.get(JOB_LABEL, ""), item.labels.get(OWNER_LABEL, "")
            if request.cleaning.may_remove(run, owner, f"{item.kind} {item.name}{engine.place}"):
                removable.append(item)
        return removable, {} if request.dry_run else engine.remove(removable)

    faults = []
    done = "would remove" if request.dry_run else "removed"
    for name, (removable, remaining) in _for_all(engines, clean_engine, "its Docker engine").items():
        faults += [fault if name == _THIS_MACHINE else f"{name}: {fault}" for fault in remaining.values()]
        for item in removable:
            if item.id not in remaining:
                yield f"{done} {item.kind} {item.name}{engines[name].place}"
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
        """Prepare the engines that will run the planned containers. None is asked yet."""
        self._allocation, self._request, self._options = allocation, allocation.request, options
        self._loop, self._machines = loop, machines
        #: The planned container of each host. `_prepare_engine` adds its user, and `running` output folders.
        self._containers = {container.host: container for container in planned}
        #: The labels of all containers and of the network, by which they are found and removed later.
        self._labels = labels(self._request.run_name, self._options.keep)
        #: Whether any container runs on another machine.
        self.has_remote_hosts = machines is not None and machines.has_remote_hosts
        # `recover` removes a container of this machine with its tasks. The tasks of another host that is lost
        # cannot start again (None).
        self.seconds_until_tasks_ended = 0.0 if machines is None else None
        #: The engines that run the containers, by the name of the host, or `_THIS_MACHINE`.
        self._engines = {_THIS_MACHINE: Engine()}
        if machines is not None:
            hosts = [host for host in allocation.hosts if host.name in self._containers]
            self._engines = {host.name: Engine(host, machines) for host in hosts}
        #: The id of the job's network at the engine of this machine. Empty until it exists.
        self._network_id = ""
        #: The containers that have been started, by host.
        self._started: dict[str, ContainerConnections] = {}
        #: The engine as `recover` uses it to remove containers. The end of the launch does not wait for that.
        self._recovery_engine = Engine()
        #: Held while a container replaces another one.
        self._start_lock = threading.Lock()
        #: Whether the launch is ending, so no container may start.
        self._is_closing = False
        #: What must be left at the end: the context of the machines, if there are any.
        self._stack = ExitStack()

    def __enter__(self) -> ContainerFleet:
        """Connect to the machines, and check their engines. No container is started yet.

        If an engine cannot be used, the connections are closed again.

        Raises:
            HostsError: An engine cannot be used, or cannot get the image.
        """
        with ExitStack() as stack:
            if self._machines is not None:
                stack.enter_context(self._machines)
            _for_all(self._engines, self._prepare_engine, "its Docker engine", self._loop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *details: Any) -> None:
        """Close the connections to the machines. `running` has removed the containers before."""
        self._stack.__exit__(*details)

    @property
    def forwarding(self) -> Forwarding | None:
        """What forwards ports of the machines under the containers.

        None if only this machine runs containers.
        """
        return None if self._machines is None else self._machines.forwarding

    def _prepare_engine(self, name: str) -> None:
        """Check that an engine responds, get the images of its containers, and decide about their user.

        This also removes what killed launches left at the engine.

        Args:
            name: The name of the engine's host, or `_THIS_MACHINE`.

        Raises:
            TransportError: The engine cannot be used, or cannot get an image.
        """
        engine, is_here = self._engines[name], name == _THIS_MACHINE
        is_rootless = engine.is_rootless()
        engine.remove_leftovers()
        hosts = list(self._containers) if is_here else [name]
        for image in dict.fromkeys(self._containers[host].image for host in hosts):
            engine.ensure_image(image, self._options.pull)
        # What a task writes to a mount must belong to the caller, who is root in the containers of a rootless
        # engine. On another host, `_start_there` asks for the login user.
        caller = f"{os.getuid()}:{os.getgid()}" if is_here else ""
        user = self._options.user or ("0:0" if is_rootless else caller)
        for host in hosts:
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
        if not self._options.keep:
            return ()
        is_here = self._machines is None
        names = [self._container_name(host) + ("" if is_here else f" on {host}") for host in self._containers]
        listing = f"docker ps -a --filter label={JOB_LABEL}={self._request.run_name}"
        return [
            f"kept (--keep): {join_names(names)} ({listing})",
            f"remove them:          launch clean{'' if is_here else ' --hosts ...'}",
        ]

    def _container_name(self, host: str) -> str:
        """Return the name of a host's container at its engine."""
        return container_name(self._request.run_name, host)

    # ------------------------------------------------------------------ containers

    @contextmanager
    def running(self, placement: Placement) -> Iterator[Placement]:
        """Create all containers, wait for their agents, and end the containers when the context is left.

        The value of the context is the placement, with folders as the containers see them.
        """
        with ExitStack() as stack:
            stack.callback(self._end_containers)
            if self._machines is None:
                # No signal may interrupt the removal of the containers. The stack calls this first, as it is
                # added last.
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
        self._network_id = in_thread(partial(engine.make_network, network, self._labels))
        for container in self._containers.values():
            self._start_container(container)
        _for_all(self._started, lambda host: self._started[host].first.await_agent(), _START_STEP)

    def _start_container(self, container: Container) -> ContainerConnections:
        """Start a container at the engine of its host. Its agent may not run yet when this returns."""
        host, name = container.host, self._container_name(container.host)
        # Containers of this machine share a network of the job. Containers of other hosts use the network of
        # their host, so that they reach each other.
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
            """Start the container of a host, wait for its agent, and return the tasks of the host."""
            # Only now is the home on the host known, to which ``~`` and relative paths refer.
            user, home = self._engines[host].login()
            container = self._containers[host]
            mounts = (
                replace(mount, source=_absolute(home, mount.source), target=_absolute(home, mount.target))
                for mount in container.mounts
            )
            # If nothing else decides the user, it is the login user, to whom the written files then belong.
            container = replace(container, mounts=tuple(mounts), user=container.user or user)
            tasks = [self._in_folder(placed, home) for placed in placement.tasks if placed.host.name == host]
            # The folders in which the tasks run are mounted at the same paths.
            if not self._options.no_mount:
                folders = [placed.host.workdir for placed in tasks if placed.host.workdir]
                container = with_folders(container, folders, self._options.read_only)
            self._start_container(container).first.await_agent()
            return {placed.task: placed for placed in tasks}

        tasks_by_host = _for_all(self._engines, start, _START_STEP, self._loop)
        tasks = (tasks_by_host[placed.host.name][placed.task] for placed in placement.tasks)
        return replace(placement, tasks=tuple(tasks))

    def _in_folder(self, placed: PlacedTask, home: str) -> PlacedTask:
        """Return a task whose host names the full path of the folder in which the task runs.

        The folder of its role comes first, then that of its host, then that of the job. Without any, the task
        is returned as it is.

        Args:
            placed: The task.
            home: The home of the login user on its host.
        """
        folder = placed.role.workdir or placed.host.workdir or self._allocation.spec.workdir
        if folder is None:
            return placed
        role = replace(placed.role, workdir=None)  # It would come before the folder of the host.
        return replace(placed, role=role, host=replace(placed.host, workdir=_absolute(home, folder)))

    def _end_containers(self) -> None:
        """End all agents by the end of their input, and so their containers.

        On other hosts only those containers are still left for which no link exists, because the links have
        ended the others. On this machine, whatever is left after that is removed by force.
        """
        if self._machines is not None:
            for started in list(self._started.values()):  # A thread may still be starting one.
                if not started.first_is_used:
                    started.first.close()
            return
        self._recovery_engine.abandon()  # So `recover` fails at once where it removes a container.
        # `recover`, in another thread, has started its container before, or starts none.
        with self._start_lock:
            self._is_closing = True
        with slow("waiting for the Docker engine to remove the containers of this job"):
            self._remove_here()

    def _remove_here(self) -> None:
        """Wait for the containers of this machine to exit, and remove what is left of the job.

        The user is told if that fails.
        """
        for_each(
            self._started, lambda host: self._started[host].first.close(), "its container to exit", quiet=True
        )
        if KEPT_LABEL in self._labels:  # The user wants to look at the containers later (--keep).
            return
        have_exited = all(started.first.wait(0.0) is not None for started in self._started.values())
        engine, seconds = self._engines[_THIS_MACHINE], _HURRIED_ANSWER_SECONDS
        # Containers that have exited are removed by their engine. A network that has none can be removed.
        if have_exited and self._network_id:
            removal = engine.docker("network", "rm", self._network_id, seconds=seconds)
            if removal.code == 0:
                return
        try:
            reasons = [*engine.remove(engine.objects(self._request.run_name, seconds), seconds).values()]
        except TransportError as error:
            reasons = [str(error)]
        if reasons:
            text = "; ".join(reasons)
            say(f"not all of this job was removed ({text}): `launch clean` removes the rest later")

    def recover(self, host: str) -> None:
        """Remove the container of a host, which kills its tasks, and start another one. This blocks.

        Raises:
            TransportError: The container cannot be removed, the new one does not start, or the launch ends.
        """
        name = self._container_name(host)
        # The engine accepts the name of a container in place of its id.
        container = EngineObject(kind="container", id=name, name=name, labels={})
        if reasons := self._recovery_engine.remove([container]):
            raise TransportError(reasons[name])
        with self._start_lock:
            if self._is_closing:
                raise TransportError("launch is exiting")
            started = self._start_container(self._containers[host])
        started.first.await_agent()

    def link_to(self, host: Host) -> AgentLink:
        """Return a link to the agent of a host, which runs already."""
        started = self._started[host.name]
        return ReconnectingLink(self._loop, started, started.arguments)


def _absolute(home: str, path: str) -> str:
    """Return the full path of a path on a host.

    Args:
        home: The home of the login user there, to which the path is relative, with or without ``~``.
        path: The path. A full path is returned as it is.
    """
    return os.path.join(home, path[2:] if path == "~" or path.startswith("~/") else path)

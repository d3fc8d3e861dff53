"""Containers of a launch: at the engine of this machine, one a task; or at the engines of its hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from launcher.job import Host, Placed, Placement, RunPaths
from launcher.job_run.hosts import Programs, RemoteCommands
from launcher.job_run.interrupts import Interrupts
from launcher.job_run.notices import Notices, print_notice
from launcher.job_run.options import Options
from launcher.job_run.staging import make_output_dirs_here
from launcher.scheduler.placement import place
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.transports.base import Link
from launcher.transports.docker import engine
from launcher.transports.docker.container import JOB, Container, container_name, labels
from launcher.transports.docker.here import Containers, ready
from launcher.transports.docker.hosts import Engines
from launcher.transports.docker.options import (
    DockerOptions,
    containers,
    folders_of,
    own_hosts,
    renumbered,
    with_folders,
    with_output_mounts,
)
from launcher.transports.docker.remote import RemoteContainers


def place_containers(options: Options, docker: DockerOptions) -> tuple[Options, Placement, list[Container]]:
    """Decide which container runs which task.

    Returns:
        The options as the containers see them, the placement, and the containers.

    Raises:
        InputError: options that can't be followed.
    """
    job = options.job
    python = job.python if options.sources.python else DEFAULT_PYTHON
    workdir = None if docker.no_mount and not options.sources.workdir else job.workdir
    given = (role.gpus is not None or role.name == "ps" or role.sidecar for role in job.roles)
    roles = (
        role if known else role._replace(gpus=docker.gpus)
        for role, known in zip(job.roles, given, strict=True)
    )
    job = job._replace(python=python, workdir=workdir, roles=tuple(roles))
    if options.hosts_named:
        hosts = tuple(map(renumbered, options.hosts))
        placement = place(job, hosts)
        users = {placed.host.name for placed in placement.tasks if placed.gpus}
        gpus = {host.name: host.gpus or () for host in options.hosts if host.name in users}
        made = containers(docker, job, placement, gpus, [], here=False)
        return options._replace(job=job, hosts=hosts), placement, made
    hosts, gpus = own_hosts(job, options.hosts[0].gpus or ())
    placement = place(job, hosts)
    folders = [] if docker.no_mount else folders_of(job)
    made = containers(docker, job, placement, gpus, folders, here=True)
    return options._replace(job=job), placement, made


def connect_engines(
    options: Options,
    made: Sequence[Container],
    job: str,
    notices: Notices,
    commands: RemoteCommands,
    programs: Programs,
    hosts: Sequence[Host],
) -> ContainersHere | ContainersOnHosts:
    """Connect to the engine of this machine, or to those of the hosts that the options name.

    Raises:
        TransportError: an engine, or the image, can't be had.
    """
    assert options.docker is not None
    if options.hosts_named:
        return ContainersOnHosts(options, options.docker, made, job, notices, commands, programs, hosts)
    return ContainersHere(options, options.docker, made, job, notices)


def of_image(placement: Placement) -> Placement:
    """The placement without the Python of the hosts: their containers have their own."""
    tasks = (placed._replace(host=placed.host._replace(python=None, venv=None)) for placed in placement.tasks)
    return placement._replace(tasks=tuple(tasks))


class ContainersHere:
    """The containers of a launch at the engine of this machine.

    Args:
        options, docker, made: the launch, and its containers.
        job: its name.
        notices: messages for the user.
    """

    def __init__(
        self, options: Options, docker: DockerOptions, made: Sequence[Container], job: str, notices: Notices
    ) -> None:
        self._options = options
        self._docker = docker
        self._job = job
        self._notices = notices
        self._made, self._same_clock = ready(made, docker, notices)

    def start(
        self, stack: ExitStack, placement: Placement, paths: RunPaths, interrupts: Interrupts
    ) -> tuple[Placement, Callable[[Host], Link]]:
        """Start the containers.

        Args:
            stack: removes them; nothing interrupts that.

        Returns:
            The placement with the output folders, and what opens the link to the agent of a container.
        """
        if self._options.job.output_dirs:
            placement = make_output_dirs_here(placement, paths, 0o777 if self._docker.user else 0o700)
            self._made = [with_output_mounts(one, placement) for one in self._made]
        marks = labels(self._job, self._docker.keep)
        started = Containers(engine.run_here, self._job, self._made, marks, self._same_clock, self._notices)
        stack.enter_context(started)
        stack.callback(interrupts.ignore)
        started.start()
        return placement, started.open

    def finished(self) -> None:
        """After the job: name what ``--keep`` keeps."""
        if self._docker.keep:
            name = container_name(self._job, self._made[0].host)
            print_notice(f"kept, as --keep asks: docker ps -a --filter label={JOB}={self._job}")
            print_notice(f"look at one:          docker diff {name}; docker cp {name}:/PATH .")
            shell = "docker run -it --rm --entrypoint sh look"
            print_notice(f"a shell in it:        docker commit {name} look && {shell}")
            print_notice("remove them:          launch clean")


class ContainersOnHosts:
    """The containers of a launch at the engines of its hosts, one a host.

    Args:
        options, docker, made, job, notices: as for `ContainersHere`.
        commands: run the engines' commands on the hosts.
        programs: run the containers' agents.
        hosts: those that the tasks run on.
    """

    def __init__(
        self,
        options: Options,
        docker: DockerOptions,
        made: Sequence[Container],
        job: str,
        notices: Notices,
        commands: RemoteCommands,
        programs: Programs,
        hosts: Sequence[Host],
    ) -> None:
        self._options = options
        self._docker = docker
        self._job = job
        self._notices = notices
        self._programs = programs
        self._hosts = {host.name: host for host in hosts}
        self._engines = Engines(hosts, commands, notices)
        self._made = self._engines.ready(made, docker)

    def start(
        self, stack: ExitStack, placement: Placement, paths: RunPaths, interrupts: Interrupts
    ) -> tuple[Placement, Callable[[Host], Link]]:
        """See `ContainersHere.start`."""
        docker = self._docker
        there = self._engines.folders({name: self._workdirs(placement, name) for name in self._hosts})
        made = []
        for container in self._made:
            folders = [] if docker.no_mount else there[container.host].values()
            made.append(with_output_mounts(with_folders(container, folders, docker.read_only), placement))
        marks = labels(self._job, docker.keep)
        lease = self._options.ssh.lease
        started = RemoteContainers(
            self._engines, self._programs, self._job, made, marks, lease, self._notices
        )
        stack.enter_context(started).start()
        tasks = tuple(_settled(placed, self._workdir(placed), there) for placed in placement.tasks)
        return of_image(placement._replace(tasks=tasks)), started.open

    def finished(self) -> None:
        """See `ContainersHere.finished`."""
        if self._docker.keep:
            names = ", ".join(f"{container_name(self._job, host)} on {host}" for host in self._hosts)
            print_notice(f"kept, as --keep asks: {names}")
            print_notice("remove them:          launch clean --hosts ...")

    def _workdir(self, placed: Placed) -> str | None:
        return placed.role.workdir or placed.host.workdir or self._options.job.workdir

    def _workdirs(self, placement: Placement, host: str) -> list[str]:
        """Where the tasks of a host run."""
        folders = (self._workdir(placed) for placed in placement.tasks if placed.host.name == host)
        return list(dict.fromkeys(filter(None, folders)))


def _settled(placed: Placed, workdir: str | None, there: Mapping[str, Mapping[str, str]]) -> Placed:
    """A task in its folder, with the home that is the host's."""
    found = there[placed.host.name].get(workdir or "")
    if found is None or found == workdir:
        return placed
    role = placed.role._replace(workdir=None)
    return placed._replace(role=role, host=placed.host._replace(workdir=found))

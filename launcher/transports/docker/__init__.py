"""Containers as hosts: each host of the job is a container, and the agent is its main process.

Everything goes through the ``docker`` command, here and on the hosts of a hostfile. So contexts,
``DOCKER_HOST``, TLS, ``ssh://`` engines, rootless engines and Podman's ``docker`` work as for the user.

::

    here       orchestrator ══ pipe ══ docker run -i ══ engine ══ agent (main process) ──> task, task, ...

End-of-file on the container's stdin ends the agent, and with it the container: no container outlives its
launcher.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from launcher.errors import Fault, TransportError
from launcher.job import Host, Placement
from launcher.scheduler.placement import place
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.transports import ssh
from launcher.transports.base import Link, RemoteCommand
from launcher.transports.docker import options as docker
from launcher.transports.machines import Launch, Machines, Planned, Request, Transport, is_here

if TYPE_CHECKING:
    from launcher.config.schema import Section
    from launcher.transports.docker.containers import Containers


class DockerTransport(Transport):
    """Each task in a container of its own at the engine of this machine; or a container on each host."""

    in_containers = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Transport.add_options`."""
        docker.add_options(parser)

    def sections(self) -> Mapping[str, Section]:
        """See `Transport.sections`."""
        from launcher.config.schema import Section

        text = "An image, or a mapping: each task runs in a container."
        return {"docker": Section(text, docker.read_section)}

    def settings(self, args: argparse.Namespace, section: Any, folder: str) -> docker.DockerOptions | None:
        """See `Transport.settings`."""
        return docker.settings(args, section, folder)

    def faults(self, args: argparse.Namespace, settings: Any) -> Iterable[Fault]:
        """See `Transport.faults`."""
        return docker.faults(args, settings)

    def plan(self, request: Request) -> Planned:
        """See `Transport.plan`."""
        from launcher.transports.docker.container import containers, own_hosts, renumbered
        from launcher.transports.docker.containers import of_image

        options: docker.DockerOptions = request.settings["docker"]
        job = request.job
        given = (role.gpus is not None or role.name == "ps" or role.sidecar for role in job.roles)
        roles = (
            role if known else role._replace(gpus=options.gpus)
            for role, known in zip(job.roles, given, strict=True)
        )
        job = job._replace(
            roles=tuple(roles),
            python=job.python if request.python_given else DEFAULT_PYTHON,
            workdir=None if options.no_mount and not request.workdir_given else job.workdir,
        )
        if not request.named:
            hosts, gpus = own_hosts(job, request.hosts[0].gpus or ())
            placement = place(job, hosts)
            details = containers(options, job, placement, gpus, here=True)
            names = frozenset(host.name for host in hosts)
            return Planned(job, placement, names, options.user is not None, details=details)
        placement = place(job, tuple(map(renumbered, request.hosts)))
        users = {placed.host.name for placed in placement.tasks if placed.gpus}
        ids = {host.name: host.gpus or () for host in request.hosts if host.name in users}
        remark = f"each host starts a container of {options.image}, by its own engine: all runs in there"
        return Planned(
            job,
            placement,
            frozenset(host.name for host in request.hosts if is_here(host)),
            options.user is not None,
            of_image,
            (remark,),
            containers(options, job, placement, ids, here=False),
        )

    def hosts(self, launch: Launch) -> DockerHosts:
        """See `Transport.hosts`."""
        return DockerHosts(launch)


TRANSPORT = DockerTransport()


class DockerHosts:
    """The containers of a launch; see `launcher.transports.machines.LaunchHosts`."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._machines: Machines | None = None
        self._containers: Containers
        self.agents: Sequence[tuple[int, int]] = ()
        self.others = False
        self._stack = ExitStack()

    def __enter__(self) -> DockerHosts:
        from launcher.transports.docker.containers import Containers

        launch = self._launch
        with ExitStack() as stack:
            given = (launch.settings, launch.planned.details, launch.name, launch.notice)
            if launch.request.named:
                machines = self._machines = stack.enter_context(ssh.machines(launch, agents=False))
                self.others = machines.others
                hosts, lease = launch.planned.placement.hosts(), launch.request.settings["ssh"].lease
                self._containers = Containers(*given, hosts, machines, machines.programs, lease)
            else:
                self._containers = Containers(*given)
            self._containers.prepare()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def run(self, host: str, entry: str, arguments: object) -> RemoteCommand:
        """See `LaunchHosts.run`: on the host, not in its container."""
        if self._machines is None:
            raise TransportError(f"{host}: it is a container of this machine")
        return self._machines.run(host, entry, arguments)

    @contextmanager
    def started(self, placement: Placement) -> Iterator[Placement]:
        """See `LaunchHosts.started`."""
        with self._containers, ExitStack() as stack:
            if self._machines is None:
                stack.callback(self._launch.ignore_signals)  # while they are removed
            yield self._containers.start(placement, self._launch.planned.job.workdir)

    def open(self, host: Host) -> Link:
        """See `LaunchHosts.open`."""
        return self._containers.open(host)

    def relay(self, socket: str) -> Mapping[str, int]:
        """See `LaunchHosts.relay`."""
        return {} if self._machines is None else self._machines.relay(socket)

    def kept(self) -> Sequence[str]:
        """See `LaunchHosts.kept`."""
        return self._containers.kept()

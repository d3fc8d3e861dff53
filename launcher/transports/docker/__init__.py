"""Containers as hosts: each host of the job is a container, and the agent is its main process.

Everything goes through the ``docker`` command, here and on the hosts of a hostfile. So contexts,
``DOCKER_HOST``, TLS, ``ssh://`` engines, rootless engines and Podman's ``docker`` work as for the user.

::

    here       orchestrator ══ pipe ══ docker run -i ══ engine ══ agent (main process) ──> task, task, ...

End-of-file on the container's stdin ends the agent, and with it the container: no container outlives its
launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from launcher.job import Host
from launcher.scheduler.placement import place
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.transports.base import Hosts
from launcher.transports.docker import options as docker
from launcher.transports.machines import Launch, LaunchHosts, Planned, Request, Transport, is_here

if TYPE_CHECKING:
    from launcher.config.schema import Section


class DockerTransport(Transport):
    """Each task in a container of its own at the engine of this machine; or a container on each host."""

    in_containers = True

    add_options = staticmethod(docker.add_options)
    settings = staticmethod(docker.settings)
    faults = staticmethod(docker.faults)

    def sections(self) -> Mapping[str, Section]:
        """See `Transport.sections`."""
        from launcher.config.schema import Section

        text = "An image, or a mapping: each task runs in a container."
        return {"docker": Section(text, docker.read_section)}

    def plan(self, request: Request) -> Planned:
        """See `Transport.plan`."""
        from launcher.transports.docker.container import containers, own_hosts, renumbered, without_pythons

        options: docker.DockerOptions = request.settings["docker"]
        job = request.job
        job = job._replace(
            roles=tuple(
                role._replace(gpus=options.gpus)
                if role.gpus is None and role.name != "ps" and not role.sidecar
                else role
                for role in job.roles
            ),
            python=job.python if request.python_given else DEFAULT_PYTHON,
            workdir=None if options.no_mount and not request.workdir_given else job.workdir,
        )
        if request.named:
            hosts = tuple(map(renumbered, request.hosts))
            gpus = {host.name: host.gpus or () for host in request.hosts}
        else:
            hosts, gpus = own_hosts(job, request.hosts[0].gpus or ())
        placement = place(job, hosts)._replace(standby=())  # the tasks of a lost container do not move
        planned = Planned(
            job,
            placement,
            frozenset(host.name for host in hosts if is_here(host) or not request.named),
            other_user=options.user is not None,
            details=containers(options, job, placement, gpus, here=not request.named),
        )
        if not request.named:
            return planned
        note = f"each host starts a container of {options.image}, at its own engine; its tasks run in it"
        return planned._replace(shown=without_pythons, remarks=(note,))

    def hosts(self, launch: Launch) -> AbstractContextManager[LaunchHosts]:
        """See `Transport.hosts`."""
        from launcher.transports.docker.hosts import docker_hosts

        return docker_hosts(launch)

    def cleanup(
        self, hosts: Sequence[Host], commands: Hosts, notice: Callable[[str], None], dry_run: bool
    ) -> Iterable[str]:
        """See `Transport.cleanup`."""
        from launcher.transports.docker.hosts import cleanup

        return cleanup(hosts, commands, notice, dry_run)


TRANSPORT = DockerTransport()

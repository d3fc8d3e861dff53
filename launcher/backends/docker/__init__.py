"""Containers as hosts: each host of the job is a container, and the agent is its main process.

Everything goes through the ``docker`` command, here and on the hosts of a hostfile. So contexts,
``DOCKER_HOST``, TLS, ``ssh://`` engines, rootless engines and Podman's ``docker`` work as for the user.

::

    here       orchestrator ══ pipe ══ docker run -i ══ engine ══ agent (main process) ──> task, task, ...

End-of-file on the container's stdin ends the agent, and with it the container: no container outlives its
launcher.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from launcher.backends.backend import Backend
from launcher.backends.cleaning import Cleaning
from launcher.backends.connections import Fleet, ProgramRunner
from launcher.backends.docker import options as docker
from launcher.backends.docker.rows import DOCKER_CONTAINERS, GROUP, SECTION
from launcher.backends.here import is_here
from launcher.backends.launch_request import Allocation, Asked, LaunchRequest
from launcher.common.errors import Fault
from launcher.common.record import replace
from launcher.common.text import join_names
from launcher.config.settings import Need, Settings
from launcher.event_loop import EventLoop
from launcher.job import Host, Placement


class DockerBackend(Backend):
    """Each task in a container of its own at the engine of this machine; or a container on each host."""

    runs_in_containers = True
    missing_file_hint = "a container sees only the folder that the tasks run in; --mount adds others"

    group, section = GROUP, SECTION
    parse = staticmethod(docker.parse)

    def meets(self, options: docker.DockerOptions | None) -> Collection[Need]:
        """See `Backend.meets`."""
        return () if options is None else (DOCKER_CONTAINERS,)

    def faults(self, asked: Asked, options: docker.DockerOptions | None) -> Iterator[Fault]:
        """See `Backend.faults`."""
        yield from docker.faults(asked, options)
        if options is not None:
            from launcher.backends.docker.container import container_faults  # noqa: PLC0415 - the live half

            yield from container_faults(options, asked.spec, here=not asked.named)

    def inventory(self, request: LaunchRequest) -> AbstractContextManager[Allocation]:
        """See `Backend.inventory`."""
        from launcher.backends.docker.container import own_hosts, seen_inside  # noqa: PLC0415 - the live half

        options: docker.DockerOptions = request.settings
        has_folder = not options.no_mount or request.workdir_given
        spec = docker.in_images(request.spec, options, request.python_given, has_folder)
        found = Allocation((), spec, options, other_user=options.user is not None, standby=False)
        if not request.named:
            hosts = own_hosts(spec, request.hosts[0].gpus or ())[0]
            return nullcontext(replace(found, hosts=hosts, same_files=frozenset(host.name for host in hosts)))
        here = frozenset(host.name for host in request.hosts if is_here(host))
        images = join_names([*dict.fromkeys(role.image or options.image for role in spec.roles)])
        note = f"each host starts a container of {images}, at its own engine; its tasks run in it"
        hosts = tuple(map(seen_inside, request.hosts))
        return nullcontext(replace(found, hosts=hosts, here=here, same_files=here, remarks=(note,)))

    def hosts(
        self, request: LaunchRequest, allocation: Allocation, placement: Placement, loop: EventLoop
    ) -> AbstractContextManager[Fleet]:
        """See `Backend.hosts`."""
        from launcher.backends.docker.fleet import docker_hosts  # noqa: PLC0415 - the live half

        return docker_hosts(request, allocation, placement, loop)

    def cleanup(
        self,
        settings: Settings,
        cleaning: Cleaning,
        hosts: Sequence[Host],
        commands: ProgramRunner,
        dry_run: bool,
    ) -> Iterable[str]:
        """See `Backend.cleanup`."""
        from launcher.backends.docker.fleet import cleanup  # noqa: PLC0415 - the live half

        return cleanup(hosts, commands, dry_run, cleaning)


TRANSPORT = DockerBackend()

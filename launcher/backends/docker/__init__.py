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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from launcher.backends.backend import Backend
from launcher.backends.connections import Fleet, ProgramRunner
from launcher.backends.docker import options as docker
from launcher.backends.here import is_here
from launcher.backends.launch_request import Allocation, Asked, LaunchRequest
from launcher.common.errors import Fault
from launcher.common.text import join_names
from launcher.event_loop import EventLoop
from launcher.job import Host, Placement

if TYPE_CHECKING:
    from launcher.config.schema import Section


class DockerBackend(Backend):
    """Each task in a container of its own at the engine of this machine; or a container on each host."""

    runs_in_containers = True
    missing_file_hint = "a container sees only the folder that the tasks run in; --mount adds others"

    add_options = staticmethod(docker.add_options)
    settings = staticmethod(docker.settings)

    def faults(self, asked: Asked, settings: docker.DockerOptions | None) -> Iterator[Fault]:
        """See `Backend.faults`."""
        yield from docker.faults(asked, settings)
        if settings is not None:
            from launcher.backends.docker.container import container_faults

            yield from container_faults(settings, asked.spec, here=not asked.named)

    def sections(self) -> Mapping[str, Section]:
        """See `Backend.sections`."""
        from launcher.config.schema import Section

        text = "An image, or a mapping: each task runs in a container."
        return {"docker": Section(text, docker.read_section)}

    def inventory(self, request: LaunchRequest) -> AbstractContextManager[Allocation]:
        """See `Backend.inventory`."""
        from launcher.backends.docker.container import own_hosts, seen_inside

        options: docker.DockerOptions = request.settings
        has_folder = not options.no_mount or request.workdir_given
        spec = docker.in_images(request.spec, options, request.python_given, has_folder)
        found = Allocation((), spec, options, other_user=options.user is not None, standby=False)
        if not request.named:
            hosts = own_hosts(spec, request.hosts[0].gpus or ())[0]
            return nullcontext(found._replace(hosts=hosts, same_files=frozenset(host.name for host in hosts)))
        here = frozenset(host.name for host in request.hosts if is_here(host))
        images = join_names([*dict.fromkeys(role.image or options.image for role in spec.roles)])
        note = f"each host starts a container of {images}, at its own engine; its tasks run in it"
        hosts = tuple(map(seen_inside, request.hosts))
        return nullcontext(found._replace(hosts=hosts, here=here, same_files=here, remarks=(note,)))

    def hosts(
        self, request: LaunchRequest, allocation: Allocation, placement: Placement, loop: EventLoop
    ) -> AbstractContextManager[Fleet]:
        """See `Backend.hosts`."""
        from launcher.backends.docker.fleet import docker_hosts

        return docker_hosts(request, allocation, placement, loop)

    def cleanup(
        self,
        args: argparse.Namespace,
        hosts: Sequence[Host],
        commands: ProgramRunner,
        notice: Callable[[str], None],
        dry_run: bool,
    ) -> Iterable[str]:
        """See `Backend.cleanup`."""
        from launcher.backends.docker.fleet import cleanup

        return cleanup(hosts, commands, notice, dry_run, args.cleaning)


TRANSPORT = DockerBackend()

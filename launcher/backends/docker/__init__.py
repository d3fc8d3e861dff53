"""The backend for containers of Docker: each host of a job is a container, whose main process is its agent.

Everything goes through the ``docker`` command, on this machine and on the hosts of a hostfile. So contexts,
``DOCKER_HOST``, TLS, ``ssh://`` engines, rootless engines and Podman's ``docker`` work as for the user.

::

    here       orchestrator ══ link ══ docker run -i ══ engine ══ agent (main process) ──> task, task, ...

The end of the container's stdin ends the agent, and with it the container, so no container of this machine
outlives its launcher.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from launcher.backends.backend import Allocation, Backend, LaunchRequest
from launcher.backends.containers import image_faults
from launcher.backends.docker.options import DockerOptions, faults, parse
from launcher.backends.docker.rows import DOCKER_CONTAINERS, GROUP, SECTION
from launcher.common.errors import Fault, Note
from launcher.config.settings import Need, Settings
from launcher.job import JobSpec

if TYPE_CHECKING:
    from launcher.backends.cleaning import CleanRequest


class DockerBackend(Backend[DockerOptions]):
    """The backend for containers: one for each task on this machine, or one on each named host."""

    name = "docker"
    runs_in_containers = True

    group, section = GROUP, SECTION

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> DockerOptions | None:
        """Return the options about containers, or None if the user does not ask for containers."""
        return parse(settings, spec)

    def is_implied(self, options: DockerOptions) -> bool:
        """Return whether nothing but the images of roles asks for containers."""
        return options.implied

    def missing_file_hint(self, options: DockerOptions) -> str:
        """Return which folders containers see, and how they see others."""
        if options.no_mount:
            return (
                "a container sees only the files of its image; `--mount . --workdir .` adds the current "
                "folder, and runs the tasks there"
            )
        return "a container sees only the folder that the tasks run in; --mount adds others"

    def met_needs(self, options: DockerOptions | None) -> Collection[Need]:
        """Return the need of options about containers, if there are containers."""
        return () if options is None else (DOCKER_CONTAINERS,)

    def check(
        self, options: DockerOptions | None, request: LaunchRequest, chosen: Backend[Any]
    ) -> Iterator[Fault | Note]:
        """Yield the faults of options about containers, of mounts and of images."""
        yield from faults(options, request, chosen)
        if options is not None:
            from launcher.backends.docker.container import mount_faults  # noqa: PLC0415 - only when used

            # If the user names no hosts, the engine is that of this machine.
            yield from mount_faults(options, request.spec, here=not request.hosts_named)
            yield from image_faults(request.spec, options, request.settings, self.name)

    def allocate(self, options: DockerOptions, request: LaunchRequest) -> Allocation:
        """Return an allocation whose containers start when tasks are to run."""
        from launcher.backends.docker.allocation import DockerAllocation  # noqa: PLC0415 - only when used

        return DockerAllocation(options, request)

    def clean(self, request: CleanRequest) -> Iterator[str]:
        """Remove containers and networks at the engines of the named hosts, or else of this machine."""
        from launcher.backends.docker.fleet import clean  # noqa: PLC0415 - only when used

        return clean(request)


BACKEND = DockerBackend()

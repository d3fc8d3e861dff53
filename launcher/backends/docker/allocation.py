"""The hosts of a launch as containers: one for each task on this machine, or one on each named host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from launcher.backends.backend import Allocation, LaunchRequest
from launcher.backends.connections import Fleet
from launcher.backends.containers import task_hosts, with_limits
from launcher.backends.docker.container import containers, seen_inside
from launcher.backends.docker.fleet import ContainerFleet
from launcher.backends.docker.options import DockerOptions
from launcher.backends.fleet import AgentFleet, this_machine
from launcher.backends.ssh.allocation import SshAllocation
from launcher.common.text import join_names
from launcher.event_loop import EventLoop
from launcher.job import Placement


class DockerAllocation(Allocation):
    """The containers of a launch. `fleet` starts and removes them.

    If the user names hosts, an allocation over SSH reaches the engines on them.

    Args:
        options: The options about containers.
        request: The request of the launch.
    """

    moves_tasks = False

    def __init__(self, options: DockerOptions, request: LaunchRequest) -> None:
        """Plan the hosts, each of which is a container. None is started yet."""
        named = request.named_hosts
        spec = with_limits(request.spec, options, request.settings, mounts_folder=not options.no_mount)
        self.options = options
        #: The machines whose engines run the containers. None if only this machine does.
        self.machines: SshAllocation | None = None
        #: The ids of the GPUs that the container of a host may see, by the name of the host. The GPUs of a
        #: named host are listed in the hostfile. For tasks of this machine they are shared out below.
        self._gpus: Mapping[str, Sequence[str]] = {host.name: host.gpus or () for host in named}
        if named:  # Each host runs one container for its tasks.
            super().__init__(request, [*map(seen_inside, named)], spec)
            self.machines = SshAllocation(request)
            # A container uses the network of its named host, so that of this machine counts as this machine
            # (`local`). Only that one can mount the files of this machine (`sharing_files`).
            self.local = self.sharing_files = self.machines.local
            images = join_names([*dict.fromkeys(role.image or options.image for role in spec.roles)])
            note = f"each host starts a container of {images}, at its own engine; its tasks run in it"
            self.remarks = (note,)
        else:  # Each task gets a container of this machine, which is a host of its own.
            hosts, self._gpus = task_hosts(spec, this_machine(os.environ).gpus or ())
            super().__init__(request, hosts, spec)
            # These containers have a network of their own, so none counts as this machine, and `local` stays
            # empty. But all can mount the files of this machine.
            self.sharing_files = frozenset(host.name for host in hosts)
        self.runs_as_other_user = options.user is not None

    def fleet(self, placement: Placement, loop: EventLoop) -> AbstractContextManager[Fleet]:
        """Return a fleet whose containers start when tasks are to run, and are removed at its end."""
        is_here = self.machines is None
        planned = containers(self.options, self.spec, placement, self._gpus, here=is_here)
        if self.machines is None:
            return ContainerFleet(self, self.options, planned, loop)
        agents = AgentFleet(self.machines, placement, loop, runs_tasks=False)
        return ContainerFleet(self, self.options, planned, loop, agents)

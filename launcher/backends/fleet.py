"""The machines of a launch, this one and others, and the links to their agents."""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from launcher.agent.host import GPU_TIMEOUT_SECONDS, NVIDIA_SMI, has_nvidia_smi, read_gpus
from launcher.backends.backend import Backend
from launcher.backends.connections import (
    AgentArguments,
    AgentLink,
    Connections,
    Forwarding,
    seconds_until_tasks_ended,
)
from launcher.backends.here import is_here
from launcher.backends.launch_request import Allocation, ConnectSettings, LaunchRequest
from launcher.backends.local import fork_agent
from launcher.common.errors import HostsError, TransportError
from launcher.common.record import replace
from launcher.event_loop import EventLoop
from launcher.job import Host, Placement
from launcher.messages import say

if TYPE_CHECKING:  # a launch on this machine needs neither links that reconnect nor remote commands
    from launcher.backends.link import ReconnectingLink
    from launcher.backends.programs import RemoteProgram

#: File descriptors that a host may take here, and how many more if its tasks can connect to us.
_DESCRIPTORS_PER_HOST = 16
_RELAY_DESCRIPTORS_PER_HOST = 64
#: Those that are not for a host or a log.
_OTHER_DESCRIPTORS = 256
#: A folder with an entry for each GPU.
_NVIDIA_DRIVER_FOLDER = "/proc/driver/nvidia/gpus"
#: Seconds without a word to the user.
_SILENT_SECONDS = 2.0
#: Seconds for agents that are not needed, or not any more, to end.
_LAST_WAIT_SECONDS = 10.0


def this_machine(environ: Mapping[str, str]) -> Host:
    """This machine as a host without a limit of slots, with its GPUs.

    Its GPUs are those of ``CUDA_VISIBLE_DEVICES``; as in CUDA, an id below 0 hides itself and all after it.
    Without that variable they are those of the driver, or those that ``nvidia-smi`` lists.

    Args:
        environ: of the launcher.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    gpus: tuple[str, ...] | None = None
    if visible is not None:
        ids = map(str.strip, visible.split(","))
        gpus = tuple(itertools.takewhile(lambda gpu: gpu and not gpu.startswith("-"), ids))
    elif os.path.isdir(_NVIDIA_DRIVER_FOLDER):
        gpus = tuple(str(index) for index, _ in enumerate(os.listdir(_NVIDIA_DRIVER_FOLDER)))
    if visible is None and not gpus and has_nvidia_smi():  # the driver of WSL has no such folder
        gpus = _listed_gpus() or gpus
    return Host("localhost", address="127.0.0.1", gpus=gpus)


def _listed_gpus() -> tuple[str, ...]:
    """The numbers of the GPUs that ``nvidia-smi`` lists; empty even if it fails, or takes too long."""
    import subprocess  # noqa: PLC0415 - only without a known driver

    command, nothing = (*NVIDIA_SMI, "--query-gpu=index"), subprocess.DEVNULL
    with suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.Popen(command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing)
        try:
            output = process.communicate(timeout=_SILENT_SECONDS)[0]
        except subprocess.TimeoutExpired:
            say("waiting for nvidia-smi, which counts the GPUs")
            try:
                output = process.communicate(timeout=GPU_TIMEOUT_SECONDS - _SILENT_SECONDS)[0]
            finally:
                process.kill()
                process.wait(_SILENT_SECONDS)  # limited: a driver that hangs keeps it in the kernel
        if process.returncode == 0:
            return read_gpus(output)
    say("nvidia-smi fails: the GPUs are not known; CUDA_VISIBLE_DEVICES=0,1 names them")
    return ()


class AgentFleet:
    """See `launcher.backends.connections.Fleet`. Local agents are forks of launch, the others have
    connections.

    Args:
        backend: makes the connections to other machines.
        request, allocation, placement, loop: see `launcher.backends.backend.Backend.hosts`.
        local_agents: whether tasks run under the agents; else the agents run remote commands only.
    """

    def __init__(
        self,
        backend: Backend,
        request: LaunchRequest,
        allocation: Allocation,
        placement: Placement,
        loop: EventLoop,
        agents: bool = True,
    ) -> None:
        self._backend, self._request, self._settings = backend, request, allocation.settings
        self._placement, self._loop, self._local_agents = placement, loop, agents
        used = {host.name for host in placement.agent_hosts()}
        hosts = [host for host in allocation.hosts if host.name in used]
        self._here = [host for host in hosts if host.name in allocation.here]
        self._remote = [host for host in hosts if host.name not in allocation.here]
        self.has_remote_hosts = bool(self._remote)
        self.local_agents: Sequence[int] = ()
        self.forwarding: Forwarding | None = None
        self._links: dict[str, AgentLink | TransportError] = {}
        self._reconnecting: dict[str, ReconnectingLink] = {}
        self._login_seconds: Mapping[str, float] = {}
        #: Runs programs without the agents of the hosts.
        self.programs = Programs(self._here, None)
        self._stack = ExitStack()

    def __enter__(self) -> AgentFleet:
        with ExitStack() as stack:
            stack.callback(self._close_links)
            # Forked first: a process with threads, as connections need them, can't be forked.
            for host in self._here if self._local_agents else ():
                try:
                    link = self._links[host.name] = fork_agent(host.name)
                    self.local_agents = (*self.local_agents, link.agent_id)
                except TransportError as error:
                    self._links[host.name] = error
            allow_descriptors(len(self._placement.tasks))  # their logs
            if self._remote:
                self._connect_remote(stack)
            self._stack = stack.pop_all()
        return self

    def _connect_remote(self, stack: ExitStack) -> None:
        request = self._request
        each = _DESCRIPTORS_PER_HOST + (_RELAY_DESCRIPTORS_PER_HOST if request.relay else 0)
        allow_descriptors(len(self._remote) * each)
        connecting = self._backend.connections(self._remote, self._settings, request.connect_settings)
        made = stack.enter_context(connecting)
        self.forwarding, self.programs = made.forwarding, Programs(self._here, made)
        self._login_seconds = made.login_seconds
        self._leave_out(made.failed)
        stack.callback(self._close_links)  # before the connections
        for host in self._remote:
            self._open_link(host.name)

    def _open_link(self, host: str) -> None:
        from launcher.backends.link import open_link  # noqa: PLC0415 - not for tasks on this machine

        request = self._request
        # Other links to the same hosts (to containers) report a lost connection, too.
        quiet = not self._local_agents
        brought, lease = request.run_name if request.files else "", request.connect_settings.lease
        stays, login = request.commands or not self._local_agents, self._login_seconds.get(host, 0.0)
        link = open_link(self._loop, host, self.programs, lease, brought, stays, login, quiet=quiet)
        self._links[host] = self._reconnecting[host] = link

    def _leave_out(self, failed: Mapping[str, str]) -> None:
        """Go on without hosts that can't be reached, if no task runs there.

        Raises:
            HostsError: tasks run there.
        """
        faults = {host: f"{host}: {why}" for host, why in failed.items()}
        if failed.keys() - {host.name for host in self._placement.standby}:
            raise HostsError(faults.values())
        self._links.update((host, TransportError(fault)) for host, fault in faults.items())
        self._remote = [host for host in self._remote if host.name not in failed]

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def _close_links(self) -> None:
        """End the agents whose links the job has not used, and those that run on after the job."""
        links = [link for link in list(self._links.values()) if not isinstance(link, TransportError)]
        self._links.clear()
        for link in links:
            link.shut_down()
        deadline = time.monotonic() + _LAST_WAIT_SECONDS
        for link in links:
            link.wait(max(0.0, deadline - time.monotonic()))
            link.close()

    @property
    def seconds_until_tasks_ended(self) -> float | None:
        """See `Fleet.seconds_until_tasks_ended`."""
        if self._backend.replaces_hosts:
            return 0.0
        return seconds_until_tasks_ended(self._request.connect_settings.lease)

    def running(self, placement: Placement) -> AbstractContextManager[Placement]:
        """See `Fleet.running`: the agents run already."""
        return nullcontext(placement)

    def link_to(self, host: Host) -> AgentLink:
        """See `Fleet.link_to`."""
        if host.name not in self._links:
            self._open_link(host.name)
        link = self._links[host.name]
        if isinstance(link, TransportError):
            raise link
        if not link.stays:
            del self._links[host.name]
        return link

    def recover(self, host: str) -> None:
        """See `Fleet.recover`."""
        if self._backend.replaces_hosts:
            self._backend.renew(host, self._settings)
        else:
            self.programs.reconnect(host)
            old = self._reconnecting.get(host)
            if old is not None and old.kill(_LAST_WAIT_SECONDS) is None:
                raise TransportError(f"{host}: its last agent can't be stopped")
        self._links.pop(host, None)
        self._reconnecting.pop(host, None)

    def with_addresses(self, placement: Placement) -> Placement:
        """See `Fleet.with_addresses`."""
        found = {host.name: self._with_address(host) for host in placement.hosts()}
        hosts = (found[placed.host.name] for placed in placement.tasks)
        tasks = (replace(placed, host=host) for placed, host in zip(placement.tasks, hosts, strict=True))
        return replace(placement, tasks=tuple(tasks))

    def _with_address(self, host: Host) -> Host:
        backend, settings = self._backend, self._settings
        address = backend.address(host, settings) or host.address
        return replace(host, address=address, node=backend.node(host, settings))

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `Fleet.run`: over the link to the host's agent, which survives broken connections."""
        link = self._links.get(host)
        if isinstance(link, TransportError):
            raise link
        running = self._reconnecting.get(host)
        if running is not None and not running.is_over:
            return running.run(entry, arguments)
        return self.programs.run(host, entry, arguments)

    def leftovers(self) -> Sequence[str]:
        """See `Fleet.leftovers`."""
        return ()


class Programs(Connections):
    """Runs programs of ours on this machine and on others, without an agent.

    Args:
        here: names of this machine.
        others: the connections to other machines; ``None``: there are none.
    """

    def __init__(self, here: Iterable[Host], others: Connections | None) -> None:
        self._here = frozenset(host.name for host in here)
        #: The connections to other machines; ``None``: there are none.
        self.others = others

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `launcher.backends.connections.ProgramRunner.run`."""
        if host in self._here:
            from launcher.backends.programs import run_here  # noqa: PLC0415 - with subprocess

            return run_here(host, entry, arguments)
        return self._to(host).run(host, entry, arguments)

    def reconnect(self, host: str) -> None:
        """See `launcher.backends.connections.Connections.reconnect`."""
        self._to(host).reconnect(host)

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """See `launcher.backends.connections.Connections.start_agent`."""
        return self._to(host).start_agent(host, arguments)

    def connect_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """See `launcher.backends.connections.Connections.connect_agent`."""
        return self._to(host).connect_agent(host, arguments)

    def kill_agent(self, host: str, agent_id: int) -> RemoteProgram:
        """See `launcher.backends.connections.Connections.kill_agent`."""
        return self._to(host).kill_agent(host, agent_id)

    def _to(self, host: str) -> Connections:
        if self.others is None or host in self._here:
            raise TransportError(f"{host}: there is no connection to it")
        return self.others


@contextmanager
def commands(
    backend: Backend,
    settings: Any,
    hosts: Sequence[Host],
    connect_settings: ConnectSettings,
) -> Iterator[tuple[Programs, Mapping[str, str]]]:
    """Connections for remote commands without a job.

    Args:
        backend, settings: make the connections to other machines.
        hosts: this machine, and others.
        connect_settings: see `launcher.backends.backend.Backend.connections`.

    Yields:
        An object that runs the commands; and by name, the reasons why hosts can't be reached.
    """
    remote = [host for host in hosts if not is_here(host)]
    if not remote:
        yield Programs(hosts, None), {}
        return
    with backend.connections(remote, settings, connect_settings) as made:
        yield Programs(filter(is_here, hosts), made), made.failed


def allow_descriptors(count: int) -> None:
    """Raise the soft limit of open files, if it is too low for this number and for other files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))

"""The machines of a launch, this one and others, and the links to their agents."""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from launcher.agent.host import GPU_TIMEOUT_SECONDS, NVIDIA_SMI, read_gpus
from launcher.agent.lookup import is_command
from launcher.backends.connections import (
    AgentArguments,
    AgentLink,
    Connections,
    Forwarding,
    seconds_until_tasks_ended,
)
from launcher.backends.local import fork_agent
from launcher.common.errors import HostsError, TransportError
from launcher.config.table import LEASE, RELAY
from launcher.event_loop import EventLoop
from launcher.job import Host, Placement
from launcher.messages import say

if TYPE_CHECKING:  # a launch on this machine needs neither links that reconnect nor remote programs
    from launcher.backends.backend import Allocation
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
#: Seconds for agents that are not needed, or no longer needed, to end.
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
    if visible is None and not gpus and is_command(NVIDIA_SMI[0]):  # the driver of WSL has no such folder
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
            output = process.communicate(timeout=GPU_TIMEOUT_SECONDS - _SILENT_SECONDS)[0]
        finally:
            process.kill()
            process.wait(_SILENT_SECONDS)  # limited: a driver that hangs keeps it in the kernel
        if process.returncode == 0:
            return read_gpus(output)
    say("nvidia-smi fails: the GPUs are not known; CUDA_VISIBLE_DEVICES=0,1 names them")
    return ()


class HostPrograms:
    """Runs programs of ours on hosts without agents: here in a child process, elsewhere over a connection.

    It is a context: entering it connects to the other machines among the hosts.

    Args:
        allocation: Connects to the hosts.
        hosts: Some of its hosts.
    """

    def __init__(self, allocation: Allocation, hosts: Iterable[Host]) -> None:
        self._allocation = allocation
        #: The names of hosts that are this machine.
        self.local = allocation.local
        self.remote = [host for host in hosts if host.name not in self.local]
        #: The connections to other machines.
        self.connections = Connections()
        #: Host -> why it cannot be reached.
        self.failed: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> HostPrograms:
        if self.remote:
            self.connections = self._stack.enter_context(self._allocation.connect(self.remote))
            self.failed = {**self.connections.failed}
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `launcher.backends.connections.ProgramRunner.run`."""
        if host in self.local:
            from launcher.backends.programs import run_here  # noqa: PLC0415 - with subprocess

            return run_here(host, entry, arguments)
        if host in self.failed:
            raise TransportError(f"{host}: {self.failed[host]}")
        return self.connections.run(host, entry, arguments)

    def reconnect(self, host: str) -> None:
        """See `launcher.backends.connections.Connections.reconnect`."""
        if host in self.local:
            raise TransportError(f"{host}: there is no connection to it")
        self.connections.reconnect(host)
        self.failed.pop(host, None)


class AgentFleet:
    """An agent on each host; see `launcher.backends.connections.Fleet`.

    The agents of this machine are forks of launch, the others are reached over connections.

    Args:
        allocation: Connects to the hosts.
        placement: The tasks, each with its host, and the hosts that stand by.
        loop: Drives the links to the agents.
        runs_tasks: Whether the agents run tasks. Otherwise they run programs of ours only, and there is none
            on this machine.
    """

    def __init__(
        self, allocation: Allocation, placement: Placement, loop: EventLoop, *, runs_tasks: bool = True
    ) -> None:
        self._allocation, self._placement, self._loop = allocation, placement, loop
        self._request, self._runs_tasks = allocation.request, runs_tasks
        self._lease = allocation.request.settings[LEASE]
        used = {host.name for host in placement.agent_hosts()}
        hosts = [host for host in allocation.hosts if host.name in used]
        #: Runs programs without the agents.
        self.programs = HostPrograms(allocation, hosts)
        self._local = [host for host in hosts if host.name in allocation.local]
        self.has_remote_hosts = bool(self.programs.remote)
        self.local_agents: Sequence[int] = ()
        self._links: dict[str, AgentLink | TransportError] = {}
        self._reconnecting: dict[str, ReconnectingLink] = {}
        self._stack = ExitStack()

    def __enter__(self) -> AgentFleet:
        with ExitStack() as stack:
            stack.callback(self._close_links)
            # Forked first: a process with threads, as connections need them, cannot be forked.
            for host in self._local if self._runs_tasks else ():
                try:
                    link = self._links[host.name] = fork_agent(host.name)
                    self.local_agents = (*self.local_agents, link.agent_id)
                except TransportError as error:
                    self._links[host.name] = error
            allow_descriptors(len(self._placement.tasks))  # their logs
            if self.has_remote_hosts:
                self._connect(stack)
            self._stack = stack.pop_all()
        return self

    def _connect(self, stack: ExitStack) -> None:
        has_relay = self._request.settings[RELAY] is not None
        each = _DESCRIPTORS_PER_HOST + (_RELAY_DESCRIPTORS_PER_HOST if has_relay else 0)
        allow_descriptors(len(self.programs.remote) * each)
        stack.enter_context(self.programs)
        self._leave_out(self.programs.failed)
        stack.callback(self._close_links)  # before the connections
        for host in self.programs.remote:
            if host.name not in self.programs.failed:
                self._open_link(host.name)

    def _open_link(self, host: str) -> None:
        from launcher.backends.link import ReconnectingLink  # noqa: PLC0415 - not for tasks on this machine

        request = self._request
        run_name = request.run_name if request.copies_files else ""
        self._links[host] = self._reconnecting[host] = ReconnectingLink(
            self._loop,
            self.programs.connections,
            AgentArguments.new(host, self._lease, run_name),
            stays=request.runs_programs or not self._runs_tasks,
            # Other links to the same hosts (to containers) report a lost connection, too.
            quiet=not self._runs_tasks,
        )

    def _leave_out(self, failed: Mapping[str, str]) -> None:
        """Go on without hosts that cannot be reached, if no task runs there.

        Raises:
            HostsError: Tasks run there.
        """
        faults = {host: f"{host}: {why}" for host, why in failed.items()}
        if failed.keys() - {host.name for host in self._placement.standby}:
            raise HostsError(faults.values())
        self._links.update((host, TransportError(fault)) for host, fault in faults.items())

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
    def forwarding(self) -> Forwarding | None:
        """See `Fleet.forwarding`."""
        return self.programs.connections.forwarding

    @property
    def seconds_until_tasks_ended(self) -> float | None:
        """See `Fleet.seconds_until_tasks_ended`."""
        return 0.0 if self._allocation.replaces_hosts else seconds_until_tasks_ended(self._lease)

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
        if self._allocation.replaces_hosts:
            self._allocation.replace_host(host)
        else:
            self.programs.reconnect(host)
            old = self._reconnecting.get(host)
            if old is not None and old.kill(_LAST_WAIT_SECONDS) is None:
                raise TransportError(f"{host}: its last agent cannot be stopped")
        self._links.pop(host, None)
        self._reconnecting.pop(host, None)

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


def allow_descriptors(count: int) -> None:
    """Raise the soft limit of open files, if it is too low for this number and for other files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))

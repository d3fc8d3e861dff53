"""The hosts of a launch, this machine and others, and the links to the agents on them.

A launch over SSH or Slurm runs its job through `AgentFleet`; ``launch check`` and copies of files before the
job use `HostPrograms`. Agents of this machine are forked before anything starts a thread.
"""

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

if TYPE_CHECKING:  # A launch on this machine needs neither links that reconnect nor remote programs.
    from launcher.backends.backend import Allocation
    from launcher.backends.link import ReconnectingLink
    from launcher.backends.programs import RemoteProgram

#: The file descriptors that each remote host may need in this process.
_DESCRIPTORS_PER_HOST = 16
#: The further descriptors of a host whose tasks can connect to this machine.
_RELAY_DESCRIPTORS_PER_HOST = 64
#: The descriptors that serve neither a host nor a log.
_OTHER_DESCRIPTORS = 256
#: The folder in which the driver has an entry for each GPU.
_NVIDIA_DRIVER_FOLDER = "/proc/driver/nvidia/gpus"
#: The user is told about nvidia-smi only if it takes longer than this.
_SILENT_SECONDS = 2.0
#: The time for agents to end that are not needed, or no longer needed.
_LAST_WAIT_SECONDS = 10.0


def this_machine(environ: Mapping[str, str]) -> Host:
    """Return this machine as a host with its GPUs and without a limit of slots.

    The GPUs are those of ``CUDA_VISIBLE_DEVICES``. As in CUDA, an id below 0 hides itself and all ids after
    it. Without that variable they are the GPUs of the driver, or those that ``nvidia-smi`` lists.

    Args:
        environ: The environment of the launcher.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    gpus: tuple[str, ...] | None = None  # None: they are not known.
    if visible is not None:
        ids = map(str.strip, visible.split(","))
        gpus = tuple(itertools.takewhile(lambda gpu: gpu and not gpu.startswith("-"), ids))
    elif os.path.isdir(_NVIDIA_DRIVER_FOLDER):
        gpus = tuple(map(str, range(len(os.listdir(_NVIDIA_DRIVER_FOLDER)))))
    # The driver of WSL has no such folder, but nvidia-smi lists its GPUs.
    if visible is None and not gpus and is_command(NVIDIA_SMI[0]):
        gpus = _listed_gpus() or gpus
    return Host("localhost", address="127.0.0.1", gpus=gpus)


def _listed_gpus() -> tuple[str, ...]:
    """Return the numbers of the GPUs that ``nvidia-smi`` lists.

    Returns:
        The numbers. Empty if nvidia-smi fails or is too slow, about which the user is told.
    """
    import subprocess  # noqa: PLC0415 - slow, and only needed if no folder of the driver lists the GPUs

    command, null = (*NVIDIA_SMI, "--query-gpu=index"), subprocess.DEVNULL
    with suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null)
        try:
            output, _ = process.communicate(timeout=_SILENT_SECONDS)
        except subprocess.TimeoutExpired:
            say("waiting for nvidia-smi, which counts the GPUs")
            output, _ = process.communicate(timeout=GPU_TIMEOUT_SECONDS - _SILENT_SECONDS)
        finally:
            process.kill()
            # This wait is limited because a driver that hangs keeps the process in the kernel.
            process.wait(_SILENT_SECONDS)
        if process.returncode == 0:
            return read_gpus(output)
    say("nvidia-smi fails: the GPUs are not known; CUDA_VISIBLE_DEVICES=0,1 names them")
    return ()


class HostPrograms:
    """Runs our own programs on hosts without agents: on this machine as children, elsewhere over connections.

    It is a context. Entering it connects to those hosts that are other machines.

    Args:
        allocation: The allocation, which makes the connections.
        hosts: Some of its hosts.
    """

    def __init__(self, allocation: Allocation, hosts: Iterable[Host]) -> None:
        """Sort the hosts into this machine and others. Nothing is connected yet."""
        self._allocation = allocation
        #: The names of the hosts that are this machine.
        self.local = allocation.local
        #: The hosts that are other machines.
        self.remote = [host for host in hosts if host.name not in self.local]
        #: The connections to other machines.
        self.connections = Connections()
        #: The reason why a host cannot be reached, by the name of the host.
        self.failed: dict[str, str] = {}
        #: What must be left at the end: the context of the connections, if there are any.
        self._stack = ExitStack()

    def __enter__(self) -> HostPrograms:
        """Connect to those hosts that are other machines. `failed` names the ones that cannot be reached.

        Without such hosts, nothing is connected.
        """
        if self.remote:
            self.connections = self._stack.enter_context(self._allocation.connect(self.remote))
            self.failed = {**self.connections.failed}
        return self

    def __exit__(self, *details: Any) -> None:
        """Close the connections."""
        self._stack.__exit__(*details)

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program of ours on a host: on this machine as a child, elsewhere over a connection.

        ``entry`` names a function of ours, as ``module:function``, which is called there with the arguments.

        Raises:
            TransportError: The host cannot be reached.
        """
        if host in self.local:
            from launcher.backends.programs import run_here  # noqa: PLC0415 - imports subprocess

            return run_here(host, entry, arguments)
        if host in self.failed:
            raise TransportError(f"{host}: {self.failed[host]}")
        return self.connections.run(host, entry, arguments)

    def reconnect(self, host: str) -> None:
        """Connect to a host again.

        Raises:
            TransportError: The host is this machine, or it cannot be reached.
        """
        if host in self.local:
            raise TransportError(f"{host}: there is no connection to it")
        self.connections.reconnect(host)
        self.failed.pop(host, None)


class AgentFleet:
    """A `launcher.backends.connections.Fleet` with one agent on each host.

    The agents of this machine are forks of launch. The others are reached over connections.

    Args:
        allocation: The allocation, which makes the connections.
        placement: The tasks, each with its host, and the hosts that stand by.
        loop: The loop that drives the links to the agents.
        runs_tasks: Whether the agents run tasks. Otherwise they only run our own programs, and this machine
            gets no agent.
    """

    def __init__(
        self, allocation: Allocation, placement: Placement, loop: EventLoop, *, runs_tasks: bool = True
    ) -> None:
        """Prepare agents for the hosts that the placement uses. None is started yet."""
        self._allocation, self._placement, self._loop = allocation, placement, loop
        self._request, self._runs_tasks = allocation.request, runs_tasks
        #: The seconds after which a silent host is given up.
        self._lease = allocation.request.settings[LEASE]
        used = {host.name for host in placement.agent_hosts()}
        hosts = [host for host in allocation.hosts if host.name in used]
        #: What runs our programs without the agents.
        self.programs = HostPrograms(allocation, hosts)
        #: The hosts that are this machine, which get forked agents.
        self._local = [host for host in hosts if host.name in allocation.local]
        #: Whether any host is another machine.
        self.has_remote_hosts = bool(self.programs.remote)
        #: The ids of the agents that were forked.
        self.local_agents: Sequence[int] = ()
        #: The link to the agent of each host, or why there is none. `link_to` takes a link out if it gives it
        #: to its caller for good.
        self._links: dict[str, AgentLink | TransportError] = {}
        #: The links to the present agents of other machines, even if `link_to` has given them away.
        self._reconnecting_links: dict[str, ReconnectingLink] = {}
        #: What must be done at the end: close the links, then the connections.
        self._stack = ExitStack()

    def __enter__(self) -> AgentFleet:
        """Fork the agents of this machine, then connect to the other hosts and open links to their agents.

        Raises:
            HostsError: Hosts on which tasks run cannot be reached. An agent that cannot be forked is reported
                later, by `link_to`.
        """
        with ExitStack() as stack:
            stack.callback(self._close_links)
            # The forks come first, because connections need threads, and a process with threads cannot be
            # forked. Our own programs need no agent on this machine.
            for host in self._local if self._runs_tasks else ():
                try:
                    link = self._links[host.name] = fork_agent(host.name)
                    self.local_agents = (*self.local_agents, link.agent_id)
                except TransportError as error:
                    self._links[host.name] = error
            allow_descriptors(len(self._placement.tasks))  # Each task has a log.
            if self.has_remote_hosts:
                self._connect(stack)
            self._stack = stack.pop_all()
        return self

    def _connect(self, stack: ExitStack) -> None:
        """Connect to the hosts that are other machines, and open a link to an agent on each."""
        # With a relay, tasks on other machines can connect to this one, which takes descriptors, too.
        has_relay = self._request.settings[RELAY] is not None
        descriptors_per_host = _DESCRIPTORS_PER_HOST + (_RELAY_DESCRIPTORS_PER_HOST if has_relay else 0)
        allow_descriptors(len(self.programs.remote) * descriptors_per_host)
        stack.enter_context(self.programs)
        self._leave_out(self.programs.failed)  # It raises an error if tasks should run on one of these.
        stack.callback(self._close_links)  # The links must close before the connections do.
        for host in self.programs.remote:
            if host.name not in self.programs.failed:
                self._open_link(host.name)

    def _open_link(self, host: str) -> None:
        """Open the link to a new agent of a host, which starts in the background."""
        from launcher.backends.link import ReconnectingLink  # noqa: PLC0415 - not for tasks on this machine

        request = self._request
        # The agent guards the files of the run on its host, if there are any.
        run_name = request.run_name if request.copies_files else ""
        self._links[host] = self._reconnecting_links[host] = ReconnectingLink(
            self._loop,
            self.programs.connections,
            AgentArguments.new(host, self._lease, run_name),
            # After the job, programs may still have to run, for example to copy files.
            stays=request.runs_programs or not self._runs_tasks,
            # Other links to the same hosts (to containers) report a lost connection, too.
            quiet=not self._runs_tasks,
        )

    def _leave_out(self, failed: Mapping[str, str]) -> None:
        """Go on without hosts that cannot be reached, if no task runs on them.

        `link_to` raises the error of such a host.

        Args:
            failed: The reason why a host cannot be reached, by the name of the host.

        Raises:
            HostsError: Tasks should run on one of them.
        """
        messages = {host: f"{host}: {reason}" for host, reason in failed.items()}
        # Standby hosts get tasks only when another host is lost.
        if failed.keys() - {host.name for host in self._placement.standby}:
            raise HostsError(messages.values())
        self._links.update((host, TransportError(message)) for host, message in messages.items())

    def __exit__(self, *details: Any) -> None:
        """End the agents that are still linked, then close the connections to their hosts."""
        self._stack.__exit__(*details)

    def _close_links(self) -> None:
        """End the agents whose links nobody has taken over: unused ones, and those that stay after the job.

        This waits for a limited time for them to end.
        """
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
        """What forwards ports of the remote hosts. None if their connections forward no ports."""
        return self.programs.connections.forwarding

    @property
    def seconds_until_tasks_ended(self) -> float | None:
        """How long a task of a lost host may still be alive: until its agent, which hears nothing, stops it.

        It is 0 if `recover` replaces the host, because `recover` itself waits until the old host and its
        tasks are gone. It is never None here, which would mean that such tasks cannot start again.
        """
        return 0.0 if self._allocation.replaces_hosts else seconds_until_tasks_ended(self._lease)

    def running(self, placement: Placement) -> AbstractContextManager[Placement]:
        """Return a context that does nothing, because the agents run already."""
        return nullcontext(placement)

    def link_to(self, host: Host) -> AgentLink:
        """Return the link to the agent of a host. After `recover`, open a link to a new agent.

        A link whose agent ends with the job now belongs to the caller. Of an agent that stays for later
        programs, this object keeps the link.

        Raises:
            TransportError: The host cannot be reached, or its agent cannot be forked.
        """
        if host.name not in self._links:
            self._open_link(host.name)
        link = self._links[host.name]
        if isinstance(link, TransportError):
            raise link
        if not link.stays:
            del self._links[host.name]
        return link

    def recover(self, host: str) -> None:
        """Make a lost host usable again: replace it, or connect to it again and kill its last agent.

        This blocks. Later `link_to` opens a link to a new agent.

        Raises:
            TransportError: The host cannot be used now.
        """
        if self._allocation.replaces_hosts:
            self._allocation.replace_host(host)
        else:
            self.programs.reconnect(host)
            last_link = self._reconnecting_links.get(host)
            if last_link is not None and last_link.kill(_LAST_WAIT_SECONDS) is None:
                raise TransportError(f"{host}: its last agent cannot be stopped")
        # Without a link in these tables, `link_to` opens a new one.
        self._links.pop(host, None)
        self._reconnecting_links.pop(host, None)

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program of ours on a host, over the link to its agent if there is one.

        Such a program survives a broken connection. Without an open link to an agent that stays, the
        program gets a connection of its own. ``entry`` names a function of ours, as ``module:function``,
        which is called there with the arguments.
        """
        # If the link could not be made, the error stands in its place.
        error = self._links.get(host)
        if isinstance(error, TransportError):
            raise error
        link = self._reconnecting_links.get(host)
        if link is not None and not link.is_over:
            return link.run(entry, arguments)
        return self.programs.run(host, entry, arguments)

    def leftovers(self) -> Sequence[str]:
        """Return no lines, because nothing stays on the hosts after the job."""
        return ()


def allow_descriptors(count: int) -> None:
    """Raise the soft limit of open files if it is too low for ``count`` descriptors beside the usual ones.

    It is never raised above the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        new_soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_soft, hard))

"""The interface of transports; and the machines of a launch, with the links to their agents."""

import argparse
import itertools
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol

from launcher.agent.host import GPU_SECONDS, NVIDIA_SMI, has_nvidia_smi, read_gpus
from launcher.errors import Fault, HostsError, TransportError
from launcher.job import Host, JobSpec, Placement, is_loopback
from launcher.loop import Loop
from launcher.record import Record
from launcher.scheduler.placement import place
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.transports.base import Connections, Hosts, Link, RemoteCommand
from launcher.transports.local import fork_agent

if TYPE_CHECKING:  # a launch on this machine needs neither links that reconnect nor remote commands
    from launcher.config.schema import Section
    from launcher.transports.link import ReconnectingLink

#: File descriptors that a host may take here, and how many more if its tasks can connect to us.
_DESCRIPTORS, _RELAY_DESCRIPTORS = 16, 64
#: Those that are not for a host or a log.
_OTHER_DESCRIPTORS = 256
#: A folder with an entry for each GPU.
_DRIVER = "/proc/driver/nvidia/gpus"
#: Seconds without a word to the user.
_SILENT = 2.0
#: Seconds for agents that are not needed, or not any more, to end.
_LAST_WAIT = 10.0


class Request(Record):
    """The part of the options that a transport's plan depends on."""

    job: JobSpec
    #: The inventory: the hosts that are named, else this machine.
    hosts: tuple[Host, ...]
    #: Whether ``--hosts`` or the job file names the hosts.
    named: bool = False
    #: The settings of each transport, by its name.
    settings: Mapping[str, Any] = {}
    #: Whether the user gives ``--python``, and ``--workdir``, or their keys in the job file.
    python_given: bool = False
    workdir_given: bool = False


class Planned(Record):
    """The plan of a transport: the host of each task."""

    job: JobSpec
    placement: Placement
    #: Names of hosts that have the files of this machine: nothing is copied to them.
    local: frozenset[str] = frozenset()
    #: Whether tasks run as another user, so that their output folders must be writable by all.
    other_user: bool = False
    #: Makes the placement that a dry run shows; and lines for the dry run.
    shown: Callable[[Placement], Placement] = lambda placement: placement
    remarks: tuple[str, ...] = ()
    #: Data of the transport for the launch.
    details: Any = None


class Launch(Record):
    """A launch, as its transport gets it."""

    #: The id of the job.
    name: str
    request: Request
    planned: Planned
    #: The settings of the transport.
    settings: Any
    #: Drives the links to the hosts.
    loop: Loop
    #: Gets lines for the user; any thread may call it.
    notice: Callable[[str], None]
    #: See `launcher.job_run.interrupts.Interrupts.ignore`.
    ignore_signals: Callable[[], None]
    #: Whether remote commands run before or after the job.
    commands: bool = False
    #: Whether files of the run are copied to the hosts.
    files: bool = False
    #: The unix socket to which a port of each host is forwarded; ``None``: there is none.
    relay: str | None = None


class LaunchHosts(Protocol):
    """The hosts of a launch, as a context: at its end no agent or task is left there."""

    #: Number, and pid of the watchdog, of each agent on this machine.
    agents: Sequence[tuple[int, int]]
    #: Whether other machines are among the hosts.
    others: bool

    @property
    def tasks_end(self) -> float | None:
        """Seconds from the loss of a host until its tasks have ended; ``None``: tasks can't move.

        0: `reach` ends them, and makes the host anew.
        """

    def run(self, host: str, entry: str, arguments: object) -> RemoteCommand:
        """Run a remote command; see `launcher.transports.base.Hosts.run`."""

    def started(self, placement: Placement) -> AbstractContextManager[Placement]:
        """A context during which tasks can run, with the final placement.

        Raises:
            TransportError: on entering: a host can't be used.
        """

    def open(self, host: Host) -> Link:
        """The link to the agent of a host; after `reach` to a new agent.

        Raises:
            TransportError: there is none.
        """

    def reach(self, host: str) -> None:
        """Make a host usable again whose agent is lost. Blocks; any thread may call it.

        Raises:
            TransportError: it can't be used now.
        """

    def relay(self, socket: str) -> Mapping[str, int]:
        """Forward a port on the loopback address of each host to a unix socket here; the ports by host."""

    def local_port(self, host: str, port: int, preferred: Sequence[int]) -> int | None:
        """A port of this machine's loopback address that leads to a port of the host's loopback address.

        A later call makes the same port lead to another host. Does not block.

        Args:
            host: its name.
            port: there.
            preferred: ports of this machine to try first.

        Returns:
            The port; ``None``: the host is a container that this machine reaches by its address.

        Raises:
            TransportError: the transport forwards no ports, or this machine has no port.
        """

    def kept(self) -> Sequence[str]:
        """Lines about containers or files that stay after the job, at the user's request."""


class Transport:
    """A way to start agents on hosts and to connect to them. A transport overrides methods that differ.

    `launcher.transports.TRANSPORTS` names its module, in which ``TRANSPORT`` is an object of the class.
    """

    #: Whether tasks see the files of an image, not those of a host.
    in_containers = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add its options to the command line."""

    def settings(self, args: argparse.Namespace, section: Any, folder: str) -> Any:
        """Make the settings from its options and its key of the job file.

        Args:
            args: the parsed options.
            section: the value of its key, read as `sections` defines; ``None``: the job file has none.
            folder: of the job file: paths in the file are relative to it.

        Returns:
            The settings; ``None``: the launch does not use this transport.
        """

    def sections(self) -> Mapping[str, "Section"]:
        """Its keys of job files."""
        return {}

    def faults(self, args: argparse.Namespace, settings: Any) -> Iterable[Fault]:
        """The faults of its options."""
        return ()

    def plan(self, request: Request) -> Planned:
        """Give each task a host, without connecting to hosts.

        Raises:
            InputError: the tasks do not fit the hosts.
        """
        return Planned(request.job, place(request.job, request.hosts))

    def hosts(self, launch: Launch) -> AbstractContextManager[LaunchHosts]:
        """Connect to the hosts of a launch.

        Raises:
            TransportError: on entering: hosts can't be reached.
        """
        raise NotImplementedError

    def cleanup(
        self, hosts: Sequence[Host], commands: Hosts, notice: Callable[[str], None], dry_run: bool
    ) -> Iterable[str]:
        """For ``launch clean``: remove what this user's launches left that have ended.

        Args:
            hosts: the hosts; empty: this machine.
            commands: runs remote commands on these hosts.
            notice: gets lines for the user.
            dry_run: remove nothing.

        Returns:
            A line for each removed object.

        Raises:
            HostsError: after the last line: objects that can't be removed, hosts that can't be reached.
        """
        return ()


class CommandTransport(Transport):
    """A transport by two command lines: one starts our program on a host, one connects to it again."""

    def start(self, host: Host, settings: Any) -> Sequence[str]:
        """The command line that starts the agent of a host: it runs `bootstrap.COMMAND` there in a shell."""
        raise NotImplementedError

    def connect(self, host: Host, settings: Any) -> Sequence[str]:
        """The command line that connects to a running agent."""
        return self.start(host, settings)

    def plan(self, request: Request) -> Planned:
        """See `Transport.plan`: no host is this machine."""
        hosts = tuple(host._replace(python=host.python or DEFAULT_PYTHON) for host in request.hosts)
        return Planned(request.job, place(request.job, hosts))

    def hosts(self, launch: Launch) -> "Machines":
        """See `Transport.hosts`."""
        from launcher.transports.command import CommandHosts
        from launcher.transports.link import START

        settings = launch.settings
        hosts = {host.name: host for host in launch.planned.placement.agent_hosts()}

        def command(name: str, entry: str) -> Sequence[str]:
            return (self.start if entry == START else self.connect)(hosts[name], settings)

        connections = CommandHosts(command, lambda name: hosts[name].python or DEFAULT_PYTHON)
        return Machines(launch, lambda _: connections)


# ---------------------------------------------------------------------- machines


def this_machine(environ: Mapping[str, str], notice: Callable[[str], None]) -> Host:
    """This machine as a host without a limit of slots, with its GPUs.

    Its GPUs are those of ``CUDA_VISIBLE_DEVICES``; as in CUDA, an id below 0 hides itself and all after it.
    Without that variable they are those of the driver, or those that ``nvidia-smi`` lists.

    Args:
        environ: of the launcher.
        notice: prints that ``nvidia-smi`` is slow, or fails.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    gpus: tuple[str, ...] | None = None
    if visible is not None:
        ids = map(str.strip, visible.split(","))
        gpus = tuple(itertools.takewhile(lambda gpu: gpu and not gpu.startswith("-"), ids))
    elif os.path.isdir(_DRIVER):
        gpus = tuple(str(index) for index, _ in enumerate(os.listdir(_DRIVER)))
    if visible is None and not gpus and has_nvidia_smi():  # the driver of WSL has no such folder
        gpus = _listed_gpus(notice) or gpus
    return Host("localhost", address="127.0.0.1", gpus=gpus)


def _listed_gpus(notice: Callable[[str], None]) -> tuple[str, ...]:
    """The numbers of the GPUs that ``nvidia-smi`` lists; empty even if it fails, or takes too long."""
    import subprocess

    command, nothing = (*NVIDIA_SMI, "--query-gpu=index"), subprocess.DEVNULL
    with suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.Popen(command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing)
        try:
            output = process.communicate(timeout=_SILENT)[0]
        except subprocess.TimeoutExpired:
            notice("waiting for nvidia-smi, which counts the GPUs")
            try:
                output = process.communicate(timeout=GPU_SECONDS - _SILENT)[0]
            finally:
                process.kill()
                process.wait(_SILENT)  # limited: a driver that hangs keeps it in the kernel
        if process.returncode == 0:
            return read_gpus(output)
    notice("nvidia-smi fails: the GPUs are not known; CUDA_VISIBLE_DEVICES=0,1 names them")
    return ()


def is_here(host: Host) -> bool:
    """Whether a host is this machine, according to its name; its tasks are started without SSH."""
    if host.user is not None or host.port is not None:
        return False
    name = os.uname().nodename
    return is_loopback(host.name) or host.name in (name, name.partition(".")[0])


class Connecting(Connections, AbstractContextManager[Any], Protocol):
    """Connections to hosts that a transport makes."""

    def connect(self) -> None:
        """Connect to all hosts.

        Raises:
            HostsError: hosts can't be reached; it has the reason for each.
        """

    def relay(self, path: str, notice: Callable[[str], None]) -> dict[str, int]:
        """See `LaunchHosts.relay`."""

    def local_port(
        self, host: str, port: int, preferred: Sequence[int], notice: Callable[[str], None]
    ) -> int:
        """See `LaunchHosts.local_port`."""


class Machines:
    """See `LaunchHosts`. Local agents are forks of the launcher, the others have connections.

    Args:
        launch: the launch.
        connections: makes the connections to other machines.
        lease: seconds that the tasks of a host run after a lost connection.
        agents: whether tasks run under the agents; else the agents run remote commands only.
    """

    def __init__(
        self,
        launch: Launch,
        connections: Callable[[Sequence[Host]], Connecting],
        lease: float = 60.0,
        agents: bool = True,
    ) -> None:
        self._launch, self._connect, self._lease, self._agents = launch, connections, lease, agents
        hosts = launch.planned.placement.agent_hosts()
        self._here = [host for host in hosts if host.name in launch.planned.local]
        self._remote = [host for host in hosts if host.name not in launch.planned.local]
        self.others = bool(self._remote)
        self.agents: Sequence[tuple[int, int]] = ()
        self._links: dict[str, Link | TransportError] = {}
        self._reconnecting: dict[str, ReconnectingLink] = {}
        self._connections: Connecting | None = None
        #: Runs programs without the agents of the hosts.
        self.programs = Programs(self._here, None)
        self._stack = ExitStack()

    def __enter__(self) -> "Machines":
        with ExitStack() as stack:
            stack.callback(self._close_links)
            # Forked first: a process with threads, as connections need them, can't be forked.
            for host in self._here if self._agents else ():
                try:
                    link = self._links[host.name] = fork_agent(host.name)
                    self.agents = (*self.agents, (link.number, link.pid))
                except TransportError as error:
                    self._links[host.name] = error
            allow_descriptors(len(self._launch.planned.placement.tasks))  # their logs
            if self._remote:
                self._connect_remote(stack)
            self._stack = stack.pop_all()
        return self

    def _connect_remote(self, stack: ExitStack) -> None:
        launch = self._launch
        each = _DESCRIPTORS + (_RELAY_DESCRIPTORS if launch.relay else 0)
        allow_descriptors(len(self._remote) * each)
        connections: Connecting = stack.enter_context(self._connect(self._remote))
        self._connections, self.programs = connections, Programs(self._here, connections)
        try:
            connections.connect()
        except KeyboardInterrupt:
            launch.notice("Ctrl-C: nothing was started")
            raise
        except HostsError as error:
            self._leave_out(error)
        stack.callback(self._close_links)  # before the connections
        for host in self._remote:
            self._open_link(host.name, connections)

    def _open_link(self, host: str, connections: Connections) -> None:
        from launcher.transports.link import open_link

        launch = self._launch
        # Other links to the same hosts (to containers) report a lost connection, too.
        notice = launch.notice if self._agents else lambda _: None
        brought = launch.name if launch.files else ""
        stays = launch.commands or not self._agents
        link = open_link(launch.loop, host, connections, notice, self._lease, brought, stays)
        self._links[host] = self._reconnecting[host] = link

    def _leave_out(self, error: HostsError) -> None:
        """Go on without hosts that can't be reached, if no task runs there.

        Raises:
            HostsError: tasks run there.
        """
        failed = {fault.partition(": ")[0]: fault for fault in error.faults}
        if failed.keys() - {host.name for host in self._launch.planned.placement.standby}:
            raise error
        self._links.update((host, TransportError(fault)) for host, fault in failed.items())
        self._remote = [host for host in self._remote if host.name not in failed]

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def _close_links(self) -> None:
        """End the agents whose links the job has not used, and those that run on after the job."""
        links = [link for link in list(self._links.values()) if not isinstance(link, TransportError)]
        self._links.clear()
        for link in links:
            link.hang_up()
        deadline = time.monotonic() + _LAST_WAIT
        for link in links:
            link.wait(max(0.0, deadline - time.monotonic()))
            link.close()

    @property
    def tasks_end(self) -> float | None:
        """See `LaunchHosts.tasks_end`."""
        from launcher.transports.link import tasks_end_after

        return tasks_end_after(self._lease)

    def started(self, placement: Placement) -> AbstractContextManager[Placement]:
        """See `LaunchHosts.started`: the agents run already."""
        return nullcontext(placement)

    def open(self, host: Host) -> Link:
        """See `LaunchHosts.open`."""
        if host.name not in self._links and self._connections is not None:
            self._open_link(host.name, self._connections)
        link = self._links[host.name]
        if isinstance(link, TransportError):
            raise link
        if not link.stays:
            del self._links[host.name]
        return link

    def reach(self, host: str) -> None:
        """See `LaunchHosts.reach`."""
        self.programs.reconnect(host)
        old = self._reconnecting.get(host)
        if old is not None and old.kill(_LAST_WAIT) is None:
            raise TransportError(f"{host}: its last agent can't be stopped")
        self._links.pop(host, None)
        self._reconnecting.pop(host, None)

    def run(self, host: str, entry: str, arguments: object) -> RemoteCommand:
        """See `LaunchHosts.run`: over the link to the host's agent, which survives broken connections."""
        link = self._links.get(host)
        if isinstance(link, TransportError):
            raise link
        running = self._reconnecting.get(host)
        if running is not None and not running.over:
            return running.command(entry, arguments)
        return self.programs.run(host, entry, arguments)

    def relay(self, socket: str) -> Mapping[str, int]:
        """See `LaunchHosts.relay`."""
        connections = self._connections
        return {} if connections is None else connections.relay(socket, self._launch.notice)

    def local_port(self, host: str, port: int, preferred: Sequence[int]) -> int:
        """See `LaunchHosts.local_port`."""
        if self._connections is None or host in self._launch.planned.local:
            return port
        return self._connections.local_port(host, port, preferred, self._launch.notice)

    def kept(self) -> Sequence[str]:
        """See `LaunchHosts.kept`."""
        return ()


class Programs:
    """Runs programs of ours on this machine and on others, without an agent.

    Args:
        here: names of this machine.
        others: the connections to other machines; ``None``: there are none.
    """

    def __init__(self, here: Iterable[Host], others: Connections | None) -> None:
        self._here = frozenset(host.name for host in here)
        self._others = others

    def run(self, host: str, entry: str, arguments: object) -> RemoteCommand:
        """See `launcher.transports.base.Hosts.run`."""
        return self._on(host).run(host, entry, arguments)

    def reconnect(self, host: str) -> None:
        """See `launcher.transports.base.Connections.reconnect`."""
        self._on(host).reconnect(host)

    def _on(self, host: str) -> Connections:
        if host in self._here:
            from launcher.transports.command import LocalHosts

            return LocalHosts()
        if self._others is None:
            raise TransportError(f"{host}: there is no connection to it")
        return self._others


def allow_descriptors(count: int) -> None:
    """Raise the soft limit of open files, if it is too low for this number and for other files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))

"""The hosts of a launch: which are this machine, the connections to the others, remarks on them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from launcher.errors import HostsError, TransportError
from launcher.events import AgentReady, Event, TaskNotStarted
from launcher.job import Host, Placement, is_loopback
from launcher.job_run.notices import Notices, print_notice
from launcher.job_run.options import Options
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.text import listed
from launcher.transports.base import Connections, Link, RemoteCommand, Transport
from launcher.transports.link import ReconnectingLink
from launcher.transports.local import LocalHosts, LocalLink

if TYPE_CHECKING:
    from launcher.transports.ssh import SshHosts

#: File descriptors that a host may take here, and how many more if its tasks can connect to us.
_DESCRIPTORS, _RELAY_DESCRIPTORS = 16, 64
#: Those that are not for a host or a log.
_OTHER_DESCRIPTORS = 256

#: Seconds for agents that are not needed, or not any more, to end.
_LAST_WAIT = 10.0

_NOT_SYNCED = "--sync DIR brings a folder to every host and runs there"
_SYNCED = "--sync leaves out what .gitignore names"
_MOUNTED = "it sees only the folder that the tasks run in; --mount adds others"
_PYTHON = "venv: or python: of a host names its Python"
#: Exit codes of a task whose program is not there, or can't be run.
_NO_PROGRAM = (126, 127)


def is_here(host: Host) -> bool:
    """Whether a host is this machine, and its tasks are started without SSH."""
    if host.user is not None or host.port is not None:
        return False
    name = os.uname().nodename
    return is_loopback(host.name) or host.name in (name, name.partition(".")[0])


def with_default_python(options: Options) -> Options:
    """The options where other machines use their own ``python3``, unless a Python is named for them."""

    def named(host: Host) -> bool:
        return bool(is_here(host) or host.python or host.venv or options.sources.python)

    hosts = (host if named(host) else host._replace(python=DEFAULT_PYTHON) for host in options.hosts)
    return options._replace(hosts=tuple(hosts))


def connect_hosts(
    stack: ExitStack, options: Options, placement: Placement, notices: Notices
) -> SshHosts | None:
    """Connect to all hosts of a job that are other machines.

    Args:
        stack: closes the connections.

    Returns:
        The connections; ``None``: all tasks run on this machine.

    Raises:
        HostsError: some hosts can't be reached; it names each with the reason.
    """
    remote = [host for host in placement.hosts() if not is_here(host)]
    if not remote:
        return None
    from launcher.transports.ssh import SshHosts

    allow_descriptors(len(remote) * (_DESCRIPTORS + (_RELAY_DESCRIPTORS if options.relay else 0)))
    used = {host.name for host in placement.hosts()}
    idle = [host.name for host in options.hosts if host.name not in used]
    if idle:
        count = len(placement.tasks)
        tasks = "1 task (--workers N starts more)" if count == 1 else f"{count} tasks"
        print_notice(f"no task runs on {listed(idle)}: the job has {tasks}")
    fleet = stack.enter_context(SshHosts(remote, options.ssh, notices))
    try:
        fleet.connect()
    except KeyboardInterrupt:
        print_notice("Ctrl-C: nothing was started")
        raise
    except HostsError as error:
        text = options.hosts_text
        is_word = text is not None and not os.path.exists(text) and not set(text) & set(",:@[")
        if not is_word or "was not found" not in str(error):
            raise
        raise HostsError([*error.faults, f"--hosts {text}: there is no file of that name either"]) from error
    return fleet


def allow_descriptors(count: int) -> None:
    """Raise the limit of open files: the usual 1024 are for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


class Programs:
    """Runs programs of ours on any host of a launch, this machine or another one, directly.

    Args:
        hosts: all of them.
        others: the connections to other machines; ``None``: there are none.
    """

    def __init__(self, hosts: Sequence[Host], others: Connections | None) -> None:
        self._here = frozenset(host.name for host in hosts if is_here(host))
        self._local = LocalHosts()
        self._others = others

    def run(self, host: str, entry: str, arguments: object) -> RemoteCommand:
        """See `launcher.transports.base.Hosts`."""
        return self._on(host).run(host, entry, arguments)

    def reconnect(self, host: str) -> None:
        """See `launcher.transports.base.Connections`."""
        self._on(host).reconnect(host)

    def _on(self, host: str) -> Connections:
        if host in self._here:
            return self._local
        if self._others is None:
            raise TransportError(f"{host}: there is no connection to it")
        return self._others


class HostLinks:
    """Links to the agents of hosts, opened before the job needs them.

    A local agent starts while the launcher gets ready. A remote one runs commands before and after the job.
    """

    def __init__(self) -> None:
        self._links: dict[str, Link | TransportError] = {}

    def start(self, transport: Transport, hosts: Iterable[Host]) -> None:
        """Open a link to each of these hosts."""
        for host in hosts:
            try:
                self._links[host.name] = transport.open(host)
            except TransportError as error:
                self._links[host.name] = error

    def open(self, host: Host) -> Link:
        """The link to a host for the job; see `Transport.open`."""
        link = self._links[host.name]
        if isinstance(link, TransportError):
            raise link
        if not link.stays:
            del self._links[host.name]
        return link

    def staying(self, host: str) -> ReconnectingLink | None:
        """The link that runs the remote commands of a host; ``None``: its agent has ended, or there is none.

        Raises:
            TransportError: it could not be opened.
        """
        link = self._links.get(host)
        if isinstance(link, TransportError):
            raise link
        return link if isinstance(link, ReconnectingLink) and not link.over.is_set() else None

    @property
    def agents(self) -> list[tuple[int, int]]:
        """Number and watchdog's pid of the local agents that the job has not taken yet."""
        return [(link.number, link.pid) for link in self._links.values() if isinstance(link, LocalLink)]

    def close(self) -> None:
        """End the agents whose links the job has not taken, and those that stay."""
        links = [link for link in self._links.values() if not isinstance(link, TransportError)]
        self._links.clear()
        for link in links:
            link.hang_up()
        deadline = time.monotonic() + _LAST_WAIT
        for link in links:
            link.wait(max(0.0, deadline - time.monotonic()))
            link.close()


class RemoteCommands:
    """Runs remote commands over the links to hosts; directly where there is none.

    Args:
        links, programs: those of the launch.
    """

    def __init__(self, links: HostLinks, programs: Programs) -> None:
        self._links, self._programs = links, programs

    def run(self, host: str, entry: str, arguments: object) -> RemoteCommand:
        """See `launcher.transports.base.Hosts`."""
        link = self._links.staying(host)
        return self._programs.run(host, entry, arguments) if link is None else link.command(entry, arguments)


class HostHints:
    """Looks at the events of a job with other machines or containers.

    Args:
        hosts: those that the tasks run on.
        synced: code was brought to them.
        check: look for what usually goes wrong between hosts.
        in_containers: the tasks run in containers.
    """

    def __init__(self, hosts: Sequence[Host], synced: bool, check: bool, in_containers: bool) -> None:
        self._hosts = hosts
        self._synced = synced
        self._check = check
        self._in_containers = in_containers
        self._ready: dict[str, Mapping[str, Any]] = {}
        self._advised = False

    def observe(self, event: Event) -> str:
        """A message for the user; empty: there is none."""
        if isinstance(event, TaskNotStarted) and event.code in _NO_PROGRAM and not self._advised:
            self._advised = True
            if self._in_containers:
                return f"not there in the container of {event.host}: {_MOUNTED}"
            return f"not there on {event.host}: {_SYNCED if self._synced else _NOT_SYNCED}; {_PYTHON}"
        if isinstance(event, AgentReady) and self._check:
            self._ready[event.host] = event.facts
            if len(self._ready) == len(self._hosts):
                return "\n".join(self._findings())
        return ""

    def _findings(self) -> list[str]:
        from launcher.checking import Severity, findings_of_agents

        lines = []
        for finding in findings_of_agents(self._hosts, self._ready):
            if finding.severity is not Severity.NOTE:
                advice = f" ({finding.advice})" if finding.advice else ""
                lines.append(f"{finding.severity.value}: {', '.join(finding.hosts)}: {finding.seen}{advice}")
        return lines

"""What a transport gets: what the user asks it for, and the launch; and what it gives: its hosts."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from launcher.common.record import Record, replace
from launcher.config.settings import Settings
from launcher.job import Host, JobSpec
from launcher.scheduler.plan import DEFAULT_PYTHON


class ConnectSettings(Record):
    """How a launch reaches its hosts, by whatever transport; times in seconds."""

    #: The limit for each step of connecting.
    connect_timeout: float = 10.0
    #: Number of hosts that are connected to, or that files are copied to, at the same time.
    fanout: int = 32
    #: How long the tasks of a host run after its connection is lost.
    lease: float = 60.0


class Asked(Record):
    """What the user asks a transport for."""

    settings: Settings
    #: Whether ``--hosts``, or ``hosts:`` of the job file, names the hosts.
    named: bool = False
    spec: JobSpec = JobSpec(())
    #: Whether the command itself asks for the transport, unless the user asks for another one.
    implied: bool = False
    #: Whether the transport that is used runs tasks in containers; known when `Backend.faults` is called.
    in_containers: bool = False


class LaunchRequest(Record):
    """A launch, as its transport gets it."""

    #: The id of the job.
    run_name: str
    spec: JobSpec
    #: The hosts that the user names; else this machine, or none if the transport brings hosts.
    hosts: tuple[Host, ...]
    #: Whether the user names the hosts.
    named: bool
    #: The settings of the transport.
    settings: Any
    connect_settings: ConnectSettings
    #: The default transport and its settings, for transports that do their work over its connections.
    usual: tuple[Any, Any]
    #: See `launcher.launch.interrupts.Interrupts.ignore`.
    ignore_signals: Callable[[], None]
    #: Nothing is started: the transport acquires nothing.
    dry_run: bool = False
    #: Whether the user gives ``--python``, and ``--workdir``, or their keys in the job file.
    python_given: bool = False
    workdir_given: bool = False
    #: Whether remote commands run before or after the job.
    commands: bool = False
    #: Whether files of the run are copied to the hosts.
    files: bool = False
    #: The unix socket to which a port of each host is forwarded; ``None``: there is none.
    relay: str | None = None
    #: Does work that is needed later: a transport may call it while it waits for its hosts.
    meanwhile: Callable[[], object] = lambda: None


class Allocation(Record):
    """The hosts that a transport has for a launch, before the tasks are placed."""

    hosts: tuple[Host, ...]
    #: The job of the launch, which a transport may adapt.
    spec: JobSpec
    #: The settings of the transport, with what is known now: the id of an allocation, for example.
    settings: Any = None
    #: Names of the hosts that are this machine: their agents are forks of launch.
    here: frozenset[str] = frozenset()
    #: Names of the hosts that have the files of this machine: nothing is copied to them.
    same_files: frozenset[str] = frozenset()
    #: Whether tasks run as another user, so that their output folders must be writable by all.
    other_user: bool = False
    #: Whether the tasks of a lost host may move to hosts without a task.
    standby: bool = True
    #: Whether the hosts take more tasks than they have slots.
    any_number: bool = False
    #: Lines for a dry run.
    remarks: tuple[str, ...] = ()
    #: What SIGUSR1 and SIGTERM of the launch mean, for messages; empty: the usual.
    limit: str = ""
    end: str = ""

    @classmethod
    def of(cls, request: LaunchRequest, hosts: Iterable[Host], here: Collection[str] = ()) -> "Allocation":
        """The usual inventory. Other machines use their ``python3``, unless the user names a Python.

        Args:
            request: the launch.
            hosts: its hosts.
            here: names of those that are this machine.
        """

        def named(host: Host) -> bool:
            return bool(host.name in here or host.python or host.venv or request.python_given)

        made = (host if named(host) else replace(host, python=DEFAULT_PYTHON) for host in hosts)
        return cls(tuple(made), request.spec, request.settings, frozenset(here), frozenset(here))

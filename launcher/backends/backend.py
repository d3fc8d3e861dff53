"""What a backend is: a way to get hosts, and to start agents on them.

A backend is an object of a class that is derived from `Backend`. It reads its options, checks them, and for
each launch makes an `Allocation`: the hosts, from when the launch gets them until it gives them back. An
allocation connects to its hosts, see `launcher.backends.connections`; the rest of a launch knows no backend.

``launch check`` and ``launch hosts`` enter the same allocation, with another purpose. A dry run has one, too,
which acquires nothing. Docker on hosts keeps an allocation over SSH inside its own: agents there run the
commands of the engines, and other agents run in the containers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from launcher.backends.fleet import AgentFleet
from launcher.common.errors import Fault, Note
from launcher.common.record import Record, replace
from launcher.config.settings import FileSection, Group, Need, Setting, Settings
from launcher.config.table import COLLECT, HOSTS, PYTHON, SYNC
from launcher.job import Host, JobSpec, Placement
from launcher.scheduler.plan import DEFAULT_PYTHON

if TYPE_CHECKING:
    from launcher.backends.batch_queue import BatchQueue
    from launcher.backends.cleaning import CleanRequest
    from launcher.backends.connections import Connections, Fleet
    from launcher.common.events import HostFacts
    from launcher.event_loop import EventLoop
    from launcher.findings import Finding

OptionsT = TypeVar("OptionsT")


class Purpose(enum.Enum):
    """What the hosts of an allocation are for."""

    #: Tasks will run.
    RUN = "run"
    #: Nothing is acquired, and no host is connected to. Hosts that only an allocation knows are examples.
    DRY_RUN = "dry run"
    #: Programs of ours run, no tasks, as for ``launch check``.
    CHECK = "check"


class LaunchRequest(Record):
    """What a backend needs to get hosts for one launch."""

    #: Empty while the options are checked: the run has no name yet.
    run_name: str
    #: For a check, it has no roles.
    spec: JobSpec
    settings: Settings
    #: The hosts that the user names. Empty: none, or they have faults.
    named_hosts: tuple[Host, ...] = ()
    purpose: Purpose = Purpose.RUN
    #: Makes signals ineffective: an allocation calls it before it gives hosts back, if no signal may
    #: interrupt that.
    ignore_signals: Callable[[], None] = lambda: None
    #: Imports what the launch needs next: an allocation calls it while it waits for its hosts.
    warm_up: Callable[[], object] = lambda: None

    @property
    def hosts_named(self) -> bool:
        """Whether the user names hosts, perhaps with faults."""
        return bool(self.named_hosts) or self.settings[HOSTS] is not None

    @property
    def copies_files(self) -> bool:
        """Whether files of the run are copied to the hosts."""
        return bool(self.settings[SYNC]) or self.spec.output_dirs

    @property
    def runs_programs(self) -> bool:
        """Whether programs of ours run on the hosts before or after the job."""
        return self.copies_files or bool(self.settings[COLLECT])


class Backend(Generic[OptionsT]):
    """A way to get hosts and to start agents on them. It has no state: there is one object of a class.

    `launcher.backends.BACKENDS`, or an entry point of an installed package, names its module, in which
    ``BACKEND`` is the object. Launches import the modules of the table at their start, to read the options.
    """

    #: As in `launcher.backends.BACKENDS`, or in the entry point.
    name: ClassVar[str]
    #: Its options, as the help shows them, and its section of files.
    group: Group | None = None
    section: FileSection | None = None
    #: Its options of ``launch clean``. With the first of them, only this backend cleans.
    clean_rows: tuple[Setting[Any], ...] = ()
    #: Whether tasks see the files of an image, not those of a host.
    runs_in_containers = False
    #: In containers: a hint for a task that does not find a file.
    missing_file_hint = ""
    #: Whether there are other machines even if the user names none.
    provides_hosts = False
    #: Whether hosts have the files of this machine as a rule: programs are looked for before `allocate`.
    shares_files = False

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> OptionsT | None:
        """Make the options of this backend.

        Args:
            settings: Those of the command, which may not have the rows of this backend.
            spec: The job.
            hosts_named: Whether the user names hosts.

        Returns:
            The options. None: the user does not ask for this backend.
        """
        return None

    def is_implied(self, options: OptionsT) -> bool:
        """Return whether not the user asks for this backend but the surroundings, as an allocation does.

        Then it is used if the user asks for no other backend.
        """
        return False

    def met_needs(self, options: OptionsT | None) -> Collection[Need]:
        """Return the needs of settings that are met with these options, see `Setting.needs`."""
        return ()

    def check(
        self, options: OptionsT | None, request: LaunchRequest, chosen: Backend[Any]
    ) -> Iterator[Fault | Note]:
        """Yield all faults of the options, and notes on them. It starts and asks nothing.

        Args:
            options: None: the user does not ask for this backend. Its options may have no effect then.
            request: The launch, still without a name.
            chosen: The backend that is used.
        """
        yield from ()

    def allocate(self, options: OptionsT, request: LaunchRequest) -> AbstractContextManager[Allocation]:
        """Return a context that gets hosts; leaving it gives them back.

        Entering it may take long: a stop signal raises an exception meanwhile.

        Raises:
            InputError: On entering: the options do not fit.
            TransportError: On entering: there are no hosts.
        """
        raise NotImplementedError

    def batch_queue(self) -> BatchQueue | None:
        """Return the queue that can start launchers as batch jobs. None: there is none."""
        return None

    def clean(self, request: CleanRequest) -> Iterator[str]:
        """Remove what launches of this user have left that have ended, and yield a line for each object.

        Raises:
            HostsError: After the last line: objects cannot be removed, or hosts cannot be reached.
        """
        yield from ()


class Allocation(AbstractContextManager["Allocation"]):
    """The hosts of one launch, as a context: leaving it gives them back. Subclasses override what differs.

    A launch uses it in this order: `hosts` and `spec` to place the tasks, `fleet` to run them, `address` and
    `node` for each plan, `replace_host` when a host is lost. ``launch check`` and other commands without a
    job use `connect`.

    Args:
        request: What the launch asks for.
        hosts: The hosts, in the order in which they get tasks.
        spec: The job as the hosts need it. None: as it was asked for.
    """

    #: Whether tasks run as another user than on hosts that they have for themselves: their output folders
    #: must be writable by all.
    runs_as_other_user = False
    #: Whether tasks of a lost host may move to hosts without a task.
    moves_tasks = True
    #: Whether `replace_host` makes a new host in place of a lost one.
    replaces_hosts = False
    #: Whether a host takes more tasks than it has slots.
    exceeds_slots = False
    #: Lines for a dry run and for ``launch check``.
    remarks: tuple[str, ...] = ()
    #: What SIGUSR1 and SIGTERM mean to a launch here, for messages. Empty: the usual.
    limit_name = ""
    stop_name = ""

    def __init__(
        self, request: LaunchRequest, hosts: Sequence[Host] = (), spec: JobSpec | None = None
    ) -> None:
        self.request = request
        self.hosts = tuple(hosts)
        self.spec = request.spec if spec is None else spec
        #: The names of the hosts that are this machine: their agents are forks of launch.
        self.local: frozenset[str] = frozenset()
        #: The names of the hosts that have the files of this machine: nothing is copied to them.
        self.sharing_files: frozenset[str] = frozenset()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the hosts back."""

    def connect(self, hosts: Sequence[Host]) -> AbstractContextManager[Connections]:
        """Return a context that connects to hosts, as many as possible; leaving it closes the connections.

        Args:
            hosts: Some of `hosts`, all of them other machines.
        """
        raise NotImplementedError

    def fleet(self, placement: Placement, loop: EventLoop) -> AbstractContextManager[Fleet]:
        """Return a context with the hosts of placed tasks. By default an agent on each, over `connect`.

        Args:
            placement: The tasks, each with its host, and the hosts that stand by.
            loop: Drives the links to the agents.

        Raises:
            TransportError: On entering: hosts cannot be reached.
        """
        return AgentFleet(self, placement, loop)

    def address(self, host: Host) -> str | None:
        """Return the present address of a host for other tasks. A host that was lost may have another one."""
        return host.address

    def node(self, host: Host) -> str:
        """Return the machine that a host is on, for the user. Empty: the host is a machine."""
        return ""

    def with_addresses(self, placement: Placement) -> Placement:
        """Return a placement with the present addresses and nodes of its hosts."""
        # The tasks of a host share its record, unless each has a folder of its own.
        hosts = {id(placed.host): placed.host for placed in placement.tasks}
        present = {
            key: replace(host, address=self.address(host), node=self.node(host))
            for key, host in hosts.items()
        }
        tasks = (replace(placed, host=present[id(placed.host)]) for placed in placement.tasks)
        return replace(placement, tasks=tuple(tasks))

    def replace_host(self, host_name: str) -> None:
        """Make a new host with the name of a lost one. Blocks; any thread may call it.

        It returns when no task of the old host can still be running.

        Raises:
            TransportError: That is not possible now.
        """
        raise NotImplementedError

    def findings(self, facts: Mapping[str, HostFacts]) -> Iterable[Finding]:
        """Yield, for ``launch check``, what only hosts of this backend can have wrong.

        Args:
            facts: Those of the hosts that answered.
        """
        return ()


def with_default_python(
    request: LaunchRequest, hosts: Iterable[Host], local: Collection[str] = ()
) -> tuple[Host, ...]:
    """Return hosts on which tasks run with the ``python3`` there, unless the user names a Python.

    The Python of this launch, which is the default, is that of this machine.

    Args:
        request: The launch.
        hosts: The hosts.
        local: The names of those that are this machine.
    """
    if request.purpose is Purpose.CHECK or request.settings.is_given(PYTHON):
        return tuple(hosts)
    return tuple(
        host if host.name in local or host.python or host.venv else replace(host, python=DEFAULT_PYTHON)
        for host in hosts
    )

"""Defines what a backend is: a way to get hosts, and to start agents on them.

Each backend is one object of a class derived from `Backend`. It reads and checks its options, and makes an
`Allocation` for each launch: the hosts, from the moment when the launch gets them until it gives them back.
An allocation connects to its hosts (see `launcher.backends.connections`). The rest of a launch uses these two
classes, and must never depend on a particular backend.

``launch check`` and ``launch hosts`` enter the same allocation for another `Purpose`. So does a dry run, for
which nothing is acquired. Docker on hosts keeps an allocation over SSH inside its own: agents on the hosts
run the commands of the engines, and other agents run in the containers.
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
    """The reason for which a command allocates hosts."""

    #: Tasks will run on the hosts.
    RUN = "run"
    #: Nothing is acquired, and no host is connected to. Hosts that only a cluster could name are made up.
    DRY_RUN = "dry run"
    #: Our own programs will run on the hosts, but no tasks, as for ``launch check``.
    CHECK = "check"


class LaunchRequest(Record):
    """What a backend needs to get hosts for one launch."""

    #: The name of the run. It is empty while the options are checked, because the run has no name yet.
    run_name: str
    #: The job. For a check it contains no roles.
    spec: JobSpec
    settings: Settings
    #: The hosts that the user names. It is empty if the user names none, or if they have faults.
    named_hosts: tuple[Host, ...] = ()
    purpose: Purpose = Purpose.RUN
    #: Makes signals ineffective. An allocation calls it before it gives hosts back, if no signal may
    #: interrupt that.
    ignore_signals: Callable[[], None] = lambda: None
    #: Imports what the launch needs next. An allocation calls it while it waits for its hosts.
    warm_up: Callable[[], object] = lambda: None

    @property
    def hosts_named(self) -> bool:
        """Whether the user names hosts, even if they have faults."""
        return bool(self.named_hosts) or self.settings[HOSTS] is not None

    @property
    def copies_files(self) -> bool:
        """Whether the run has files of its own on the hosts: copied folders, or output folders of tasks."""
        return bool(self.settings[SYNC]) or self.spec.output_dirs

    @property
    def runs_programs(self) -> bool:
        """Whether our own programs run on the hosts before or after the job, to copy or make files."""
        return self.copies_files or bool(self.settings[COLLECT])


class Backend(Generic[OptionsT]):
    """A way to get hosts and to start agents on them. Each backend is one object without state.

    `launcher.backends.BACKENDS`, or an entry point of an installed package, names the module whose
    ``BACKEND`` is the object. Every launch imports the modules of that table at its start, to read the
    options.
    """

    #: The name of the backend in `launcher.backends.BACKENDS`, or of its entry point.
    name: ClassVar[str]
    #: The options of the backend, as the help shows them.
    group: Group | None = None
    #: The section of job files and default files that the backend reads.
    section: FileSection | None = None
    #: The options of the backend for ``launch clean``. If the first one is given, only this backend cleans.
    clean_rows: tuple[Setting[Any], ...] = ()
    #: Whether tasks see the files of an image instead of the files of a host.
    runs_in_containers = False
    #: Whether tasks may run on other machines even if the user names none.
    provides_hosts = False
    #: Whether the hosts usually see the files of this machine. Then a missing program is reported before
    #: `allocate`.
    shares_files = False

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> OptionsT | None:
        """Return the options of this backend, or None if the user does not ask for this backend.

        Args:
            settings: The settings of the command. They may lack the rows of this backend.
            spec: The job.
            hosts_named: Whether the user names hosts.
        """
        return None

    def is_implied(self, options: OptionsT) -> bool:
        """Return whether the surroundings ask for this backend, not the user.

        For example, a launch inside an allocation of Slurm implies Slurm. An implied backend is used only if
        the user asks for no other one.
        """
        return False

    def missing_file_hint(self, options: OptionsT) -> str:
        """Return the hint for a task in a container that does not find a file. Empty without containers."""
        return ""

    def met_needs(self, options: OptionsT | None) -> Collection[Need]:
        """Return the needs of settings that these options satisfy, see `Setting.needs`."""
        return ()

    def check(
        self, options: OptionsT | None, request: LaunchRequest, chosen: Backend[Any]
    ) -> Iterator[Fault | Note]:
        """Yield all faults of the options, and notes on them. This starts nothing and connects to nothing.

        Args:
            options: The options. None if the user does not ask for this backend: then options of it that the
                user typed may have no effect, which is a fault.
            request: The launch. It has no name yet.
            chosen: The backend that is used.
        """
        yield from ()

    def allocate(self, options: OptionsT, request: LaunchRequest) -> AbstractContextManager[Allocation]:
        """Return a context that gets hosts when it is entered, and gives them back when it is left.

        Entering it may take long. A stop signal that comes meanwhile raises an exception.

        Raises:
            InputError: On entering, if the options do not fit the cluster.
            TransportError: On entering, if there are no hosts.
        """
        raise NotImplementedError

    def batch_queue(self) -> BatchQueue | None:
        """Return the queue that can start launchers as batch jobs, or None if this backend has no queue."""
        return None

    def clean(self, request: CleanRequest) -> Iterator[str]:
        """Remove what ended launches of this user have left, and yield a line for each removed object.

        By default there is nothing to remove.

        Raises:
            HostsError: After the last line, if objects cannot be removed or hosts cannot be reached.
        """
        yield from ()


class Allocation(AbstractContextManager["Allocation"]):
    """The hosts of one launch, as a context: leaving it gives them back. A backend overrides what differs.

    A launch uses it in this order: `hosts` and `spec` to place the tasks, `fleet` to run them, `address` and
    `node` for the plan of each task, and `replace_host` when a host is lost. ``launch check`` and other
    commands without a job use `connect`.

    Args:
        request: The request of the launch.
        hosts: The hosts, in the order in which they get tasks.
        spec: The job as the hosts need it. None if it is the job of the request.
    """

    #: Whether tasks run as another user than launch, as they may in containers. Then everybody must be able
    #: to write to their output folders.
    runs_as_other_user = False
    #: Whether tasks of a lost host may move to hosts that run no task.
    moves_tasks = True
    #: Whether `replace_host` makes a new host in place of a lost one.
    replaces_hosts = False
    #: Whether a host accepts more tasks than it has slots.
    may_exceed_slots = False
    #: Lines that a dry run and ``launch check`` show to the user.
    remarks: tuple[str, ...] = ()
    #: What SIGUSR1 means to this launch, for messages, as ``SIGUSR1 to Slurm's job 13``. Empty if it has
    #: no special meaning.
    limit_name = ""
    #: What SIGTERM means to this launch, for messages. Empty if it has no special meaning.
    stop_name = ""

    def __init__(
        self, request: LaunchRequest, hosts: Sequence[Host] = (), spec: JobSpec | None = None
    ) -> None:
        """Store the request. Hosts that are known only later replace `hosts` when the context is entered."""
        self.request = request
        self.hosts = tuple(hosts)
        self.spec = request.spec if spec is None else spec
        #: The names of the hosts that are this machine itself. A container with a network of its own is not
        #: among them, even if it runs here.
        self.local: frozenset[str] = frozenset()
        #: The names of the hosts that see the files of this machine, to which nothing is copied: those in
        #: `local`, but also containers that can mount the files, and nodes with the same home folder.
        self.sharing_files: frozenset[str] = frozenset()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the hosts back. A second call does nothing."""

    def connect(self, hosts: Sequence[Host]) -> AbstractContextManager[Connections]:
        """Return a context that is connected to hosts; leaving it closes the connections.

        It connects to as many of the hosts as possible: `Connections.failed` names the others.

        Args:
            hosts: Some hosts of this allocation, all of them other machines.
        """
        raise NotImplementedError

    def fleet(self, placement: Placement, loop: EventLoop) -> AbstractContextManager[Fleet]:
        """Return a context that contains the hosts of placed tasks, by default with an agent on each.

        Args:
            placement: The tasks, each with its host, and the hosts that stand by.
            loop: The loop that drives the links to the agents.

        Raises:
            TransportError: On entering, if hosts cannot be reached.
        """
        return AgentFleet(self, placement, loop)

    def address(self, host: Host) -> str | None:
        """Return the address at which tasks on other hosts reach this host now, or None if it is unknown.

        A host that was lost and replaced may have another address than before.
        """
        return host.address

    def node(self, host: Host) -> str:
        """Return the machine on which a host is, for messages. Empty if the host is itself a machine."""
        return ""

    def with_addresses(self, placement: Placement) -> Placement:
        """Return the placement with the present address and node in the host of each task."""
        # Many tasks share one record of their host, so the address of each record is asked for only once. A
        # host has several records if its tasks have folders of their own.
        hosts = {id(task.host): task.host for task in placement.tasks}
        present_hosts = {
            key: replace(host, address=self.address(host), node=self.node(host))
            for key, host in hosts.items()
        }
        tasks = (replace(task, host=present_hosts[id(task.host)]) for task in placement.tasks)
        return replace(placement, tasks=tuple(tasks))

    def replace_host(self, host_name: str) -> None:
        """Make a new host with the name of a lost one. This blocks, and any thread may call it.

        It returns only when no task of the old host can be alive, because two attempts of a task must never
        run at once.

        Raises:
            TransportError: The host cannot be replaced now.
        """
        raise NotImplementedError

    def findings(self, facts: Mapping[str, HostFacts]) -> Iterable[Finding]:
        """Yield findings for ``launch check`` that only hosts of this backend can cause.

        Args:
            facts: The facts about the hosts that answered, by their names.
        """
        return ()


def with_default_python(
    request: LaunchRequest, hosts: Iterable[Host], local: Collection[str] = ()
) -> tuple[Host, ...]:
    """Return hosts on which tasks run with the ``python3`` of the host, unless the user names a Python.

    Without this, tasks would run with the Python of the launcher, whose path is valid on this machine only.

    Args:
        request: The launch.
        hosts: The hosts.
        local: The names of the hosts that are this machine. They keep the Python of the launcher.
    """
    # A check runs no tasks, and must show the Python of a host as the user has set it.
    if request.purpose is Purpose.CHECK or request.settings.is_given(PYTHON):
        return tuple(hosts)
    return tuple(
        # A host keeps a Python or an environment that the user has set for it alone.
        host if host.name in local or host.python or host.venv else replace(host, python=DEFAULT_PYTHON)
        for host in hosts
    )

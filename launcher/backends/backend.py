"""What a transport is: its options, the hosts that it gives a launch, and how it connects to them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from launcher.backends.connections import Connections, Fleet, ProgramRunner
from launcher.backends.launch_request import Allocation, Asked, ConnectSettings, LaunchRequest
from launcher.common.errors import Fault
from launcher.config.settings import FileSection, Group, Need, Setting, Settings
from launcher.event_loop import EventLoop
from launcher.job import Host, Placement

if TYPE_CHECKING:
    from launcher.backends.batch_queue import BatchQueue
    from launcher.backends.cleaning import Cleaning
    from launcher.common.events import HostFacts
    from launcher.findings import Finding


class Backend:
    """A way to start agents on hosts and to connect to them. A transport overrides methods that differ.

    `launcher.backends.BACKENDS`, or an entry point of an installed package, names its module, in which
    ``TRANSPORT`` is an object of the class.
    """

    #: Whether tasks see the files of an image, not those of a host.
    runs_in_containers = False
    #: In containers: a hint for a task that does not find a file.
    missing_file_hint = ""
    #: Whether `inventory` has other machines even if the user names none.
    provides_hosts = False
    #: Whether the hosts have the files of this machine as a rule: programs are looked for before `inventory`.
    shares_files = False
    #: Whether `renew` replaces lost hosts by new ones; else their tasks move to other hosts.
    replaces_hosts = False

    #: Its options, as the help shows them, and its key of files.
    group: Group | None = None
    section: FileSection | None = None
    #: Its options of ``launch clean``.
    clean_rows: tuple[Setting[Any], ...] = ()

    def parse(self, asked: Asked) -> Any:
        """Make its options from the settings of the launch.

        Returns:
            The options; ``None``: the user does not ask for this transport. Options with a true ``implied``
            are used if the user asks for no other one.
        """

    def meets(self, options: Any) -> Collection[Need]:
        """What settings need that have an effect with these options."""
        return ()

    def faults(self, asked: Asked, options: Any) -> Iterable[Fault]:
        """The faults of its options."""
        return ()

    def notes(self, asked: Asked, options: Any) -> Iterable[str]:
        """Notes on its options, for the user."""
        return ()

    def present(self, asked: Asked, name: str) -> AbstractContextManager[Allocation | None]:
        """For commands without a job: the hosts of the allocation around this process, or of one asked for.

        At the end of the context they are given back.

        Args:
            asked: the settings of the command; it may not have the options of the transport.
            name: of an allocation that is asked for.

        Returns:
            ``None``: there are none of this transport.

        Raises:
            InputError: the options do not fit.
            TransportError: there are no hosts.
        """
        return nullcontext()

    def findings(self, allocation: Allocation, facts: "Mapping[str, HostFacts]") -> "Iterable[Finding]":
        """For ``launch check``: faults of an allocation that other hosts can't have.

        Args:
            allocation: of `present`.
            facts: of the hosts that answered.
        """
        return ()

    def queue(self) -> "BatchQueue | None":
        """The queue that can start launchers as batch jobs; ``None``: there is none."""
        return None

    def inventory(self, request: LaunchRequest) -> AbstractContextManager[Allocation]:
        """The hosts of a launch; at the end of the context they are given back.

        A stop signal raises an exception meanwhile. Before it gives hosts back, it calls
        ``request.ignore_signals`` if a signal must not interrupt that. A dry run acquires nothing, and shows
        what can be known.

        Raises:
            InputError: the options do not fit.
            TransportError: there are no hosts.
        """
        return nullcontext(Allocation.of(request, request.hosts))

    def hosts(
        self, request: LaunchRequest, allocation: Allocation, placement: Placement, loop: EventLoop
    ) -> AbstractContextManager[Fleet] | None:
        """Connect to the hosts of a launch; ``None``: as `fleet.AgentFleet` does, over `connections`.

        Args:
            request, allocation: of `allocation`.
            placement: the tasks, each with its host, and the hosts that stand by.
            loop: drives the links to the hosts.

        Raises:
            TransportError: on entering: hosts can't be reached.
        """
        return None

    def connections(
        self,
        hosts: Sequence[Host],
        settings: Any,
        connect_settings: ConnectSettings,
    ) -> AbstractContextManager[Connections]:
        """Connect to hosts, as many as possible; at the end of the context the connections are closed.

        Args:
            hosts: other machines.
            settings: of the inventory.
            connect_settings: limits.
        """
        raise NotImplementedError

    def address(self, host: Host, settings: Any) -> str | None:
        """The present address of a host for other tasks; ``None``: that of the inventory.

        For each plan it is asked for: a host that was lost may be back with another one.
        """

    def node(self, host: Host, settings: Any) -> str:
        """The machine that a host is on, for the user; empty: the host is a machine."""
        return ""

    def renew(self, host: str, settings: Any) -> None:
        """Make a new host with the name of a lost one. Blocks; any thread may call it.

        It returns when no task of the old host can be running any more.

        Raises:
            TransportError: that is not possible now.
        """
        raise NotImplementedError

    def cleanup(
        self,
        settings: Settings,
        cleaning: "Cleaning",
        hosts: Sequence[Host],
        commands: ProgramRunner,
        dry_run: bool,
    ) -> Iterable[str]:
        """For ``launch clean``: remove what this user's launches left that have ended.

        Args:
            settings: of the command.
            cleaning: decides what may be removed.
            hosts: the hosts; empty: this machine.
            commands: runs remote commands on these hosts.
            dry_run: remove nothing.

        Returns:
            A line for each removed object.

        Raises:
            HostsError: after the last line: objects that can't be removed, hosts that can't be reached.
        """
        return ()

"""The options of a launch, and the command line that they are made of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from launcher.backends.backend import Backend
from launcher.common.errors import Fault
from launcher.common.record import Record
from launcher.config.settings import Level, Settings, SourceKind
from launcher.config.table import HOSTS, ROLES_FD
from launcher.job import Host, JobSpec

if TYPE_CHECKING:
    from launcher.runs.run import Run

#: Source of faults of several options together, and of roles that options make.
ON_COMMAND_LINE = "command line"


class LaunchWords(Record):
    """A command line of ``launch``."""

    level: Level
    #: Those of the values of options.
    faults: Sequence[Fault]
    #: The program and its arguments, as in ``["train.py", "--epochs", "3"]`` or ``["-m", "package.train"]``;
    #: or the job file and all that follows it.
    command: Sequence[str]
    job_file: str = ""
    #: The program after a job file, and its arguments.
    program: Sequence[str] = ()
    #: Whether ``--`` is before the program, which may then have any name.
    is_marked: bool = False

    @property
    def settings(self) -> Settings:
        """The options of the command line alone, without what files say."""
        return Settings({name: [given] for name, given in self.level.items()})

    @property
    def has_roles(self) -> bool:
        """Whether a file has the roles of the job: a job file, or that of ``--roles-fd``."""
        return bool(self.job_file) or self.settings.is_given(ROLES_FD)


class LaunchOptions(Record):
    """What a launch is to do: made once, before anything is started."""

    #: Each option is read from here where it is used.
    settings: Settings
    spec: JobSpec
    #: The hosts that the user names.
    hosts: tuple[Host, ...]
    #: The backend that gets the hosts, and its options.
    backend: Backend[Any]
    backend_options: Any
    #: Notes on the options, for the user.
    notes: tuple[str, ...] = ()
    #: The run that a cluster's queue has started by this process; ``None``: none has.
    submitted: "Run | None" = None

    @property
    def hosts_named(self) -> bool:
        """Whether ``--hosts`` or a file names the hosts."""
        return self.settings[HOSTS] is not None

    @property
    def hosts_text(self) -> str:
        """The text of ``--hosts``. Empty: the option is not given."""
        hosts = self.settings[HOSTS]
        is_option = self.settings.source_kind(HOSTS) == SourceKind.COMMAND_LINE
        return hosts if is_option and isinstance(hosts, str) else ""

    @property
    def has_other_machines(self) -> bool:
        """Whether there may be other machines among the hosts."""
        return self.hosts_named or self.backend.provides_hosts

    @property
    def has_own_containers(self) -> bool:
        """Whether each task has a container of its own on this machine."""
        return self.backend.runs_in_containers and not self.has_other_machines

"""The options of a launch, and the command line that they are made of.

`launcher.launch.build_options` makes `LaunchOptions` from `LaunchWords`, and every step of a launch reads
them. They never change afterwards.
"""

import sys
from collections.abc import Sequence
from typing import Any

from launcher.backends.backend import Backend
from launcher.common.errors import Fault
from launcher.common.record import Record
from launcher.config.settings import Level, Settings, SourceKind
from launcher.config.table import HOSTS, ROLES_FD
from launcher.job import Host, JobSpec
from launcher.runs.run import Origin, Run

#: The source of faults of several options together, and of roles that options make.
ON_COMMAND_LINE = "command line"


class LaunchWords(Record):
    """The command line of one ``launch``, split into its options and its program."""

    #: The values of the options.
    level: Level
    #: The faults of these values.
    faults: Sequence[Fault]
    #: The program and its arguments, as in ``["train.py", "--epochs", "3"]`` or ``["-m", "package.train"]``.
    #: With a job file, the job file and all that follows it.
    command: Sequence[str]
    job_file: str = ""
    #: The program that follows a job file, and its arguments.
    program: Sequence[str] = ()
    #: Whether ``--`` is before the program, which may then have any name.
    is_marked: bool = False
    #: The options as words for a command line, without values that may be secret.
    options: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """The options of the command line alone, without what files say."""
        return Settings({name: [given] for name, given in self.level.items()})

    @property
    def has_roles(self) -> bool:
        """Whether a file describes the roles of the job: a job file, or the file of ``--roles-fd``."""
        return bool(self.job_file) or self.settings.is_given(ROLES_FD)


class LaunchOptions(Record):
    """The options of one launch, made once before anything is started."""

    #: The values of all options, each of which is read from here where it is used.
    settings: Settings
    spec: JobSpec
    #: The hosts that the user names.
    hosts: tuple[Host, ...]
    #: The backend that gets the hosts.
    backend: Backend[Any]
    #: The options of the backend, of the type that it defines.
    backend_options: Any
    #: Notes on the options, for the user.
    notes: tuple[str, ...] = ()
    #: What the folder of the run says about its start.
    origin: Origin = Origin()
    #: The run for which a cluster's queue has started this process. None if no queue has.
    submitted: Run | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """The command line of ``launch``, without values that may be secret."""
        return (sys.argv[0], *self.origin.options, *self.origin.program)

    @property
    def hosts_named(self) -> bool:
        """Whether ``--hosts`` or a file names the hosts."""
        return self.settings[HOSTS] is not None

    @property
    def hosts_text(self) -> str:
        """The value of ``--hosts``. Empty if the option is not given."""
        hosts = self.settings[HOSTS]
        is_option = self.settings.source_kind(HOSTS) == SourceKind.COMMAND_LINE
        return hosts if is_option and isinstance(hosts, str) else ""

    @property
    def has_other_machines(self) -> bool:
        """Whether hosts of the launch may be other machines than this one."""
        return self.hosts_named or self.backend.provides_hosts

    @property
    def has_own_containers(self) -> bool:
        """Whether each task runs in a container of its own on this machine."""
        return self.backend.runs_in_containers and not self.has_other_machines

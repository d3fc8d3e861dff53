"""The options of a launch: a record, made from the command line and the job file."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher.backends import backends, default
from launcher.backends.backend import Backend
from launcher.backends.launch_request import ConnectSettings
from launcher.common.record import Record
from launcher.job import Host, JobSpec

if TYPE_CHECKING:
    from launcher.runs.run import Run

#: Source of faults of several options together, and of roles that options make.
COMMAND_LINE = "command line"


class Sources(Record):
    """The sources of values, for messages: an option, or ``file:line``; empty: the value is the default."""

    workdir: str = ""
    python: str = ""
    venv: str = ""
    run_dir: str = ""
    sync: str = ""
    collect: str = ""


class LaunchOptions(Record):
    """The options of a launch."""

    spec: JobSpec
    hosts: tuple[Host, ...]
    #: The text of ``--hosts``; ``None``: the option is not given.
    hosts_text: str | None = None
    #: Whether ``--hosts`` or the job file names the hosts.
    hosts_named: bool = False
    #: The name of the transport for the hosts, and the settings of all transports by name.
    backend_name: str = default()
    settings: Mapping[str, Any] = {}
    connect_settings: ConnectSettings = ConnectSettings()
    #: Whether the hosts connect to each other before the job starts.
    check: bool = True
    #: The folder of ``--tensorboard``; empty: the default; ``None``: the job runs no TensorBoard.
    tensorboard: str | None = None
    #: A unix socket that tasks on other machines can connect to.
    relay: str | None = None
    #: The values of ``--sync`` and ``--collect``.
    sync: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    #: The folder of the run; ``None``: a folder below the state folder.
    run_dir: str | None = None
    #: The run that a cluster's queue has started by this process; ``None``: none has.
    submitted: "Run | None" = None
    #: The file of ``--report``.
    report: str | None = None
    #: The value of ``--show``: the tasks whose output is shown.
    show: str | None = None
    #: Hide TensorFlow's start-up notices in pipes and files, too; show them always.
    fold: bool = False
    verbose: bool = False
    #: Begin the lines of tasks with the time.
    timestamps: bool = False
    quiet: bool = False
    json: bool = False
    tmux: bool = False
    #: Go on without a terminal when all tasks run.
    detach: bool = False
    #: Whether the failure report has the last lines of the task that failed.
    last_lines: bool = True
    dry_run: bool = False
    #: An inherited pipe for events, see `launcher.output.renderers.EventPipe`.
    events_fd: int | None = None
    #: An inherited pipe with commands, see `launcher.launch.orchestrator`.
    commands_fd: int | None = None
    sources: Sources = Sources()
    #: Notes on the options, for the user.
    notes: tuple[str, ...] = ()
    #: The defaults of the project, with their sources: ``workers=2 (pyproject.toml:14)``.
    defaults: tuple[str, ...] = ()

    @property
    def backend(self) -> Backend:
        """The transport for the hosts."""
        return backends()[self.backend_name]

    @property
    def has_other_machines(self) -> bool:
        """Whether there may be other machines among the hosts."""
        return self.hosts_named or self.backend.provides_hosts

    @property
    def has_own_containers(self) -> bool:
        """Whether each task has a container of its own on this machine."""
        return self.backend.runs_in_containers and not self.has_other_machines

"""What one launch is asked to do: one record, made from the command line and the job file."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.job import Host, JobSpec
from launcher.transports.machines import Request, Transport
from launcher.transports.ssh import SshSettings, SshTransport

#: The source of what several options say together, and of roles that options make.
COMMAND_LINE = "command line"


class Sources(NamedTuple):
    """Where a value comes from, for messages: an option, or ``file:line``; empty: it is the default."""

    workdir: str = ""
    python: str = ""
    run_dir: str = ""
    sync: str = ""
    collect: str = ""


class Options(NamedTuple):
    """One launch."""

    job: JobSpec
    hosts: tuple[Host, ...]
    #: What ``--hosts`` says; ``None``: it is not given.
    hosts_text: str | None = None
    #: ``--hosts`` or the job file names the hosts; else there is only this machine.
    hosts_named: bool = False
    #: How the hosts are reached: the transport, its name, and the settings of all transports by name.
    transport: Transport = SshTransport()
    transport_name: str = "ssh"
    settings: Mapping[str, Any] = {"ssh": SshSettings()}
    #: Let the hosts try to reach each other first.
    check: bool = True
    #: A unix socket that tasks on other machines can connect to.
    relay: str | None = None
    #: As ``--sync`` and ``--collect`` take them.
    sync: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    #: The folder of the run; ``None``: one below the state folder.
    run_dir: str | None = None
    #: Where the report goes besides the run's folder.
    report: str | None = None
    #: Tasks whose output is shown, as ``--show`` takes them.
    show: str | None = None
    quiet: bool = False
    json: bool = False
    tmux: bool = False
    #: Show the last lines of the task that failed.
    last_lines: bool = True
    dry_run: bool = False
    #: An inherited pipe that gets the events, see `launcher.output.eventpipe`.
    events_fd: int | None = None
    #: An inherited pipe with commands, see `launcher.job_run.orchestrator`.
    commands_fd: int | None = None
    sources: Sources = Sources()
    #: Remarks on the options, for the user.
    notes: tuple[str, ...] = ()

    @property
    def ssh(self) -> SshSettings:
        """How to connect to hosts over SSH."""
        found: SshSettings = self.settings["ssh"]
        return found

    @property
    def request(self) -> Request:
        """What the transport plans from."""
        python, workdir = bool(self.sources.python), bool(self.sources.workdir)
        return Request(self.job, self.hosts, self.hosts_named, self.settings, python, workdir)

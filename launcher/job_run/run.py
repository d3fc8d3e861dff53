"""One launch: connect to the hosts, bring the files, run the job, collect the files, report."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from launcher import events
from launcher.errors import HostsError, JobError, LaunchError, TransportError
from launcher.job import RELAY, Host, Placement, RunPaths
from launcher.job_run.display import JobDisplay, tmux_session
from launcher.job_run.hosts import (
    HostHints,
    HostLinks,
    Programs,
    RemoteCommands,
    allow_descriptors,
    connect_hosts,
    is_here,
    with_default_python,
)
from launcher.job_run.interrupts import Interrupts
from launcher.job_run.notices import Notices, print_notice
from launcher.job_run.options import Options
from launcher.job_run.orchestrator import Orchestrator
from launcher.job_run.plan import show_plan
from launcher.job_run.programs import check_programs
from launcher.job_run.staging import Staging, make_output_dirs_here
from launcher.output.base import Opening
from launcher.output.console import parse_selection
from launcher.output.files import write_json_for_user
from launcher.output.jsonl import report_as_dict
from launcher.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState
from launcher.runs.folder import create, new_job_id, unfinished
from launcher.scheduler.placement import place
from launcher.text import counted
from launcher.transports.base import Link
from launcher.transports.docker.container import Container
from launcher.transports.link import ReconnectingTransport
from launcher.transports.local import LocalTransport

if TYPE_CHECKING:
    from launcher.transports.ssh import SshHosts


def run_job(options: Options) -> int:
    """Run a job to its end; with ``--dry-run`` show its plan.

    Args:
        options: what to run, where and how.

    Returns:
        The exit code of ``launch``.

    Raises:
        InputError: the options can't be followed; nothing was started.
        LaunchError: the job could not be started; nothing of it is left.
    """
    made: Sequence[Container] = ()
    if options.docker is None:
        options = with_default_python(options)
        placement = place(options.job, options.hosts)
        check_programs(options, placement)
    else:
        from launcher.job_run.containers import place_containers

        options, placement, made = place_containers(options, options.docker)
    staging = None
    if options.sync or options.collect or options.job.output_dirs:
        staging = Staging(options, placement)
    if options.dry_run:
        return _show_plan(options, placement, staging)
    show = None if options.show is None else parse_selection(options.show, placement)
    began = events.now()
    with Interrupts() as interrupts:
        try:
            return _launch(options, placement, made, staging, show, interrupts)
        except TransportError as error:
            _report_unstarted(options, placement, error, began)
            raise


def _show_plan(options: Options, placement: Placement, staging: Staging | None) -> int:
    expected = placement if staging is None else staging.expected()
    notes = [*options.notes, *placement.notes]
    files = [] if staging is None else list(staging.described())
    if options.docker is not None and options.hosts_named:
        from launcher.transports.docker.containers import of_image

        expected = of_image(expected)
        image = options.docker.image
        files.insert(0, f"each host starts a container of {image}, by its own engine: all runs in there")
    return show_plan(options.job, expected._replace(notes=tuple(notes)), options.json, files)


def _launch(
    options: Options,
    placement: Placement,
    made: Sequence[Container],
    staging: Staging | None,
    show: frozenset[str] | None,
    interrupts: Interrupts,
) -> int:
    """Run a job whose options are known to be right."""
    began, job = events.now(), new_job_id()
    hosts = placement.hosts()
    with ExitStack() as stack:
        notices = stack.enter_context(Notices())
        for text in () if staging is None else staging.notes:
            notices(text)
        # Forked first: a process with threads, as SSH and Docker need them, can't be forked.
        local = [host for host in hosts if is_here(host)] if options.docker is None else []
        links = HostLinks()
        stack.callback(links.close)
        links.start(LocalTransport(), local)
        allow_descriptors(len(placement.tasks))  # for their logs; local tasks keep the limit of the user
        by_ssh = options.docker is None or options.hosts_named
        remote = connect_hosts(stack, options, placement, notices) if by_ssh else None
        programs = Programs(hosts, remote)
        commands = RemoteCommands(links, programs)
        if remote is not None:
            brought = job if options.sync or options.job.output_dirs else ""
            stays = staging is not None or options.docker is not None
            # The links to the agents in containers report a lost connection, too.
            notify = notices if options.docker is None else lambda _: None
            ssh = ReconnectingTransport(remote, notify, options.ssh.lease, brought, stays)
            stack.callback(links.close)  # before the connections
            links.start(ssh, [host for host in hosts if not is_here(host)])

        containers = None
        if options.docker is not None:
            from launcher.transports.docker.containers import Containers

            there = hosts if options.hosts_named else ()
            containers = Containers(
                options.docker, made, job, notices, there, commands, programs, options.ssh.lease
            )
            containers.prepare()
        if staging is not None:
            stack.enter_context(staging.on_hosts(commands, job, interrupts))
            placement = staging.send()

        tmux = tmux_session(job) if options.tmux else None
        paths = _run_folder(options, job, links)
        open_link: Callable[[Host], Link] = links.open
        if containers is not None and options.docker is not None:
            stack.enter_context(containers)
            if not options.hosts_named:
                stack.callback(interrupts.ignore)  # while they are removed
                if options.job.output_dirs:
                    mode = 0o777 if options.docker.user else 0o700
                    placement = make_output_dirs_here(placement, paths, mode)
            placement, open_link = containers.start(placement, options.job.workdir), containers.open
        if options.job.output_dirs and (containers is None or options.hosts_named):
            placement = make_output_dirs_here(placement, paths)
        if remote is not None and options.relay is not None:
            placement = _with_relay(placement, remote, options.relay, notices)

        display = JobDisplay(options, show, paths, tmux)
        for note in (_announcement(job, placement, paths), *options.notes, *placement.notes, *display.notes):
            notices.add(note)
        swept = _sweep(job)
        if swept:
            notices.add(swept, urgent=True)
        check = remote is not None and options.check
        gc.freeze()  # what is imported by now stays: only what comes is looked at
        gc.enable()
        orchestrator = Orchestrator(
            options.job,
            placement,
            open_link,
            display,
            Opening(job, placement, paths, began),
            interrupts,
            notices,
            HostHints(hosts, bool(options.sync), check, options.docker is not None)
            if remote is not None or options.docker is not None
            else None,
            check,
            options.commands_fd,
        )
        report = orchestrator.run()
        display.close()
        complete = staging is None or staging.collect(orchestrator.plan, paths)
        code = report.exit_code if options.report is None else write_report(report, options.report)
        if not code and (display.unwritten or orchestrator.plan_unwritten):
            text = "the job is ok, but not everything could be written, as said above"
            print_notice(f"exit code {LaunchError.exit_code}: {text}")
            code = LaunchError.exit_code
    for line in [] if containers is None else containers.kept():
        print_notice(line)
    return code or (0 if complete else LaunchError.exit_code)


def _with_relay(placement: Placement, remote: SshHosts, socket: str, notices: Notices) -> Placement:
    """The placement whose tasks on other machines find the port that leads to this unix socket."""
    ports = remote.relay(os.path.abspath(socket), notices)
    relays = {
        placed.task: {RELAY: f"127.0.0.1:{ports[placed.host.name]}"}
        for placed in placement.tasks
        if placed.host.name in ports
    }
    return placement.told(relays)


def _run_folder(options: Options, job: str, links: HostLinks) -> RunPaths:
    """Make the folder of the run.

    Raises:
        JobError: it is in use; a job file that names one names the same for each of its runs.
    """
    try:
        return create(options.run_dir, job, links.agents)
    except JobError as error:
        if options.sources.run_dir in ("", "--run-dir"):
            raise
        advice = "expected a new or an empty folder: remove it, or give this run another with --run-dir"
        where = options.sources.run_dir
        raise JobError(fault._replace(where=where, expected=advice) for fault in error.faults) from error


def _sweep(job: str) -> str:
    """End what earlier runs left whose launcher and agents were killed; a message about it."""
    folders = unfinished(job)
    if not folders:
        return ""
    from launcher.runs.orphans import sweep_at

    return sweep_at(folders)


def _announcement(job: str, placement: Placement, paths: RunPaths) -> str:
    counts: dict[str, int] = {}
    for placed in placement.tasks:
        counts[placed.role.name] = counts.get(placed.role.name, 0) + 1
    plural = {name: name if name.endswith("s") else "" for name in counts}
    tasks = ", ".join(counted(count, name, plural[name]) for name, count in counts.items())
    hosts = placement.hosts()
    where = hosts[0].name if len(hosts) == 1 else counted(len(hosts), "host")
    return f"job {job}: {tasks} on {where}; logs in {paths.logs}"


# ---------------------------------------------------------------------- reports


def write_report(report: Report, path: str) -> int:
    """Write ``--report``.

    Returns:
        The exit code: that of the job, or 125 where the report can't be written.
    """
    try:
        write_json_for_user(path, report_as_dict(report))
    except OSError as error:
        print_notice(f"can't write the report to {path!r}: {error.strerror}")
        return report.exit_code or LaunchError.exit_code
    return report.exit_code


def _report_unstarted(options: Options, placement: Placement, error: TransportError, began: float) -> None:
    """Write what ``--report`` and ``--json`` promise for a job of which nothing was started."""
    if options.report is None and not options.json:
        return
    faults = error.faults if isinstance(error, HostsError) else (str(error),)
    name = faults[0].partition(": ")[0]
    host = name if name in {host.name for host in placement.hosts()} else None
    now = events.now()
    failure = Failure(Reason.LAUNCHER, None, host, now, "; ".join(faults))
    state, reason, unknown = TaskState.CANCELLED, Reason.NEVER_STARTED, ExitStatus(None, None)
    tasks = (TaskReport(one.task, one.host.name, "", None, state, reason, unknown) for one in placement.tasks)
    report = Report(new_job_id(), error.exit_code, began, now, tuple(tasks), failure)
    if options.json:
        try:
            print(json.dumps({"event": "Report", **report_as_dict(report)}), flush=True)
        except OSError:  # the reader has gone
            pass
    if options.report is not None:
        write_report(report, options.report)

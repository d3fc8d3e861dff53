"""One launch: connect to the hosts, copy files there, run the job, collect files, report.

The agents start first, so that modules for display and supervision are imported meanwhile.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from launcher import backends
from launcher.backends.connections import Fleet
from launcher.backends.fleet import AgentFleet
from launcher.backends.launch_request import Allocation, ConnectSettings, LaunchRequest
from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import Fault, HostsError, JobError, LaunchError, ProtocolError, TransportError
from launcher.common.record import replace
from launcher.common.text import join_names, plural, plural_roles
from launcher.common.trusted_io import similar_file
from launcher.config import table
from launcher.event_loop import EventLoop
from launcher.job import RELAY_VARIABLE, Host, JobSpec, PlacedTask, Placement, RunPaths
from launcher.launch.host_hints import HostHints
from launcher.launch.interrupts import Interrupts
from launcher.launch.options import LaunchOptions
from launcher.launch.programs import check_programs
from launcher.launch.reports import Unstarted, write_report
from launcher.launch.tensorboard import TensorBoardSidecar, with_output_folder
from launcher.messages import MessageQueue, say
from launcher.scheduler.placement import place

if TYPE_CHECKING:
    from launcher.launch.staged_files import StagedFiles
    from launcher.output.renderers import Background
    from launcher.runs.run import Run

#: Without letters that look like digits.
_NAME_CHARACTERS = "0123456789abcdefghjkmnpqrstvwxyz"
#: This machine.
_THIS_MACHINE = "localhost"


def run_job(options: LaunchOptions, detached: Background | None = None) -> int:
    """Run a job to its end; with ``--dry-run`` print its plan.

    Args:
        options: of the launch.
        detached: for ``--detach``.

    Returns:
        The exit code of ``launch``.

    Raises:
        InputError: the options are wrong; nothing was started.
        LaunchError: the job could not be started; no process of it is left.
    """
    unstarted = Unstarted(options)
    with Interrupts() as interrupts:
        if options.settings[table.EVENTS_FD] is not None:  # see `stop_at_end_of_file`
            interrupts.names[signal.SIGHUP] = "the end of the program that started launch"
        try:
            return _with_inventory(options, unstarted, interrupts, detached)
        except (LaunchError, KeyboardInterrupt, SystemExit) as error:
            unstarted.write_report(error)
            if interrupts.first_name and not unstarted.job_runs and not isinstance(error, LaunchError):
                say(f"{interrupts.first_name}: no task was started")
            text = options.hosts_text
            is_word = text and not os.path.exists(text) and not set(text) & set(",:@[")
            if isinstance(error, HostsError) and is_word and "was not found" in str(error):
                meant = similar_file(text)
                more = f"--hosts {text}: there is no file of that name either"
                more += f"; did you mean {meant}?" if meant else ""
                raise HostsError([*error.faults, more]) from error
            raise


def _with_inventory(
    options: LaunchOptions,
    unstarted: Unstarted,
    interrupts: Interrupts,
    detached: Background | None,
) -> int:
    """Get the hosts from the transport, place the tasks, then run the job or show its plan."""
    request = launch_of(options, interrupts.ignore)
    unstarted.run_name = request.run_name
    if options.backend.shares_files:
        check_programs_here(options)
    with options.backend.inventory(request) as allocation:
        if options.spec.venv:
            hosts = (replace(host, venv=host.venv or options.spec.venv) for host in allocation.hosts)
            allocation = replace(allocation, hosts=tuple(hosts))
        if (queue := options.backend.queue()) and (count := queue.times_requeued()):
            allocation = replace(allocation, spec=_after_earlier(allocation.spec, options.submitted, count))
        interrupts.name(allocation.limit, allocation.end)
        placement = place(allocation.spec, allocation.hosts)
        if not allocation.standby:
            placement = replace(placement, standby=())
        unstarted.placement = placement
        if not options.backend.runs_in_containers:
            check_programs(options, placement, allocation.here)
        staged_files = None
        if request.commands:
            from launcher.launch.staged_files import StagedFiles  # with compression and pathspec

            staged_files = StagedFiles(options, allocation, placement)
        if options.settings[table.DRY_RUN]:
            return _show_plan(options, allocation, placement, staged_files)
        show = _selection(options, placement)
        return _launch(
            options,
            request,
            allocation,
            placement,
            staged_files,
            show,
            interrupts,
            detached,
            unstarted,
        )


def check_programs_here(options: LaunchOptions) -> None:
    """Check the programs as if all tasks ran on this machine, see `check_programs`."""
    roles = [(role, TaskId.of(role.name, 0)) for role in options.spec.roles]
    host = Host(_THIS_MACHINE, venv=options.spec.venv)
    here = Placement(tuple(PlacedTask(task, role, host) for role, task in roles))
    check_programs(options, here, (_THIS_MACHINE,))


def _after_earlier(spec: JobSpec, run: Run | None, requeued: int) -> JobSpec:
    """A job that counts its attempts and restarts on.

    Args:
        spec: that goes on.
        run: it; ``None``: nothing is known of the launchers before this one.
        requeued: how often a queue has started it again.
    """
    from launcher.common.report import report_from_json
    from launcher.runs.run import json_of

    # A launcher that was killed has written no report.
    found = None if run is None else json_of(run.paths.report) or json_of(run.paths.earlier)
    attempts, restarts = requeued, requeued
    if found is not None:
        with suppress(ValueError, ProtocolError):
            report = report_from_json(found)
            attempts = max(attempts, *(task.attempt for task in report.tasks))
            restarts = max(restarts, report.restarts + 1)
    policy = replace(spec.policy, attempts_before=attempts, restarts_before=restarts)
    return replace(spec, policy=policy)


def launch_of(options: LaunchOptions, ignore: Callable[[], None]) -> LaunchRequest:
    """The launch, as its transport gets it.

    Args:
        options: of the launch.
        ignore: see `LaunchRequest.ignore_signals`.
    """
    usual, settings = backends.default(), options.settings
    name = "dry-run" if settings[table.DRY_RUN] else new_run_name()
    return LaunchRequest(
        options.submitted.name if options.submitted else name,
        options.spec,
        options.hosts,
        options.hosts_named,
        options.backend_options[options.backend_name],
        ConnectSettings(settings[table.CONNECT_TIMEOUT], settings[table.FANOUT], settings[table.LEASE]),
        (backends.backends()[usual], options.backend_options[usual]),
        ignore,
        settings[table.DRY_RUN],
        python_given=settings.is_given(table.PYTHON),
        workdir_given=settings.is_given(table.WORKDIR),
        commands=bool(settings[table.SYNC] or settings[table.COLLECT] or options.spec.output_dirs),
        files=bool(settings[table.SYNC] or options.spec.output_dirs),
        relay=settings[table.RELAY],
        meanwhile=_import_the_rest,
    )


def _import_the_rest() -> None:
    """Import what `_launch` needs."""
    from launcher.launch import display, orchestrator  # noqa: F401


def _selection(options: LaunchOptions, placement: Placement) -> frozenset[str] | None:
    """The tasks of ``--show``; ``None``: all."""
    show = options.settings[table.SHOW]
    if show is None:
        return None
    from launcher.runs.run import selected

    names = list(filter(None, map(str.strip, show.split(","))))
    if not names:
        problem = f"{show!r} names no task"
        raise JobError([Fault("--show", problem, "expected names, as in worker,ps/0")])
    return frozenset(selected([placed.task for placed in placement.tasks], names, "--show"))


def _show_plan(
    options: LaunchOptions, allocation: Allocation, placement: Placement, staged_files: StagedFiles | None
) -> int:
    from launcher.launch.plan_output import defaults_in_effect, show_plan

    expected = placement if staged_files is None else staged_files.expected()
    if options.settings[table.TENSORBOARD] == "":
        expected = with_output_folder(expected)
    notes = [*defaults_in_effect(options.settings), *options.notes, *expected.notes]
    files = [*allocation.remarks, *([] if staged_files is None else staged_files.described())]
    return show_plan(
        allocation.spec, replace(expected, notes=tuple(notes)), options.settings[table.JSON], files
    )


def new_run_name() -> str:
    """A name for a run, such as ``20261121-070912-k3f9m``: the time in UTC, so that names sort by it."""
    letters = "".join(_NAME_CHARACTERS[byte % 32] for byte in os.urandom(5))
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{letters}"


def _launch(
    options: LaunchOptions,
    request: LaunchRequest,
    allocation: Allocation,
    placement: Placement,
    staged_files: StagedFiles | None,
    show: frozenset[str] | None,
    interrupts: Interrupts,
    detached: Background | None,
    unstarted: Unstarted,
) -> int:
    """Run a job whose options were checked."""
    began, run_name, planned = events.now(), request.run_name, placement
    queue, restarts = options.backend.queue(), allocation.spec.policy.restarts
    with ExitStack() as stack:
        loop = stack.enter_context(EventLoop())
        for text in () if staged_files is None else staged_files.notes:
            say(text)
        if options.has_other_machines:
            _name_idle_hosts(allocation.hosts, placement)
        made = options.backend.hosts(request, allocation, placement, loop)
        fleet = stack.enter_context(made or AgentFleet(options.backend, request, allocation, placement, loop))
        from launcher.launch.display import Display, tmux_session
        from launcher.launch.orchestrator import Orchestrator, Recovery
        from launcher.output.renderers import RunInfo, record_as_dict
        from launcher.output.run_files import write_json

        if staged_files is not None:
            staged_files.begin(fleet, run_name, interrupts, loop)
            stack.callback(staged_files.remove)
            staged_files.send()

        tmux = (
            tmux_session(run_name, lambda: bool(interrupts.read())) if options.settings[table.TMUX] else None
        )
        unstarted.paths = paths = _run_folder(options, run_name, fleet.local_agents)
        if detached is not None:
            detached.use_folder(paths, run_name)
        relays = _relays(fleet, options.settings[table.RELAY])
        without_relay: tuple[str, ...] = ()
        if options.settings[table.RELAY] is not None and fleet.has_remote_hosts:
            reached = {*relays, *allocation.here}
            without_relay = tuple(host.name for host in allocation.hosts if host.name not in reached)

        board = (
            None
            if options.settings[table.TENSORBOARD] is None
            else TensorBoardSidecar(fleet.forwarding, allocation.here, options.has_own_containers)
        )

        def settled(placement: Placement) -> Placement:
            """The placement with the folders and relays of its tasks on their hosts."""
            if staged_files is not None:
                placement = staged_files.with_folders(placement)
            if staged_files is not None and options.spec.output_dirs:
                placement = staged_files.make_output_dirs(placement, paths)
            if options.settings[table.TENSORBOARD] == "":
                placement = with_output_folder(placement)
            return placement.with_env({p.task: relays.get(p.host.name, {}) for p in placement.tasks})

        placement = fleet.with_addresses(stack.enter_context(fleet.running(settled(placement))))

        def reach(host: str) -> None:
            """Connect to a lost host again, and bring the files of the launch."""
            if relays and host not in relays:
                raise TransportError(f"{host}: none of its ports is forwarded")
            fleet.recover(host)
            if staged_files is not None:
                staged_files.copy_to(host)

        recovery = None
        if allocation.spec.policy.restarts and fleet.seconds_until_tasks_ended is not None:

            def moved(placement: Placement) -> Placement:
                return fleet.with_addresses(settled(placement))

            recovery = Recovery(
                replace(planned, standby=placement.standby), moved, fleet.seconds_until_tasks_ended, reach
            )

        display = Display(options, show, paths, tmux)
        if detached is not None:
            display.renderers = [*display.renderers, detached]
        notes = (_announcement(run_name, placement), *options.notes, *placement.notes, *display.notes)
        swept = _sweep(run_name)
        check = fleet.has_remote_hosts and not options.settings[table.NO_CHECK]
        hints = HostHints(placement.hosts()) if check else None
        gc.freeze()  # the collector need not look at imported modules
        gc.enable()
        orchestrator = Orchestrator(
            loop,
            allocation.spec,
            placement,
            fleet.link_to,
            display,
            RunInfo(run_name, placement, paths, began, without_relay),
            interrupts,
            hints,
            check,
            options.settings[table.COMMANDS_FD],
            recovery,
            board,
        )
        complete = written = True
        with ExitStack() as ending:
            messages = ending.enter_context(MessageQueue())
            # A signal after the end of the job, as at scancel, does not prevent the report.
            with interrupts.queued():
                orchestrator.begin()
                unstarted.job_runs = True
                for note in notes:
                    say(note, urgent=False)
                if swept:
                    say(swept)
                report = orchestrator.run(messages)
                left = report.restarts < restarts
                near = interrupts.limit_is_near
                asks = bool(queue and left and near and report.failure and queue.may_requeue())
                goes_on = asks or bool(queue and report.failure and queue.is_requeued())
                if goes_on and not asks:  # the queue signals the processes of the job, one after the other
                    interrupts.ignore()
                loop.watch(messages.fd, lambda: display.show_waiting(messages))
                ending.callback(loop.watch, messages.fd)
                ending.enter_context(display.closing(report, interrupts, messages, goes_on))
            if staged_files is not None:
                complete = staged_files.collect(orchestrator.plan, paths)
            if (report_file := options.settings[table.REPORT]) is not None:
                written = write_report(report, report_file)
            for line in fleet.leftovers():
                say(line)
            if goes_on:
                say(f"the job is queued again: restart {report.restarts + 1} of {restarts}")
        written = written and not (display.unwritten or orchestrator.plan_unwritten)
        code = report.exit_code
        if not code and not (complete and written):
            text = "the job is ok, but some files or output could not be written or fetched: see above"
            say(f"exit code {LaunchError.exit_code}: {text}")
            code = LaunchError.exit_code
        if code != report.exit_code and not goes_on:
            with suppress(OSError):  # a full disk
                write_json(paths.report, record_as_dict(replace(report, exit_code=code)))
    if queue and asks:
        try:
            queue.requeue()
        except TransportError:
            os.replace(paths.earlier, paths.report)
            raise
    return code


def _relays(fleet: Fleet, socket: str | None) -> dict[str, dict[str, str]]:
    """Forward a port of each other machine to a unix socket here; the variables of its tasks, by host.

    Raises:
        TransportError: the transport forwards no ports.
    """
    if socket is None or not fleet.has_remote_hosts:
        return {}
    if fleet.forwarding is None:
        raise TransportError("--relay: this transport forwards no ports")
    ports = fleet.forwarding.relay(os.path.abspath(socket))
    return {host: {RELAY_VARIABLE: f"127.0.0.1:{port}"} for host, port in ports.items()}


def _name_idle_hosts(hosts: Sequence[Host], placement: Placement) -> None:
    ready = [host.name for host in placement.standby]
    if ready:
        say(f"no task runs on {join_names(ready)} until a host is lost")
    used = {*ready, *(host.name for host in placement.hosts())}
    idle = [host.name for host in hosts if host.name not in used and not host.spare]
    if idle:
        count = len(placement.tasks)
        tasks = "1 task (--workers N starts more)" if count == 1 else f"{count} tasks"
        say(f"no task runs on {join_names(idle)}: the job has {tasks}")


def _run_folder(options: LaunchOptions, run_name: str, agents: Sequence[int]) -> RunPaths:
    """Make the folder of the run.

    Raises:
        JobError: it is in use. If a job file names it, each run of the file uses the same folder.
    """
    from launcher.runs.folder import adopt_run, create

    queue = options.backend.queue()
    batch = None if queue is None else queue.own()
    if options.submitted is not None:
        return adopt_run(options.submitted, agents, batch)
    try:
        return create(options.settings[table.RUN_DIR], run_name, agents, batch)
    except JobError as error:
        where = options.settings.source(table.RUN_DIR)
        if where in ("", "--run-dir"):
            raise
        advice = "expected a new or an empty folder: remove it, or give this run another with --run-dir"
        raise JobError(replace(fault, where=where, expected=advice) for fault in error.faults) from error


def _sweep(run_name: str) -> str:
    """Kill processes that runs with a dead launcher left. Returns a message; empty: there were none."""
    from launcher.runs.folder import unfinished

    runs = unfinished(run_name)
    if not runs:
        return ""
    from launcher.runs.folder import kill_leftovers

    return kill_leftovers(runs).text


def _announcement(run_name: str, placement: Placement) -> str:
    """Return the first line about a job. The last lines have the folder of its logs."""
    tasks = plural_roles(Counter(placed.role.name for placed in placement.tasks))
    hosts = placement.hosts()
    where = hosts[0].name if len(hosts) == 1 else plural(len(hosts), "host")
    return f"job {run_name}: {tasks} on {where}"

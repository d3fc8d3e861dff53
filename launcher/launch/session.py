"""One launch, from its options to its exit code. `Session.run` tells it from top to bottom.

The command line and the Python API call it. The agents start before the modules for display and supervision
are imported, because both take time and can go on side by side. Patterns on this path are strings, which `re`
compiles when they are first used.
"""

from __future__ import annotations

import enum
import gc
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from launcher.backends.backend import Allocation, LaunchRequest, Purpose
from launcher.backends.connections import Fleet, slow
from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import Fault, HostsError, JobError, LaunchError, TransportError
from launcher.common.record import replace
from launcher.common.report import Report
from launcher.common.text import plural, plural_roles
from launcher.config import table
from launcher.event_loop import EventLoop
from launcher.job import Placement, Plan, RunPaths
from launcher.launch.host_hints import HostHints, host_file_hint, name_idle_hosts
from launcher.launch.interrupts import Interrupts
from launcher.launch.options import LaunchOptions
from launcher.launch.plan_output import defaults_in_effect, show_plan
from launcher.launch.programs import check_all_programs_here, check_packages, check_placed_programs
from launcher.launch.recovery import Recovery
from launcher.launch.reports import (
    publish_report,
    report_with_error,
    unstarted_report,
    with_earlier_attempts,
    with_progress,
    write_report_for_user,
    write_run_report,
)
from launcher.launch.socket_relay import SocketRelay
from launcher.launch.tensorboard import TensorBoardSidecar, with_output_folder
from launcher.messages import MessageQueue, say
from launcher.output.renderers import RunInfo
from launcher.runs.folder import adopt_run, create, kill_leftovers, unfinished
from launcher.runs.run import new_run_name, selected
from launcher.scheduler.placement import place
from launcher.threads import start_function

if TYPE_CHECKING:
    from launcher.launch.display import Display
    from launcher.launch.event_command import EventCommandRunner
    from launcher.launch.orchestrator import Orchestrator
    from launcher.launch.requested_files import RequestedFiles
    from launcher.launch.staged_files import StagedFiles
    from launcher.output.background import Background
    from launcher.output.tmux import Tmux
    from launcher.runs.end_command import UserCommand
    from launcher.runs.run import Run


class Requeue(enum.Enum):
    """The answer to whether a cluster's queue continues this run with another launcher after this one."""

    NO = "no"
    #: A time limit is near and restarts are left, so this launcher asks the queue for another one.
    BY_US = "by us"
    #: Someone else has requeued the batch job. The queue is about to signal its processes.
    BY_QUEUE = "by the queue"


class Session:
    """One launch, from its options to its exit code. Call `run` once.

    Each step sets the attributes that are listed below under its name. Later steps use them.

    Args:
        options: The options of the launch.
        background: Tells the command of ``--detach`` about the run. None without that option.
    """

    # run
    interrupts: Interrupts
    allocation_stack: ExitStack
    job_stack: ExitStack
    messages: MessageQueue
    # allocate
    request: LaunchRequest
    allocation: Allocation
    # place
    requested_files: RequestedFiles | None
    shown_tasks: frozenset[str] | None
    # connect
    loop: EventLoop
    fleet: Fleet
    files: StagedFiles | None
    display_class: type[Display]
    orchestrator_class: type[Orchestrator]
    # open_run_folder
    tmux: Tmux | None
    paths: RunPaths
    # start_hosts
    relay: SocketRelay
    tensorboard: TensorBoardSidecar | None
    placement_without_folders: Placement
    # open_display, supervise
    display: Display
    orchestrator: Orchestrator

    def __init__(self, options: LaunchOptions, *, background: Background | None = None) -> None:
        self.options = options
        self.settings = options.settings
        self.background = background
        #: When the launch began, in seconds since the epoch. `connect` sets it again.
        self.started_at = events.now()
        #: The queue of a cluster that may start launchers. None if the backend has none.
        self.queue = options.backend.batch_queue()
        # The launch that submitted this launcher to the queue has named the run. A dry run makes none.
        if options.submitted is not None:
            self.run_name = options.submitted.name
        else:
            self.run_name = "dry-run" if self.settings[table.DRY_RUN] else new_run_name()
        #: The tasks and their hosts. No task until `place`.
        self.placement = Placement(())
        #: Whether the folder of the run exists.
        self.has_folder = False
        #: Whether the supervisor has begun. From then on it makes the report.
        self.is_supervised = False
        #: Whether the run's folder contains the report.
        self.is_reported = False
        #: Whether the file of ``--report`` could be written, and all files of the tasks could be fetched.
        self.are_files_complete = True
        #: Whether another launcher continues the run. `supervise` finds out.
        self.requeue = Requeue.NO
        #: The command of ``--on-end``, as `run` has found it. None without that option.
        self.end_command: UserCommand | None = None
        #: What runs the command of ``--on-event``. None without that option.
        self.event_command: EventCommandRunner | None = None

    def run(self) -> int:
        """Run the job to its end, or print its plan with ``--dry-run``.

        Two stacks close what the steps open. The inner one contains everything that the job used. It is
        closed before the run is requeued, which needs the allocation, and may kill this process.

        Returns:
            The exit code of ``launch``.

        Raises:
            InputError: The options are wrong. Nothing was started.
            LaunchError: The job could not be started. No process of it is left.
        """
        with Interrupts() as self.interrupts:
            # With ``--events-fd`` another program has started launch. SIGHUP then comes from
            # `stop_at_end_of_file` when that program has ended, and not from a terminal.
            if self.settings[table.EVENTS_FD] is not None:
                self.interrupts.names[signal.SIGHUP] = "the end of the program that started launch"
            try:
                self.find_own_commands()
                check_packages(self.settings)
                with ExitStack() as self.allocation_stack:
                    self.allocate()
                    self.place()
                    self.check_programs()
                    if self.settings[table.DRY_RUN]:
                        return self.print_plan()
                    with ExitStack() as self.job_stack:
                        self.connect()
                        self.open_run_folder()
                        self.start_hosts()
                        with MessageQueue() as self.messages, self.open_display():
                            report = self.supervise()
                            self.finish(report)
                        code = self.fail_if_incomplete(report)
                    self.requeue_run()
                    return code
            except (LaunchError, KeyboardInterrupt, SystemExit) as error:
                self.report_error(error)
                if isinstance(error, HostsError) and (hint := host_file_hint(error, self.options.hosts_text)):
                    raise HostsError([*error.faults, hint]) from error
                raise
            finally:
                self.end_event_commands()
                self.run_end_command()

    # ------------------------------------------------------------------ before the job

    def find_own_commands(self) -> None:
        """Find the programs of ``--on-end`` and ``--on-event``, before anything is started.

        Raises:
            JobError: One does not exist, or cannot be run.
        """
        if self.settings[table.ON_END] or self.settings[table.ON_EVENT]:
            from launcher.launch.event_command import EventCommandRunner  # noqa: PLC0415 - few launches have one
            from launcher.runs.end_command import find_user_command  # noqa: PLC0415 - few launches have one

            self.end_command = find_user_command(self.settings, table.ON_END)
            if (command := find_user_command(self.settings, table.ON_EVENT)) is not None:
                self.event_command = EventCommandRunner(command)

    def allocate(self) -> None:
        """Get the hosts of the launch, until the outer stack of `run` gives them back.

        Messages about signals then name what these mean on the hosts, such as the time limit of a Slurm job.
        """
        if self.options.backend.shares_files:  # A misspelled program must not cost hours in a queue.
            check_all_programs_here(self.options)
        # The backend calls `ignore` before it gives hosts back, if no signal may interrupt that.
        self.request = launch_request(self.options, self.run_name, self.interrupts.ignore)
        allocating = self.options.backend.allocate(self.options.backend_options, self.request)
        allocation = self.allocation_stack.enter_context(allocating)
        # The Python environment of ``--venv`` is that of all hosts that name no other one.
        if venv := self.options.spec.venv:
            allocation.hosts = tuple(replace(host, venv=host.venv or venv) for host in allocation.hosts)
        # A launcher that a queue has started again continues the counts of attempts and restarts of the
        # launchers before it.
        if self.queue is not None and (requeued := self.queue.times_requeued()):
            allocation.spec = with_earlier_attempts(allocation.spec, self.options.submitted, requeued)
        self.interrupts.name(allocation.limit_name, allocation.stop_name)
        self.allocation = allocation

    def place(self) -> None:
        """Choose a host for each task, and check the options about files and tasks.

        The faults of ``--sync``, ``--collect`` and ``--show`` are known only then, and before anything is
        started.
        """
        placement = place(self.allocation.spec, self.allocation.hosts)
        # Standby hosts are of use only if tasks of a lost host can move to them.
        self.placement = placement if self.allocation.moves_tasks else replace(placement, standby=())
        # None means that nothing is copied to the hosts or back, so no program of ours runs there.
        self.requested_files = None
        if self.request.runs_programs:
            from launcher.launch.requested_files import RequestedFiles  # noqa: PLC0415 - imports compression

            self.requested_files = RequestedFiles(self.options, self.allocation, self.placement)
        self.shown_tasks = _shown_tasks(self.settings[table.SHOW], self.placement)

    def check_programs(self) -> None:
        """Check the programs of the tasks that run on this machine, unless they run in containers."""
        # The programs of containers are in their images, which launch does not look into.
        if not self.options.backend.runs_in_containers:
            check_placed_programs(self.options, self.placement, self.allocation.local)

    def print_plan(self) -> int:
        """Print what the launch would do (``--dry-run``).

        Returns:
            The exit code, 0.
        """
        files = self.requested_files
        expected = self.placement if files is None else files.expected()
        if self.settings[table.TENSORBOARD] == "":  # It is ``--tensorboard`` without a folder.
            expected = with_output_folder(expected)
        notes = (*defaults_in_effect(self.settings), *self.options.notes, *expected.notes)
        about_files = [*self.allocation.remarks, *([] if files is None else files.described())]
        if (report := self.settings[table.REPORT]) is not None:
            about_files.append(f"--report: a report is written to {report}")
        expected = replace(expected, notes=notes)
        as_json, command = self.settings[table.JSON], self.options.command
        return show_plan(self.allocation.spec, expected, about_files, as_json=as_json, command=command)

    def connect(self) -> None:
        """Start the agents on the hosts, and copy the files of the launch to them.

        The job stack, which `run` closes after the job, then removes the files and closes the agents. Its
        last entry is undone first, so the agents are still there when the files are removed.
        """
        self.started_at = events.now()  # The wait for hosts is no part of the job's time.
        self.loop = self.job_stack.enter_context(EventLoop())
        for note in () if self.requested_files is None else self.requested_files.notes:
            say(note)
        if self.options.has_other_machines:
            name_idle_hosts(self.allocation.hosts, self.placement)
        self.fleet = self.job_stack.enter_context(self.allocation.fleet(self.placement, self.loop))
        self.display_class, self.orchestrator_class = _supervised_half()  # The agents start meanwhile.
        self.files = None
        if self.requested_files is not None:
            from launcher.launch.staged_files import StagedFiles  # noqa: PLC0415 - imports compression

            self.files = StagedFiles(
                self.requested_files, self.fleet, self.run_name, self.interrupts, self.loop
            )
            self.job_stack.callback(self.files.remove)
            self.files.send()

    def open_run_folder(self) -> None:
        """Make the folder of the run. From now on it gets a report, however the launch ends.

        Raises:
            JobError: The folder is in use. If a job file names it, each run of the file uses the same folder.
        """
        self.tmux = None
        if self.settings[table.TMUX]:
            from launcher.output.tmux import Tmux  # noqa: PLC0415 - imports subprocess

            # The session is shown in this terminal if stdin, stdout and stderr are one.
            self.tmux = Tmux(
                self.run_name,
                attach=all(map(os.isatty, (0, 1, 2))),
                is_interrupted=lambda: bool(self.interrupts.read()),
            )
        self.make_run_folder(self.fleet.local_agents)

    def make_run_folder(self, agents: Sequence[int]) -> None:
        """Make the folder of the run, with its command of ``--on-end``.

        A launcher that was submitted to the queue of a cluster uses the folder that ``launch`` made when it
        submitted it. A detached launcher (``--detach``) tells its parent process which folder it is.

        Args:
            agents: The ids of the agents on this machine.

        Raises:
            JobError: The folder is in use.
        """
        # The folder's record names the queue's batch job and the agents here, so that `launch stop` and later
        # launches find them.
        batch_job = None if self.queue is None else self.queue.own()
        run = self.options.submitted
        if run is not None:
            adopt_run(run, agents, batch_job)
        else:
            run_dir, origin = self.settings[table.RUN_DIR], self.options.origin
            try:
                if origin.name:
                    from launcher.backends.queued_runs import create_named  # noqa: PLC0415 - imports subprocess

                    run = create_named(run_dir, self.run_name, agents, batch_job, origin)
                else:
                    run = create(run_dir, self.run_name, agents, batch_job, origin)
            except JobError as error:
                raise _folder_error(error, self.settings.source(table.RUN_DIR)) from error
        # The name of the user may have got a number.
        self.paths, self.options = run.paths, replace(self.options, origin=run.origin)
        self.has_folder = True
        if self.background is not None:
            self.background.use_folder(self.paths, self.run_name)
        if self.end_command is not None:
            self.end_command.store(self.paths)

    def start_hosts(self) -> None:
        """Make the hosts ready for tasks: containers run, and tasks get their folders and addresses."""
        self.relay = SocketRelay(self.fleet, self.settings[table.RELAY])
        self.tensorboard = None
        if self.settings[table.TENSORBOARD] is not None:
            self.tensorboard = TensorBoardSidecar(
                self.fleet.forwarding, self.allocation.local, self.options.has_own_containers
            )
        self.placement_without_folders = self.placement  # `recovery` needs it.
        running = self.fleet.running(self.with_folders(self.placement))
        self.placement = self.allocation.with_addresses(self.job_stack.enter_context(running))

    def with_folders(self, placement: Placement) -> Placement:
        """Return a placement of this launch with the folders and relays of its tasks on their hosts."""
        if self.files is not None:
            placement = self.files.with_folders(placement)
            if self.options.spec.output_dirs:
                placement = self.files.make_output_dirs(placement, self.paths)
        if self.settings[table.TENSORBOARD] == "":  # It is ``--tensorboard`` without a folder.
            placement = with_output_folder(placement)
        relays = {placed.task: self.relay.env(placed.host.name) for placed in placement.tasks}
        return placement.with_env(relays)

    # ------------------------------------------------------------------ the job

    def open_display(self) -> Display:
        """Return the display of the job, as a context that shows the verdict at its end."""
        self.display = self.display_class(
            self.options, self.shown_tasks, self.paths, self.tmux, self.background, self.messages
        )
        if self.event_command is not None:
            self.display.renderers = (*self.display.renderers, self.event_command)
        return self.display

    def supervise(self) -> Report:
        """Run the job to its end, and show it. From the first event on, an orchestrator does that.

        Returns:
            The report of the job.
        """
        # Tasks of an earlier launch whose launcher was killed would take ports and memory from this one.
        others = unfinished(self.run_name)
        killed = kill_leftovers(others).text
        self.run_left_commands(others)
        gc.freeze()  # The collector need not look at imported modules.
        gc.enable()  # `launcher.__main__` has disabled it for the imports.
        run_info = RunInfo(
            self.run_name,
            placement=self.placement,
            paths=self.paths,
            started_at=self.started_at,
            command=self.options.command,
            without_relay=self.relay.hosts_without(self.allocation),
        )
        self.orchestrator = self.make_orchestrator(run_info)
        # Signals wait, and the orchestrator reads them as requests to stop the job. So a signal after the end
        # of the job, as at scancel (Slurm), does not prevent the report.
        with self.interrupts.queued():
            self.display.begin(run_info)
            self.is_supervised = True  # From now on the orchestrator makes the report, also after an error.
            notes = (*self.options.notes, *self.placement.notes, *self.display.notes)
            for note in (self.announcement(), *notes):
                say(note, urgent=False)
            if killed:  # It says which processes of dead launchers were killed.
                say(killed)
            self.start_page()
            report = self.display.with_advice(self.orchestrator.run(), self.orchestrator.plan)
            report = with_progress(report, self.paths)
            self.requeue = self.requeue_after(report)
            # The queue (Slurm) is going to signal all processes of the batch job, and this one must still
            # write its report.
            if self.requeue is Requeue.BY_QUEUE:
                self.interrupts.ignore()
            run_continues = self.requeue is not Requeue.NO
            self.display.end_output(report, self.interrupts, run_continues=run_continues)
            self.is_reported = True
        return report

    def make_orchestrator(self, run_info: RunInfo) -> Orchestrator:
        """Return what runs the job in `supervise`, with the parts that the earlier steps have made."""
        checks_hosts = self.fleet.has_remote_hosts and not self.settings[table.NO_CHECK]
        return self.orchestrator_class(
            self.allocation.spec,
            run_info,
            loop=self.loop,
            fleet=self.fleet,
            display=self.display,
            interrupts=self.interrupts,
            recovery=self.recovery(),
            hints=HostHints(self.placement.hosts()) if checks_hosts else None,
            tensorboard=self.tensorboard,
            commands_fd=self.settings[table.COMMANDS_FD],
            takes_samples=not self.settings[table.NO_SAMPLES],
            progress=self.settings[table.PROGRESS],
            save_results=self.save_results,
        )

    def start_page(self) -> None:
        """Start the process of ``--page``. The job stack ends it before anything else that the job used."""
        if not self.settings[table.PAGE]:
            return
        if self.options.submitted is not None:  # This machine of a cluster has no browser of the user.
            say(f"there is no page here: `launch page {self.run_name}` shows the job where you are")
            return
        from launcher.launch.page_process import PageProcess  # noqa: PLC0415 - imports subprocess

        show, is_detached = self.display.tell_user, self.settings[table.DETACH]
        self.job_stack.enter_context(PageProcess(self.paths, self.loop, show, is_detached=is_detached))

    def run_left_commands(self, runs: Sequence[Run]) -> None:
        """Run the commands of ``--on-end`` that killed launchers have left, while the job runs.

        Args:
            runs: The runs that may have left one.
        """
        left = [run for run in runs if run.has_left_command]
        if left:
            from launcher.runs.end_command import run_left_commands  # noqa: PLC0415 - few runs leave one

            # The commands may take minutes, so they run while the job does. If the system starts no thread, a
            # later launch runs them.
            with suppress(TransportError):
                thread = start_function(run_left_commands, left, name="commands of --on-end")
                self.job_stack.callback(thread.join)

    def announcement(self) -> str:
        """Return the first message about a job: its name, its tasks and where they run."""
        tasks = plural_roles(Counter(placed.role.name for placed in self.placement.tasks))
        hosts = self.placement.hosts()
        where = hosts[0].name if len(hosts) == 1 else plural(len(hosts), "host")
        name = self.options.origin.name
        return f"job {self.run_name}{f', {name}' if name else ''}: {tasks} on {where}"

    def recovery(self) -> Recovery | None:
        """Return how lost hosts are recovered. None if the tasks of a lost host cannot start again."""
        if not self.allocation.spec.policy.restarts:
            return None
        seconds = self.fleet.seconds_until_tasks_ended
        # The supervisor waits for so long before it starts the tasks of a lost host elsewhere, because two
        # attempts of a task must never run at once. It is None if these tasks cannot start again at all, as
        # with Docker on other machines.
        if seconds is None:
            return None
        # The folders of a task (the copies of ``--sync``, and that for its results) may have other paths on
        # another host. So the supervisor moves tasks in a placement without folders, and then `complete` adds
        # the folders and addresses on the new hosts. The standby hosts (with an agent, but no task) are those
        # of the present placement, which contains only the ones that have turned out to work.
        placement = replace(self.placement_without_folders, standby=self.placement.standby)
        return Recovery(
            placement, with_folders=self.complete, seconds_until_tasks_ended=seconds, recover=self.recover
        )

    def save_results(self, plan: Plan, tasks: Collection[TaskId]) -> None:
        """Copy the results of tasks to the URL of ``--output-to``, see `StagedFiles.save`."""
        assert self.files is not None  # There are output folders.
        self.files.save(self.paths, plan, tasks)

    def complete(self, placement: Placement) -> Placement:
        """Return a placement whose tasks have moved, with their folders and addresses on the new hosts."""
        return self.allocation.with_addresses(self.with_folders(placement))

    def recover(self, host_name: str) -> None:
        """Make a lost host usable again, with the files of the launch. It blocks until that is done.

        Args:
            host_name: The name of the host.

        Raises:
            TransportError: That is not possible now, or no port of the host is forwarded for ``--relay``.
        """
        self.relay.check(host_name)
        self.fleet.recover(host_name)
        if self.files is not None:
            self.files.copy_to(host_name)

    # ------------------------------------------------------------------ after the job

    def requeue_after(self, report: Report) -> Requeue:
        """Return whether the run continues with another launcher after the job has ended here.

        Args:
            report: The report of the job.
        """
        if self.queue is None:
            return Requeue.NO
        is_restart_left = report.restarts < self.allocation.spec.policy.restarts
        is_cut_short = report.failure is not None and self.interrupts.limit_is_near
        if is_cut_short and is_restart_left and self.queue.may_requeue():
            return Requeue.BY_US
        # The queue is asked after a success, too. It signals all processes of the batch job at once, and
        # tasks that save their state may exit with 0 before this process sees its own signal.
        return Requeue.BY_QUEUE if self.queue.is_requeued() else Requeue.NO

    def finish(self, report: Report) -> None:
        """Fetch the files of the tasks, and write the file of ``--report``. The verdict is shown after that.

        Args:
            report: The report of the job.
        """
        # The orchestrator no longer shows messages. So the loop does, while it turns for the copies.
        self.loop.watch(self.messages.fd, self.display.show_messages)
        try:
            if self.files is not None:
                fetched = self.files.collect(self.orchestrator.plan, self.paths)
                self.are_files_complete = self.are_files_complete and fetched
            if (file := self.settings[table.REPORT]) is not None:
                with self.interrupts.limited():
                    quiet = self.settings[table.QUIET] or self.settings[table.JSON]
                    written = write_report_for_user(report, file, self.loop, quiet=quiet)
                self.are_files_complete = self.are_files_complete and written
            for line in self.fleet.leftovers():
                say(line)
            if self.requeue is not Requeue.NO:
                restarts = self.allocation.spec.policy.restarts
                say(f"the job is queued again: restart {report.restarts + 1} of {restarts}")
        finally:
            self.loop.watch(self.messages.fd)  # Without a function it is no longer watched.

    def fail_if_incomplete(self, report: Report) -> int:
        """Return the exit code of the launch: 125 if the job is ok, but something that it wrote was lost.

        Args:
            report: The report of the job.
        """
        # A job that failed has an exit code that says more.
        is_output_complete = not (self.display.unwritten or self.orchestrator.plan_unwritten)
        if report.exit_code or (self.are_files_complete and is_output_complete):
            return report.exit_code
        code = LaunchError.exit_code
        text = "the job is ok, but some files or output could not be written or fetched: see above"
        say(f"exit code {code}: {text}")
        if self.requeue is Requeue.NO:  # Otherwise the next launcher of the run writes the report.
            write_run_report(replace(report, exit_code=code), self.paths)
        return code

    def requeue_run(self) -> None:
        """Ask the queue to start another launcher for this run, if `requeue_after` has decided so.

        Raises:
            TransportError: The queue refuses.
        """
        if self.queue is not None and self.requeue is Requeue.BY_US:
            try:
                self.queue.requeue()
            # The signal that raises this comes from the queue, which has accepted and stops this process.
            except (KeyboardInterrupt, SystemExit):
                self.requeue = Requeue.BY_QUEUE
                raise

    # ------------------------------------------------------------------ an error instead

    def report_error(self, error: BaseException) -> None:
        """Leave a report of a launch that an error or a signal has ended, where someone may look for one.

        From the moment the run has a folder, every end of a launch leaves a report there. Otherwise the run
        would look as if its launcher had been killed. Before that moment, only a user who asked for a report
        gets one.

        Args:
            error: The error or the signal.
        """
        if self.is_reported:
            # If another launcher was to continue the run, the report has another name. The requeue has
            # failed, so no launcher does, and it becomes the report of the run.
            if self.requeue is Requeue.BY_US:
                with suppress(OSError):  # There is no report if the disk is full.
                    os.replace(self.paths.earlier, self.paths.report)
                self.requeue = Requeue.NO
            return
        is_launch_error = isinstance(error, LaunchError)
        # Before the run has a folder, a wrong option leaves no report, unless it is found on the hosts.
        is_input_error = is_launch_error and not isinstance(error, TransportError)
        if not self.is_supervised and self.queue is not None and self.queue.is_requeued():
            self.requeue = Requeue.BY_QUEUE
        # Otherwise `launch attach` after a failed --detach would show the run before it, and a command of
        # --on-end would have no report to tell of.
        needs_folder = self.background is not None or (self.end_command and self.requeue is Requeue.NO)
        if needs_folder and not (self.has_folder or is_input_error or self.settings[table.DRY_RUN]):
            with suppress(LaunchError):  # Such as a folder of --run-dir that is in use.
                self.make_run_folder(())
        if self.is_supervised:
            report = report_with_error(self.orchestrator.report(), error)
        else:
            report = unstarted_report(self.run_name, self.placement, self.started_at, error)
        if not self.settings[table.DRY_RUN] and (self.has_folder or not is_input_error):
            publish_report(report, self.options, self.paths if self.has_folder else None)
        # Once the job is supervised, its own messages say this, and a LaunchError has a message, too.
        if self.interrupts.first_name and not self.is_supervised and not is_launch_error:
            say(f"{self.interrupts.first_name}: no task was started")

    # ------------------------------------------------------------------ when all has ended

    def end_event_commands(self) -> None:
        """Wait until the commands of ``--on-event`` that still run have ended. Ctrl-C kills them."""
        if self.event_command is not None:
            with self.interrupts.queued(), slow("waiting for the command of --on-event"):
                self.interrupts.read()  # What has stopped the job is no reason to stop the command.
                self.event_command.end(lambda: signal.SIGINT in self.interrupts.read())

    def run_end_command(self) -> None:
        """Run the command of ``--on-end``, unless another launcher continues the run."""
        if self.end_command is None or not self.has_folder:
            return
        if self.requeue is Requeue.NO:
            from launcher.runs.end_command import run_at_end  # noqa: PLC0415 - few launches have one

            with self.interrupts.queued(), slow("waiting for the command of --on-end"):
                self.interrupts.read()  # What has stopped the job is no reason to stop the command.
                run_at_end(self.end_command, self.paths, lambda: signal.SIGINT in self.interrupts.read())
        elif self.options.submitted is None:
            with suppress(OSError):  # The next launcher has another run, with the same command.
                os.unlink(self.paths.on_end)


def launch_request(
    options: LaunchOptions, run_name: str, ignore_signals: Callable[[], None]
) -> LaunchRequest:
    """Return what the backend needs to get the hosts of a launch.

    Args:
        options: The options of the launch.
        run_name: The name of the run.
        ignore_signals: Called before hosts are given back, if no signal may interrupt that.
    """
    return LaunchRequest(
        run_name,
        spec=options.spec,
        settings=options.settings,
        named_hosts=options.hosts,
        purpose=Purpose.DRY_RUN if options.settings[table.DRY_RUN] else Purpose.RUN,
        ignore_signals=ignore_signals,
        warm_up=_supervised_half,  # It imports what is needed next while the backend waits for hosts.
    )


def _supervised_half() -> tuple[type[Display], type[Orchestrator]]:
    """Return the classes that show and run the job. The first call imports them, which takes time."""
    from launcher.launch import display, orchestrator  # noqa: PLC0415 - while the agents start

    return display.Display, orchestrator.Orchestrator


def _shown_tasks(show: str | None, placement: Placement) -> frozenset[str] | None:
    """Return the names of the tasks whose output is shown.

    Args:
        show: The value of ``--show``. None without that option.
        placement: All tasks of the job.

    Returns:
        The names. None without ``--show``, when all are shown.

    Raises:
        InputError: A name is not the name of a task.
    """
    if show is None:
        return None
    names = [name.strip() for name in show.split(",") if name.strip()]
    if not names:
        raise JobError([Fault("--show", f"{show!r} names no task", "expected names, as in worker,ps/0")])
    return frozenset(selected([placed.task for placed in placement.tasks], names, "--show"))


def _folder_error(error: JobError, source: str) -> JobError:
    """Return the error about a folder in use, with the place in the job file that names the folder.

    Args:
        error: The error, whose faults name no place.
        source: Where the folder is named, as in ``job.yaml:3``.
    """
    if source in ("", "--run-dir"):  # No file names the folder.
        return error
    expected = "expected a new or an empty folder: remove it, or give this run another with --run-dir"
    return JobError(replace(fault, where=source, expected=expected) for fault in error.faults)

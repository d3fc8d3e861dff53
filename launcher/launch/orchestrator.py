"""The loop of one job: passes events of the agents to the supervisor, and executes its commands.

A session makes an `Orchestrator` when the hosts are ready, and calls `run`. All decisions about tasks and
hosts are made by `launcher.supervisor`. Nothing here may block the loop: other threads wait for lost hosts.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.backends.connections import Fleet
from launcher.common import events
from launcher.common.cluster import TASK_MARK, TaskId
from launcher.common.errors import LaunchError
from launcher.common.record import replace
from launcher.common.report import Report
from launcher.common.text import sanitize_host_text
from launcher.common.trusted_io import read_regular
from launcher.event_loop import EventLoop, TimerHandle
from launcher.job import STOP_NOW_MARK, JobSpec, Placement, Plan, RunPaths
from launcher.launch.command_pipe import CommandPipe
from launcher.launch.control import Control, ControlledJob
from launcher.launch.display import Display
from launcher.launch.host_connections import HostConnections
from launcher.launch.host_hints import HostHints
from launcher.launch.interrupts import Interrupts
from launcher.launch.plan_output import plan_as_dict
from launcher.launch.recovery import Recovery
from launcher.launch.sampling import Sampling
from launcher.launch.tensorboard import PREFERRED_PORTS, TASK, TensorBoardSidecar
from launcher.output.renderers import DisplayEvent, RunInfo
from launcher.output.run_files import write_json
from launcher.scheduler.plan import make_plan, preloads
from launcher.supervisor import JobState, Machine, Phase, Timer, TimerKind, commands

if TYPE_CHECKING:
    from concurrent.futures import Future

    from launcher.launch.stacks import StackTaker

#: How long the stacks of tasks that hang may take before the tasks are stopped.
_STACKS_SECONDS = 5.0
_STACKS_POLL_SECONDS = 0.05
#: The pause between two looks for the reason of an agent's exit.
_POLL_SECONDS = 0.01
#: Events that are not shown, because `events.TaskMoved` contains what they say.
_EVENTS_IN_TASK_MOVED = (events.TaskStarted, events.TaskNotStarted, events.TaskExited, events.TaskGone)


class Orchestrator:
    """The loop that runs one job from its first command to its report.

    Its attribute `_machine` is the supervisor, a state machine: it gets each event, and returns the commands
    that this loop executes.

    Args:
        spec: What the user wants to run.
        run_info: The run, as the renderers know it.
        loop: Drives the links to the agents.
        fleet: Returns the link to the agent of a host.
        display: Shows the job.
        interrupts: The signals, which must be queued while the job runs.
        recovery: How lost hosts are recovered. None if their tasks cannot start again.
        hints: Makes hints about other machines. These then try to connect to each other before the tasks
            start. None if there are no other machines, or the user wants no checks.
        tensorboard: TensorBoard and its URL. None if the job runs no TensorBoard.
        commands_fd: The inherited pipe from which commands are read. None if there is none.
        takes_samples: Whether to take samples of tasks.
        progress: How lines with steps look (``--progress``). None to recognize them.
        save_results: Copies the results of tasks before they start again (``--output-to``). It blocks.
    """

    def __init__(  # noqa: PLR0913 - the parts of a launch, which only a session knows, by name
        self,
        spec: JobSpec,
        run_info: RunInfo,
        *,
        loop: EventLoop,
        fleet: Fleet,
        display: Display,
        interrupts: Interrupts,
        recovery: Recovery | None,
        hints: HostHints | None,
        tensorboard: TensorBoardSidecar | None,
        commands_fd: int | None,
        takes_samples: bool,
        progress: str | None,
        save_results: Callable[[Plan, Collection[TaskId]], None],
    ) -> None:
        """Connect the parts of a launch to the supervisor. Nothing happens until `run` is called.

        The class describes the arguments.
        """
        self._spec, self._run_info, self._loop = spec, run_info, loop
        self._display, self._interrupts = display, interrupts
        self._recovery, self._hints, self._tensorboard = recovery, hints, tensorboard
        self._save_results = save_results
        self._use_placement(run_info.placement)
        #: Reads commands of the program that has started launch. None if it has passed no pipe.
        self._command_pipe: CommandPipe | None = None
        if commands_fd is not None:
            self._command_pipe = CommandPipe(loop, commands_fd, self._host_of, on_signal=self._signal_task)
        state = JobState(
            spec,
            # The supervisor moves tasks to standby hosts, which only the placement for recovery contains.
            self._placement if recovery is None else recovery.placement,
            # There are hints if and only if there are other machines and the user wants checks (no
            # ``--no-check``). The check of the network, too, is of use only then.
            checks_network=hints is not None,
            seconds_until_tasks_ended=None if recovery is None else recovery.seconds_until_tasks_ended,
            managed=interrupts.managed,  # Whether Slurm or Kubernetes may signal this process.
        )
        #: The supervisor, which decides what is done after each event.
        self._machine = Machine(run_info.run_name, state)
        #: The links to the agents, to which commands are sent, and which report what agents say.
        self._connections = HostConnections(fleet, loop, on_message=self._on_message, on_loss=self._handle)
        send = self._connections.send
        #: Takes the stacks of tasks. None until a command asks for some.
        self._stack_taker: StackTaker | None = None
        job = ControlledJob(
            self._machine, report=self.report, send=send, handle=self._handle, stacks=self._stacks
        )
        #: Lets agents measure what tasks use. None with ``--no-samples``.
        self._sampling: Sampling | None = None
        if takes_samples:
            self._sampling = Sampling(loop, self._machine, run_info.paths, progress, self._on_findings)
        # With samples, the hosts measure at these intervals by themselves. 0: only when ``launch ps`` asks.
        every = 0.0 if self._sampling is None else self._sampling.command.every
        #: Answers ``launch ps``, ``attach``, ``restart`` and ``stop``.
        self._control = Control(loop, display.event_buffer, job, every)
        #: The timers of the supervisor that are set.
        self._timers: dict[Timer, TimerHandle] = {}
        #: Whether the agents keep the output.
        self._is_output_held = False
        #: The descriptors of slow readers, which the loop watches.
        self._blocked_fds: set[int] = set()
        #: The addresses and commands of all tasks. None until the ports are known.
        self.plan: Plan | None = None
        #: Whether ``plan.json`` could not be written.
        self.plan_unwritten = False
        #: The function that executes each type of command of the supervisor.
        self._handlers = self._command_handlers()

    def _command_handlers(self) -> dict[type, Callable[[Any], None]]:
        """Return the function that executes each type of command."""
        send = self._connections.send
        return {
            events.HoldPorts: self._hold_ports,
            commands.CheckNetwork: self._check_network,
            events.StartTask: self._start_task,
            events.StopTasks: send,
            events.CloseAgent: send,
            commands.CloseLink: lambda command: self._connections.give_up(command.host),
            commands.SaveResults: self._save,
            commands.StartAgent: self._start_agent,
            commands.MakePlan: self._make_plan,
            commands.MoveTasks: self._move_tasks,
            commands.SetTimer: self._set_timer,
            commands.CancelTimer: self._cancel_timer,
            events.Tell: self._show,
            events.TaskMoved: self._show,
            events.Restarting: self._show,
        }

    def _use_placement(self, placement: Placement) -> None:
        """Use this placement from now on: at the start, and after tasks have moved to other hosts."""
        self._placement = placement
        #: The tasks of each host, by its name.
        self._on_hosts = placement.by_host()
        #: The host of each task.
        self._host_of = {placed.task: placed.host for placed in placement.tasks}

    def _tasks_of(self, host: str) -> list[TaskId]:
        """Return the tasks that run on a host by the present placement."""
        return [placed.task for placed in self._on_hosts.get(host, ())]

    def run(self) -> Report:
        """Run the job to its end. Signals must be queued meanwhile (`Interrupts.queued`).

        Returns:
            The report of the job, of which no process is left.
        """
        self._loop.watch(self._interrupts.fd, self._on_signals)
        self._loop.watch(self._display.messages.fd, self._show_messages)
        if self._command_pipe is not None:
            self._command_pipe.open()
        try:
            self._show_messages()
            with suppress(OSError):  # The job runs without a control socket if no file descriptor is left.
                self._control.open(self._run_info.run_name)
            self._execute(self._machine.begin())
            # The agents start already. The state machine has begun before, so that it expects their events.
            for host in self._placement.agent_hosts():
                self._connections.open(host, self._tasks_of(host.name))
            while self._machine.phase is not Phase.OVER:
                self._run_one_turn()
            if self._sampling is not None:
                self._sampling.finish()
            self._tick_renderers()  # It shows the last events.
        finally:
            self._control.close()
            if self._stack_taker is not None:
                self._stack_taker.give_up()
            for line in self._connections.close(lambda: self._machine.state.is_immediate):
                self._show(events.Tell(line, urgent=True))
            if self._command_pipe is not None:
                self._command_pipe.close()
            for fd in (self._interrupts.fd, self._display.messages.fd, *self._blocked_fds):
                self._loop.watch(fd)  # Without a function it is no longer watched.
        return self.report()

    def report(self) -> Report:
        """Return the report of the job as it is now."""
        run_info = self._run_info
        report = self._machine.report(run_info.started_at, events.now(), run_info.paths.root)
        url = self._tensorboard.url if self._tensorboard is not None else ""
        return replace(report, tensorboard=url or None)

    # ------------------------------------------------------------------ the loop

    def _run_one_turn(self) -> None:
        """Wait for the next events or timers, react to them, and look for requests to stop.

        The lines that renderers have made from the events are written after that. Only then it is known
        whether a reader is slow, so the agents must keep further output. That comes last.
        """
        self._loop.run_once(self._tick_renderers())
        self._connections.report_losses()
        self._display.writer.flush()
        stop = self._display.stop_asked()
        if stop is not None:
            self._handle(stop)
        self._hold_output()

    def _hold_output(self) -> None:
        """Let the agents keep the output of tasks while its reader is slow. Other events still arrive.

        Whenever that changes, the supervisor is told that output is late, so that no task counts as silent.
        The loop watches the descriptors of slow readers, so that it goes on when one can be written to again.
        """
        writer = self._display.writer
        ending = self._machine.phase in (Phase.STOPPING, Phase.CLOSING)
        held = writer.should_hold(is_ending=ending, has_failed=self._machine.state.failure is not None)
        if held is not self._is_output_held:
            self._is_output_held = held
            self._note_delayed_output()
            self._connections.send_to_all(events.HoldOutput(host="", on=held))
        blocked = set(writer.blocked())
        for fd in self._blocked_fds - blocked:
            self._loop.watch(fd)  # Without a function it is no longer watched.
        for fd in blocked - self._blocked_fds:
            self._loop.watch(fd, write=writer.flush)
        self._blocked_fds = blocked

    def _time_up(self, timer: Timer) -> None:
        """Tell the supervisor that a timer has fired, and execute the commands that follow.

        If the supervisor is going to stop Python tasks because of this timer, their stacks are taken first.
        `_show_where_they_hang` then tells the supervisor of the timer, when the stacks are known.
        """
        del self._timers[timer]
        at = events.now()
        if timer.kind is TimerKind.SILENCE:  # It is not shown, because it fires often.
            # Tasks may have printed something that has not arrived, so their silence does not count. The
            # supervisor must know that before the timer makes it look for silent tasks.
            if self._is_output_held or self._connections.may_delay_output:
                self._note_delayed_output()
        else:
            self._show(events.TimeUp(at, str(timer)))
        if tasks := self._machine.python_tasks_to_stop(timer):
            self._show_where_they_hang(timer, tasks)
        else:
            self._execute(self._machine.time_up(timer, at))

    def _stacks(self) -> StackTaker:
        """Return what takes the stacks of tasks."""
        if self._stack_taker is None:
            from launcher.launch.stacks import StackTaker  # noqa: PLC0415 - few jobs need it

            self._stack_taker = StackTaker(self._loop, self._connections.run)
        return self._stack_taker

    def _show_where_they_hang(self, timer: Timer, tasks: Sequence[TaskId]) -> None:
        """Take and show the stacks of tasks that are to be stopped because a timer has fired.

        The supervisor is told of the timer, and stops the tasks, only when the stacks of all are known or a
        limit of some seconds is over. Until then the timer counts as set, so that it can still be cancelled.
        """
        taker, deadline = self._stacks(), time.monotonic() + _STACKS_SECONDS
        taker.take(self._machine.pids(tasks))

        def show_stacks() -> None:
            """Call this again soon, or show the known stacks, and tell the supervisor of the timer."""
            if taker.taking.intersection(tasks) and time.monotonic() < deadline:
                self._timers[timer] = self._loop.call_at(time.monotonic() + _STACKS_POLL_SECONDS, show_stacks)
                return
            self._timers.pop(timer, None)
            taker.give_up()
            lines, text = taker.describe(tasks)
            for line in lines:
                self._show(events.Tell(line))
            self._execute(self._machine.time_up(timer, events.now(), text))

        show_stacks()

    def _note_delayed_output(self) -> None:
        """Tell the supervisor that output may be late, so that no task counts as silent because of that."""
        self._execute(self._machine.handle(events.OutputDelayed(events.now())))

    def _tick_renderers(self) -> float | None:
        """Let the renderers show the events that have arrived, and send them to ``launch attach``.

        Returns:
            The seconds until it must be called again. None if only an event can make that necessary.
        """
        now = time.monotonic()
        waits = [renderer.tick(now) for renderer in self._display.renderers]
        # The reason of an agent's exit may become known without an event.
        waits.append(_POLL_SECONDS if self._connections.has_unexplained_losses else None)
        self._control.followers.tell()
        return min((max(0.0, seconds) for seconds in waits if seconds is not None), default=None)

    def _on_message(self, message: events.AgentEvent) -> None:
        """React to an event that an agent reports.

        Raises:
            ProtocolError: The host may not say that now.
        """
        self._machine.verify(message)
        if isinstance(message, events.Measured):  # What tasks use is no event of the job.
            self._control.measured(message)  # ``launch ps`` is told of it when it asks next.
            if self._sampling is not None:
                self._sampling.measured(message)
            return
        if self._sampling is not None and isinstance(message, events.AgentReady):
            self._sampling.agent_ready(message)
        self._handle(message)

    def _on_findings(self, findings: Sequence[events.Noticed | events.StepsRead]) -> None:
        """Show what was found in samples. The supervisor is told which tasks have made steps."""
        for finding in findings:
            if isinstance(finding, events.Noticed):
                self._show(finding)
            else:
                self._execute(self._machine.handle(finding))

    def _handle(self, event: events.Event) -> None:
        """Show an event, pass it to the supervisor, and execute the commands that follow.

        Before that, hints about hosts and the TensorBoard of the job see the event, which may lead to advice.
        """
        if not isinstance(event, _EVENTS_IN_TASK_MOVED):
            self._show(event)
        for observer in (self._hints, self._tensorboard):
            if observer is not None and (advice := observer.observe(event)):
                self._show(events.Tell(advice, urgent=True))
        self._execute(self._machine.handle(event))

    def _execute(self, decided: Sequence[commands.Command]) -> None:
        """Execute commands of the supervisor, each by the function for its type."""
        for command in decided:
            self._handlers[type(command)](command)

    def _show(self, event: DisplayEvent) -> None:
        """Show an event or a message. Each renderer (console, files, tmux) decides whether and how."""
        for renderer in self._display.renderers:
            renderer.on(event)

    def _on_signals(self) -> None:
        """Pass the signals that wait to the supervisor, as requests to stop the job."""
        for number in self._interrupts.read():
            # ``launch stop`` sends SIGTERM, after it has written a file that says so.
            mark = _stop_mark(self._run_info.paths) if number == signal.SIGTERM else None
            name = self._interrupts.names[number] if mark is None else "launch stop"
            self._handle(events.StopAsked(events.now(), number, name, at_once=mark == STOP_NOW_MARK))

    def _show_messages(self) -> None:
        """Show the messages for the user that other parts of launch have queued (`launcher.messages.say`)."""
        for message in self._display.messages.drain():
            self._show(message)

    # ------------------------------------------------------------------ commands

    def _signal_task(self, task: TaskId, number: int, to_all: bool) -> None:
        """Let an agent signal a task: all processes of it, or only its own process."""
        host = self._host_of[task].name
        self._connections.send(events.SignalTask(host, task=task, signal=number, all=to_all))

    def _hold_ports(self, command: events.HoldPorts) -> None:
        """Tell an agent to hold ports. Meanwhile fork servers on its host import modules (``--preload``)."""
        for preload in preloads(self._spec, self._on_hosts.get(command.host, ())):
            # A fork server is marked as a process of this run by the name of any task that is forked from it.
            self._send_marked(preload, preload.tasks[0])
        # TensorBoard gets a port that users know, if one of these is free.
        is_for_tensorboard = self._tensorboard is not None and TASK in command.tasks
        preferred = {TASK: PREFERRED_PORTS} if is_for_tensorboard else {}
        self._connections.send(replace(command, preferred=preferred))

    def _check_network(self, command: commands.CheckNetwork) -> None:
        """Tell each host which addresses of other hosts it is to connect to."""
        for host, ports in command.peers.items():  # The host that tries, and the port of each task to try.
            addresses = tuple(self._host_of[task].at(port) for task, port in ports.items())
            self._connections.send(events.TryPeers(host, addresses))

    def _start_task(self, command: events.StartTask) -> None:
        """Tell an agent to start a task."""
        self._send_marked(command, command.task)

    def _send_marked(self, command: events.StartTask | events.Preload, task: TaskId) -> None:
        """Send a command with the variable by which the processes of a task are recognized.

        Args:
            command: The command, whose environment the variable is added to.
            task: The task that the variable names.
        """
        mark = {TASK_MARK: f"{self._run_info.run_name}:{task}"}
        self._connections.send(replace(command, env={**command.env, **mark}))

    def _start_agent(self, command: commands.StartAgent) -> None:
        """Start a new agent on a lost host. Another thread waits for the host, while the loop goes on."""
        assert self._recovery is not None  # Without it the supervisor never lets a lost host be recovered.
        recover = partial(self._recovery.recover, command.host)
        self._loop.run_in_thread(recover, partial(self._on_recovery, command.host))

    def _save(self, command: commands.SaveResults) -> None:
        """Copy the results of tasks in another thread, and let the tasks start again when that is done.

        Copying may take minutes, in which the loop must go on to serve the agents.
        """
        assert self.plan is not None  # Tasks have run before.

        def start_again(saving: Future[None]) -> None:
            """Tell the supervisor that the results were copied."""
            saving.result()
            self._execute(self._machine.handle_saved(command.restart))

        self._loop.run_in_thread(partial(self._save_results, self.plan, command.tasks), start_again)

    def _on_recovery(self, host: str, recovery: Future[None]) -> None:
        """Use a lost host again, or tell the supervisor that this is not possible now.

        Args:
            host: The name of the host.
            recovery: The result of the attempt to recover it.
        """
        why = ""  # Why the host cannot be used. It stays empty if it can.
        try:
            recovery.result()
        except (LaunchError, OSError) as error:
            why = sanitize_host_text(str(error))
        # The host cannot be used, or the job is ending and does not need it.
        if why or self._machine.phase not in (Phase.STARTUP, Phase.RUNNING):
            self._execute(self._machine.handle(events.AgentLost(host, events.now(), why)))
            return
        self._connections.open(self._machine.state.hosts[host].host, self._tasks_of(host))
        # Its agent is new, so it does not know yet whether output is kept. The others were told before.
        self._connections.send(events.HoldOutput(host, self._is_output_held))

    def _make_plan(self, command: commands.MakePlan) -> None:
        """Make the plan with these ports, tell the agents and the supervisor, and write ``plan.json``."""
        self.plan = make_plan(self._spec, self._placement, command.ports)
        if self._tensorboard is not None:
            message = self._tensorboard.reach(self.plan)
            self.plan = replace(self.plan, tensorboard=self._tensorboard.url or None)
            if message:
                self._show(events.Tell(message))
        # The agents must know the addresses before `handle_plan` lets them start tasks. The file is written
        # last, because no task waits for it.
        self._connections.send_to_all(events.SetCluster("", self.plan.cluster, self.plan.sidecars))
        self._execute(self._machine.handle_plan(self.plan))
        if self._sampling is not None:
            self._connections.send_to_all(self._sampling.command)
        try:
            info, policy = self._run_info, self._spec.policy
            write_json(info.paths.plan, plan_as_dict(self.plan, info.run_name, info.command, policy))
        except OSError as error:
            self.plan_unwritten = True
            text = f"cannot write {self._run_info.paths.plan}: {error.strerror}"
            self._show(events.Tell(text, urgent=True))

    def _move_tasks(self, command: commands.MoveTasks) -> None:
        """Let tasks run on other hosts from their next start on, with the folders of the launch there."""
        assert self._recovery is not None  # Without it the supervisor never moves tasks.
        self._use_placement(self._recovery.with_folders(command.placement))
        for placed in self._placement.tasks:
            # Its new agent may report on it. Any other task that an agent names would be an error.
            self._connections.add_task(placed.host.name, placed.task)

    def _set_timer(self, command: commands.SetTimer) -> None:
        """Set a timer of the supervisor, in place of one that is set for the same purpose."""
        timer = command.timer
        self._cancel_timer(commands.CancelTimer(timer))
        due = time.monotonic() + command.seconds
        self._timers[timer] = self._loop.call_at(due, lambda: self._time_up(timer))

    def _cancel_timer(self, command: commands.CancelTimer) -> None:
        """Cancel a timer of the supervisor, if it is set."""
        if timer := self._timers.pop(command.timer, None):
            timer.cancel()


def _stop_mark(paths: RunPaths) -> bytes | None:
    """Return what ``launch stop`` has written for this launcher, see `RunPaths.stop_asked`.

    Returns:
        The content of the file: `STOP_NOW_MARK`, or empty. None if ``launch stop`` did not send SIGTERM.
    """
    try:
        return read_regular(paths.stop_asked, len(STOP_NOW_MARK))
    except OSError:
        return None

"""The agent's loop: it reacts to commands of the launcher, to ended processes and to output of tasks.

`launcher.agent.main` calls it, in the child of the watchdog. It is a single thread, which must never block
and never reap a child in another place than here: the kernel does not reuse the pid of a child before that,
so a signal to a child never reaches another process.
"""

from __future__ import annotations

import enum
import math
import os
import selectors
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from launcher.agent import host, ports, processes
from launcher.agent.connection import LauncherConnection
from launcher.agent.fork_servers import ForkServers
from launcher.agent.measuring import Measurements
from launcher.agent.output import Outputs
from launcher.agent.questions import Questions
from launcher.agent.remote_programs import Children
from launcher.agent.spawn import Spawner, Started
from launcher.agent.stopping import SIGKILL, RunningTask, Stopping, TaskProcesses
from launcher.agent.watchdog import END_TIMEOUT_SECONDS, Deadline
from launcher.common import events, protocol
from launcher.common.cluster import TF_CONFIG_ROLES, ClusterSpec, TaskId, complete
from launcher.common.errors import LaunchError
from launcher.common.record import replace

#: How tasks are stopped when the launcher is gone: signals, each with the seconds until the next one. The
#: time is short, because nobody reads the output of the tasks. It is the same if the agent is sent SIGTERM: a
#: shutdown or a cluster ends the host then, and SIGKILL follows soon. Only in a pod it is known how soon.
ABANDONED_STOP_SEQUENCE: events.StopSequence = ((signal.SIGTERM, 1.0), (SIGKILL, 5.0))
#: An agent with a pipe waits at most this long for the launcher to receive its last messages.
FAREWELL_SECONDS = 5.0
#: The report of a task that SIGTERM has ended is delayed by this time. A shutdown of this machine, or scancel
#: of a step, may signal the tasks first. If the agent is signalled, too, it reports only its own end.
_SIGTERM_REPORT_DELAY_SECONDS = 0.5
#: After this agent was sent SIGTERM, a connected launcher may stop the tasks within this time. systemd, Slurm
#: and ``kill 0`` signal launcher and agent at the same moment, and the launcher may allow the tasks more
#: time.
_SIGTERM_PATIENCE_SECONDS = 0.3


class _AgentPhase(enum.IntEnum):
    """What the agent does at the moment. Within one job it only advances to later phases.

    =========  =====================================================  ========================================
    phase      starts when                                            when no task is left, the agent
    =========  =====================================================  ========================================
    SERVING    the agent starts, or RESETTING is over                 waits
    RESETTING  `CloseAgent` arrives, and says that the agent stays    reports that, and serves the next job
    CLOSING    `CloseAgent` arrives, or the launcher is gone          reports that, and exits with 0
    CUT_SHORT  the agent reacts to SIGTERM, or its watchdog is gone   exits with 1; the launcher was told why
    =========  =====================================================  ========================================
    """

    SERVING = 0
    RESETTING = 1
    CLOSING = 2
    CUT_SHORT = 3


class Agent:
    """The agent of a host: starts and stops tasks as the launcher commands, and reports what happens to them.

    Args:
        agent_id: The number of the agent, which distinguishes its process tags from those of other agents.
        connection: The connection to the launcher.
        selector: The selector that the connection uses.
        watchdog_fd: A descriptor that reaches end-of-file when the watchdog exits.
        deadline: The time until which the watchdog lets the agent live, and which the agent renews. None if
            the watchdog watches a pipe instead.
        grace_seconds: How many seconds tasks get after SIGTERM if the agent itself is sent SIGTERM. None for
            as many as when the launcher is gone, because nobody knows when SIGKILL will follow.
    """

    def __init__(
        self,
        agent_id: int,
        connection: LauncherConnection,
        selector: selectors.BaseSelector,
        watchdog_fd: int,
        deadline: Optional[Deadline],
        grace_seconds: Optional[float],
    ) -> None:
        """Make the agent of a host from its parts. It starts to work in `run`.

        The arguments are described at the class.
        """
        # Processes whose parents have exited become children of the agent, which can find and stop them.
        processes.become_subreaper("launch-agent")
        #: The connection to the launcher, and its function that sends one message.
        self._connection = connection
        self._send = connection.send
        connection.set_callbacks(on_message=self._handle_message, on_disconnect=self._on_disconnect)
        self._selector = selector
        self._watchdog_fd = watchdog_fd
        self._deadline = deadline
        first_step, last_step = ABANDONED_STOP_SEQUENCE
        sigterm_step = first_step if grace_seconds is None else (signal.SIGTERM, grace_seconds)
        #: How the tasks are stopped if this agent is sent SIGTERM.
        self._sigterm_stop_sequence = (sigterm_step, last_step)
        #: Reads the output of the tasks, and sends it to the launcher.
        self._outputs = Outputs(selector, connection, on_closed=self._report_gone_if_done)
        #: The ports that are held for the tasks of this host until the end of the job.
        self._ports = ports.PortReservations()
        #: Finds all processes of a task, also those that have lost their parents.
        self._task_processes = TaskProcesses()
        #: Stops tasks, by one signal after another.
        self._stopping = Stopping(self._task_processes, on_signalled=self._report_signal)
        #: The children that belong to no task: they run remote commands, and answer `_questions`.
        self._children = Children(selector, connection, on_started=self._task_processes.own_children.add)
        #: Answers questions about this host that may take seconds, such as which GPUs it has.
        self._questions = Questions(self._children, list_servers=self._list_servers, on_event=connection.send)
        #: The tasks that were started and were not reported as gone.
        self._tasks: Dict[TaskId, RunningTask] = {}
        #: The tasks among them whose main process was not reaped, by its pid.
        self._by_pid: Dict[int, RunningTask] = {}
        #: The delayed reports of tasks that a SIGTERM from outside has ended, each with the time
        #: (monotonic) when they are sent. If the agent itself is sent SIGTERM meanwhile, because the machine
        #: is shut down, it reports only its own end.
        self._delayed: Dict[RunningTask, Tuple[float, List[events.AgentEvent]]] = {}
        #: Tells whether the kernel killed a task because memory was short.
        self._oom = host.OomWatch()
        #: Tells in which order the main processes of tasks have ended.
        self._exits = processes.Exits()
        #: Starts the processes of tasks and fork servers.
        self._spawner = Spawner(agent_id)
        #: The processes from which tasks are forked (``--preload``). Most jobs have none.
        self._fork_servers = ForkServers(
            selector,
            self._spawner,
            self._task_processes,
            on_forked=self._on_started,
            on_refused=self._start_in_new_process,
            on_notice=self._tell,
        )
        #: Measures what tasks use, while the launcher wants to know it.
        self._measurements = Measurements(
            self._children, list_processes=self._list_processes, connection=connection
        )
        #: The parts that have something to do at certain times. `_stopping` is not among them:
        #: `_poll_stopping` polls it, and then handles the tasks that have no process left.
        self._timed = (
            self._children, self._fork_servers, self._outputs, self._questions, self._measurements, connection
        )  # fmt: skip
        #: The addresses of all tasks, once the launcher has sent them.
        self._cluster: Optional[ClusterSpec] = None
        #: What the agent does now: serve a job, or end it in one of several ways.
        self._phase = _AgentPhase.SERVING
        #: Whether the launcher has stopped every task of this agent. Then it will close the agent, too.
        self._is_stopped = False
        #: When to react to a SIGTERM that this agent was sent (monotonic), or None if it was not sent one.
        self._sigterm_due: Optional[float] = None
        #: When the agent must have stopped its tasks and exited (monotonic): the watchdog then kills it. 0.0
        #: while it serves a job.
        self._must_exit_at = 0.0
        #: The function that handles a message of the launcher, by the class of the message.
        self._handlers = self._message_handlers()

    def _message_handlers(self) -> Dict[type, Callable[..., None]]:
        """Return the functions that handle the messages of the launcher, by the class of the message."""
        return {
            events.HoldPorts: self._hold_ports,
            events.Preload: self._fork_servers.start,
            events.TryPeers: self._questions.try_peers,
            events.SetCluster: self._set_cluster,
            events.StartTask: self._start,
            events.StopTasks: self._stop,
            events.SignalTask: self._signal,
            events.Measure: self._measurements.measure,
            events.HoldOutput: lambda command: self._connection.hold_output(is_held=command.on),
            events.CloseAgent: self._close,
            protocol.RunCommand: self._children.run,
            protocol.CommandData: self._children.handle_input,
            protocol.CommandCredit: self._children.handle_credit,
            protocol.CloseCommand: self._children.close,
        }

    # ------------------------------------------------------------------ the loop

    def run(self) -> int:
        """Serve one job after another until the launcher closes the agent or is gone.

        When this returns, no process of a task is left.

        Returns:
            The exit code: 1 if SIGTERM or the end of the watchdog has stopped the agent, otherwise 0.
        """
        # Signals wake the loop before the launcher is told that it can send commands.
        self._listen()
        self._send(events.AgentReady(*_stamp(), pid=os.getpid(), facts=host.host_facts()))
        self._serve_job()
        # In this phase the launcher has ended a job, and lets the agent stay for the next one.
        while self._phase is _AgentPhase.RESETTING:
            self._phase, self._must_exit_at = _AgentPhase.SERVING, 0.0
            self._serve_job()
        # An agent that was cut short has told the launcher why, and has nothing more to send.
        if self._phase is _AgentPhase.CUT_SHORT:
            return 1
        # The last messages are still to be sent, and acknowledged if the connection can break.
        until = time.monotonic() + FAREWELL_SECONDS
        # A connection that can break decides itself when to give up.
        while not self._connection.is_done and (self._connection.can_break or time.monotonic() < until):
            self._turn(0.05)
        return 0

    def _serve_job(self) -> None:
        """Serve one job: until the agent is to stop its tasks, and none of their processes is left."""
        # A task is here until its processes have ended and its output and end were reported.
        while self._tasks or not self._ends_tasks:
            self._turn()
        self._ports.release_all()
        # The last step of a stop sequence is SIGKILL, with the seconds after which a process counts as
        # unkillable. What is left belongs to no task, because it has left its session and removed its process
        # tag.
        _, kill_seconds = ABANDONED_STOP_SEQUENCE[-1]
        processes.kill_descendants(kill_seconds, self._reap)
        # An agent that was cut short has told the launcher already that it exits.
        if self._phase is not _AgentPhase.CUT_SHORT:
            # The launcher may have asked to hold output back. Now the rest must arrive before the last event.
            self._connection.hold_output(is_held=False)
            self._send_after_output(events.AgentClosed(*_stamp()))

    def _turn(self, max_seconds: float = 3600.0) -> None:
        """Wait until something happens or is due, and react to it. Output of tasks is read last.

        Args:
            max_seconds: How long to wait at most.
        """
        ready = self._selector.select(self._seconds_to_wait(max_seconds))
        # False sorts before True, so output comes last. There may be much of it, and the commands of the
        # launcher and the ends of processes must not wait for it.
        for key, _ in sorted(ready, key=lambda event: event[0].fd in self._outputs):
            # The reaction to another event may have closed this descriptor.
            if self._selector.get_map().get(key.fd) == key:
                # Whoever registered the descriptor gave the function to call as its data.
                key.data()
        now = time.monotonic()
        due = self._stopping.next_due()
        if due is not None and due <= now:
            self._poll_stopping()
        for part in self._timed:
            part.on_time(now)
        # The agent may report its own end instead of the delayed reports, so this comes before them.
        if self._sigterm_due is not None and self._sigterm_due <= now:
            self._act_on_sigterm()
        self._report_delayed(now)
        # All messages of this turn wait in the connection now. If they are too many, output stays unread.
        self._outputs.pause_or_go_on()
        # The watchdog lets the agent live as long as it may wait for its launcher or stop its tasks.
        if self._deadline is not None:
            self._deadline.renew(max(self._connection.gives_up_at, self._must_exit_at))

    def _seconds_to_wait(self, max_seconds: float) -> float:
        """Return how many seconds may pass until something is due, at most ``max_seconds``."""
        due_times = [due for part in (self._stopping, *self._timed) if (due := part.next_due()) is not None]
        # Delayed reports are held back as long as the agent may have to report its own end instead.
        if self._sigterm_due is not None:
            due_times.append(self._sigterm_due)
        else:
            due_times += [due for due, _ in self._delayed.values()]
        now = time.monotonic()
        return max(0.0, min([max_seconds, *(due - now for due in due_times)]))

    def _listen(self) -> None:
        """Let ended children, SIGTERM and the end of the watchdog wake the loop, and ask for the GPUs."""
        self._wake = processes.wake_on(signal.SIGCHLD, signal.SIGTERM)
        self._selector.register(self._wake, selectors.EVENT_READ, self._poll_ended)
        # This one becomes readable at the end of a task, and tells which task has ended first.
        self._selector.register(self._exits, selectors.EVENT_READ, self._poll_ended)
        self._selector.register(self._watchdog_fd, selectors.EVENT_READ, self._on_watchdog)
        self._questions.ask_for_gpus()

    # ------------------------------------------------------------------ the launcher

    def _handle_message(self, message: protocol.Message) -> None:
        """Call the function that handles messages of this class."""
        self._handlers[type(message)](message)

    def _send_after_output(self, event: events.AgentEvent) -> None:
        """Send an event that must not overtake output, because it says that no more output follows."""
        self._send(event, bulk=True)

    # ------------------------------------------------------------------ the end

    @property
    def _ends_tasks(self) -> bool:
        """Whether the agent is stopping all tasks. A task that starts nevertheless is stopped at once."""
        return self._phase is not _AgentPhase.SERVING

    def _close(self, command: events.CloseAgent) -> None:
        """Stop all tasks, and then exit or serve the next job, as the launcher commands."""
        self._end_job(_AgentPhase.RESETTING if command.stays else _AgentPhase.CLOSING)

    def _on_disconnect(self) -> None:
        """Stop all tasks, because the launcher is gone for good."""
        self._end_job(_AgentPhase.CLOSING)
        # The watchdog lets the agent live so long, even if it was stopping the tasks already.
        self._must_exit_at = max(self._must_exit_at, time.monotonic() + END_TIMEOUT_SECONDS)

    def _cut_short(self, why: str, steps: events.StopSequence = ABANDONED_STOP_SEQUENCE) -> None:
        """Stop all tasks and exit, although the launcher has not closed this agent.

        The launcher is told the reason, and gets no events of tasks after that.

        Args:
            why: The reason, for the user.
            steps: How the tasks are stopped.
        """
        if self._phase is not _AgentPhase.CUT_SHORT:
            # A SIGTERM to this agent, whose effect was delayed, would only end it once more.
            self._sigterm_due = None
            # This sends the reason as the last message. Whatever is sent later is dropped.
            self._connection.refuse(why)
            # The end of a task by SIGTERM is reported later, and until then the task counts as not gone.
            # Nobody hears these reports now, so they must not delay the exit.
            self._report_delayed(math.inf)
            self._end_job(_AgentPhase.CUT_SHORT, steps)

    def _end_job(self, phase: _AgentPhase, steps: events.StopSequence = ABANDONED_STOP_SEQUENCE) -> None:
        """Advance to a phase in which the agent stops its tasks, and stop them unless that is under way.

        Args:
            phase: The phase. If the agent is in a later one, it stays there.
            steps: How the tasks are stopped.
        """
        was_serving = not self._ends_tasks
        self._phase = max(self._phase, phase)
        if was_serving:
            # The watchdog kills an agent that takes longer. The first step of the sequence, SIGTERM and the
            # time after it, may be as long as the user has allowed, so its time is added.
            _, first_pause = steps[0]
            self._must_exit_at = time.monotonic() + END_TIMEOUT_SECONDS + first_pause
            # Tasks that still wait for a fork server are not started.
            self._fork_servers.close()
            self._end_tasks(list(self._tasks.values()), steps)

    def _on_sigterm(self) -> None:
        """React to SIGTERM after a while, in which a connected launcher may stop the tasks itself."""
        if not self._connection.is_open:
            self._act_on_sigterm()
        elif self._sigterm_due is None:
            self._sigterm_due = time.monotonic() + _SIGTERM_PATIENCE_SECONDS

    def _act_on_sigterm(self) -> None:
        """Exit because of SIGTERM, unless the launcher has closed this agent or stopped its tasks."""
        self._sigterm_due = None
        if not (self._ends_tasks or self._is_stopped):
            self._cut_short("the agent exited: it was sent SIGTERM", self._sigterm_stop_sequence)

    def _on_watchdog(self) -> None:
        """Stop all tasks and exit, because the watchdog has ended and nothing else guards them."""
        # The end-of-file would wake the loop again and again.
        self._selector.unregister(self._watchdog_fd)
        self._cut_short("its watchdog was killed")

    # ------------------------------------------------------------------ ports

    def _hold_ports(self, command: events.HoldPorts) -> None:
        """Reserve a port of this host for each task, and tell the launcher the ports.

        `_on_environment_tried` does that. If the tasks run in a Python environment, the agent finds out first
        whether its Python runs.
        """
        if command.venv is None:
            self._on_environment_tried(command)
        else:
            on_tried = partial(self._on_environment_tried, command)
            # A child of the agent tries it, and the answer arrives in a later turn of the loop.
            self._questions.try_environment(command.venv, on_tried=on_tried)

    def _on_environment_tried(self, command: events.HoldPorts, fault: Optional[LaunchError] = None) -> None:
        """Hold a port for each task, and tell the launcher the ports, or why there are none.

        Args:
            command: The command of the launcher.
            fault: Why the environment of the tasks cannot be used, or None if it can.
        """
        held: Dict[TaskId, int] = {}
        if fault is None:
            # Each task needs descriptors for its port and its output, and one to watch the order of exits.
            # Where they are scarce, ports and output matter more than that order.
            if not self._spawner.limits.make_room(len(command.tasks)):
                self._exits.is_enabled = False
            try:
                preferred = command.preferred
                held = {task: self._ports.hold(task, preferred.get(task, ())) for task in command.tasks}
            except OSError as error:
                # The ports of some of the tasks may be held already.
                self._ports.release(command.tasks)
                fault = LaunchError(ports.explain_refusal(error))
        if fault is None:
            self._send(events.PortsHeld(*_stamp(), held))
        else:
            self._send(events.PortsRefused(*_stamp(), why=str(fault), code=fault.exit_code))

    # ------------------------------------------------------------------ starting

    def _set_cluster(self, command: events.SetCluster) -> None:
        """Note the addresses of all tasks of the job, which the tasks of this host get when they start."""
        self._cluster = ClusterSpec(command.addresses, command.sidecars)

    def _start(self, command: events.StartTask) -> None:
        """Start a task: fork it from its fork server, or start a new process if it has none.

        The agent completes its command and its environment with what depends on the addresses of all tasks.
        """
        argv, env = command.argv, dict(command.env)
        # The launcher sends the addresses before it starts tasks. Without them the command is used as it is.
        if self._cluster is not None:
            program = (command.args, command.flags, command.templates, command.attempt)
            arguments, variables = complete(self._cluster, command.task, *program)
            argv += arguments
            env.update(variables)
        start = replace(command, argv=argv, env=env)
        # If the task has a fork server, that one forks the task later, and then `_on_started` is called.
        if not self._fork_servers.fork(start):
            self._start_in_new_process(start)

    def _start_in_new_process(self, start: events.StartTask) -> None:
        """Start a task in a new process, or report why that failed.

        Args:
            start: The command of the launcher, which `_start` has completed.
        """
        try:
            prepared = self._spawner.prepare(start.argv, start.env, start.workdir, start.venv, start.script)
            self._on_started(start, self._spawner.spawn(prepared))
        except LaunchError as fault:
            about_task = (*_stamp(), start.task, start.attempt)
            self._send(events.TaskNotStarted(*about_task, code=fault.exit_code, why=str(fault)))

    def _on_started(self, start: events.StartTask, started: Started) -> None:
        """Report a task whose process exists now, and read its output from now on.

        Args:
            start: The command of the launcher.
            started: The process, its output and its process tag.
        """
        task = RunningTask(start.task, start.attempt, started.pid, started.output, start.steps)
        task.gpus = start.env.get("CUDA_VISIBLE_DEVICES", "")
        self._tasks[task.id] = self._by_pid[task.pid] = task
        # From now on there is a task that the launcher has not stopped.
        self._is_stopped = False
        # Some time after the first task it is checked whether the tasks listen on the ports held for them.
        self._questions.on_task_started()
        self._task_processes.add(task.id, task.pid, started.tag)
        # From now on its end is noticed in the right order among the ends of other tasks.
        self._exits.watch(task.pid)
        self._outputs.add(task)
        self._send(events.TaskStarted(*_stamp_of(task), pid=task.pid))
        # A fork server may fork a task while all tasks are being stopped.
        if self._ends_tasks:
            self._end_tasks([task], ABANDONED_STOP_SEQUENCE)

    # ------------------------------------------------------------------ ended processes

    def _poll_ended(self) -> None:
        """React to signals that have arrived, and to children that have ended.

        Processes that a task leaves behind when its main process exits are stopped. Those whose own parents
        have exited, too, are orphans, which are children of the agent by now.
        """
        # Each byte is the number of a signal. If no signal has arrived, there is nothing to read.
        with suppress(BlockingIOError):
            if signal.SIGTERM in os.read(self._wake, 65536):
                self._on_sigterm()
        exited = self._reap()
        # To look for orphans, all processes are read, which is wanted only if a task has ended or is ending.
        if not (exited or self._stopping):
            return
        orphans = self._task_processes.orphans()
        # A process that has lost its parent while they were listed may be missing.
        may_be_incomplete = self._task_processes.may_be_more()
        for task in exited:
            # If an orphan may have been missed, stopping the task looks for it again.
            if task not in self._stopping and (may_be_incomplete or orphans.get(task.id)):
                self._stopping.begin(task, task.steps, time.monotonic())
        self._poll_stopping(exited)

    def _reap(self) -> List[RunningTask]:
        """Reap every child that has ended, if possible in the order in which they ended.

        Returns:
            The tasks whose main processes are among them.
        """
        exited: List[RunningTask] = []
        while True:
            ended_child, ended_tasks = processes.ended_child(), self._exits.in_order()
            # Main processes of tasks come first, because their order matters: the first failure is the job's.
            if ended_tasks:
                for pid in ended_tasks:
                    self._reap_one(pid, exited)
            elif ended_child:
                self._reap_one(ended_child, exited)
            else:
                return exited

    def _reap_one(self, pid: int, exited: List[RunningTask]) -> None:
        """Reap a child that has ended, and tell the part of the agent that has started it.

        Args:
            pid: The child.
            exited: If the child is the main process of a task, the task is added to this list.
        """
        # Even if a debugger keeps it from being reaped, its end must not wake the loop again and again.
        self._exits.forget(pid)
        reaped_pid, status, usage = os.wait4(pid, os.WNOHANG)
        # A debugger may keep it from us. SIGCHLD arrives again when it detaches.
        if not reaped_pid:
            return
        # Each part ignores a process that is not its own.
        self._task_processes.own_children.discard(pid)
        self._children.on_reaped(pid, status)
        self._fork_servers.on_reaped(pid, status)
        task = self._by_pid.pop(pid, None)
        # A task that not even SIGKILL has ended was reported as ended before.
        if task is not None and not task.has_exited:
            # The kernel states the largest memory of the process in KiB.
            self._on_exit(task, status, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
            exited.append(task)

    def _on_exit(self, task: RunningTask, status: int, peak: int, cpu: float) -> None:
        """Report that the main process of a task has ended, at once or after a delay.

        The report of a task that SIGTERM has ended is delayed if this agent has not sent it. A shutdown of
        this machine may signal the tasks first and then the agent, which then reports only its own end.

        Args:
            task: The task.
            status: The wait status of the main process.
            peak: How many bytes of it were in physical memory at most. The report contains the larger one of
                this and ``task.peak``, which is that of the task's other processes.
            cpu: The CPU time that it has used, in seconds.
        """
        task.has_exited = True
        # Either it has exited with a code, or a signal has killed it.
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        # A SIGKILL that this agent has not sent may come from the kernel's OOM killer.
        may_be_oom = number == SIGKILL and not task.was_signalled
        oom = self._oom.evidence(task.pid) if may_be_oom else ""
        exited = events.TaskExited(
            *_stamp_of(task), code=code, signal=number, peak_rss=max(peak, task.peak), cpu_s=cpu, oom=oom
        )
        # An agent that is cut short has reported its own end already, so there is nothing to wait for.
        is_foreign_sigterm = number == signal.SIGTERM and not task.was_signalled
        if is_foreign_sigterm and self._phase is not _AgentPhase.CUT_SHORT:
            self._delayed[task] = time.monotonic() + _SIGTERM_REPORT_DELAY_SECONDS, [exited]
        else:
            self._send(exited)

    def _report_delayed(self, now: float) -> None:
        """Send the delayed reports that are due at this time (monotonic).

        The end of a task by SIGTERM is reported a little later, because a cluster or a shutdown sends SIGTERM
        to all processes: then this agent gets it, too, and reports its own end instead.
        """
        # This agent may be about to report its own end instead.
        if self._sigterm_due is not None:
            return
        for task, (until, delayed) in list(self._delayed.items()):
            if until <= now:
                del self._delayed[task]
                for event in delayed:
                    self._send(event)
                self._report_gone_if_done(task)

    def _poll_stopping(self, exited: Sequence[RunningTask] = ()) -> None:
        """Continue to stop tasks, and handle those that have no process left.

        Args:
            exited: Tasks whose main process was reaped just now.
        """
        stopped = self._stopping.poll(time.monotonic())
        # A task may be in both, and is handled once.
        for task in dict.fromkeys((*exited, *stopped)):
            # The processes that it has left behind may still have to be stopped. Otherwise none is left.
            if task.has_exited and task not in self._stopping:
                task.is_empty = True
                # What its processes have printed last may still be in the pipe.
                self._outputs.read_rest(task)
                self._report_gone_if_done(task)

    def _report_gone_if_done(self, task: RunningTask) -> None:
        """Report that a task is gone if it has no process, no open output and no delayed report left.

        A report is delayed if a SIGTERM from outside has ended the task, see `_on_exit`.

        Args:
            task: The task.
        """
        is_gone = task.is_empty and task.output is None and task not in self._delayed
        # It may have been reported before, and a new attempt may have its name.
        if not is_gone or self._tasks.get(task.id) is not task:
            return
        del self._tasks[task.id]
        self._task_processes.forget(task.id)
        # All of its output has to reach the launcher before.
        self._send_after_output(
            events.TaskGone(*_stamp_of(task), leftovers=len(task.leftovers), unkillable=task.unkillable)
        )

    # ------------------------------------------------------------------ stopping

    def _stop(self, command: events.StopTasks) -> None:
        """Start to stop tasks as the launcher commands, by its signals and seconds between them."""
        # A task that waits for a fork server (a process from which it is forked) starts first, so that it is
        # stopped and reported like all others.
        for start in self._fork_servers.cancel(command.tasks):
            self._start_in_new_process(start)
        self._end_tasks([self._tasks[task] for task in command.tasks if task in self._tasks], command.steps)
        # When the launcher has stopped all tasks, it will close the agent. Then an agent that is sent SIGTERM
        # leaves the end of the job to the launcher.
        self._is_stopped = all(
            task in self._stopping or task.id in command.tasks for task in self._tasks.values()
        )

    def _end_tasks(self, tasks: List[RunningTask], steps: events.StopSequence) -> None:
        """Start to stop tasks.

        Args:
            tasks: The tasks. The output of one whose processes have all ended may still be open.
            steps: The signals and the seconds between them.
        """
        # A process that has ended already must not be reported as ended by our signal, so it is reaped first.
        self._poll_ended()
        now = time.monotonic()
        first_signal, _ = steps[0]  # Beside it stand the seconds until the next signal.
        for task in tasks:
            if not task.is_empty:
                self._stopping.begin(task, steps, now)
            # Another process keeps the output open. Nobody waits for that if the task is to be killed.
            elif first_signal == SIGKILL:
                self._outputs.let_go(task)
        # The first signals are sent now, and not when the loop comes to it.
        self._poll_stopping()

    def _report_signal(self, task: RunningTask, number: int, count: int) -> None:
        """Report that processes of a task were sent a signal that is to stop them: SIGTERM, later SIGKILL.

        Args:
            task: The task.
            number: The number of the signal.
            count: How many processes were sent it.
        """
        signalled = events.TaskSignalled(*_stamp_of(task), signal=number, processes=count)
        # If the report about the end of its main process is delayed, that comes first, because the signal was
        # sent only to the processes left behind.
        if task in self._delayed:
            _, delayed = self._delayed[task]
            delayed.append(signalled)
        else:
            self._send(signalled)

    # ------------------------------------------------------------------ single signals

    def _signal(self, command: events.SignalTask) -> None:
        """Send a signal to the processes of a task at the user's wish, without stopping the task."""
        # An end that was not noticed yet is reported before the signal.
        self._poll_ended()
        task = self._tasks.get(command.task)
        # About a task that is gone the launcher expects no answer, because it learns of the end anyway.
        if task is None:
            return
        # Children come first, because what a killed main process leaves behind would be stopped.
        for process in reversed(self._members(task)):
            # The user may ask for all processes. Usually only the main process is sent the signal.
            if command.all or process.pid == task.main:
                processes.send(process, command.signal)
        # The launcher learns the state of each process, such as T for a suspended one. The processes are
        # listed again, because one may have forked before the signal arrived.
        states = "".join(process.state for process in self._members(task))
        self._send(events.SignalSent(*_stamp(), task=task.id, signal=command.signal, states=states))

    def _members(self, task: RunningTask) -> List[processes.Process]:
        """Return every living process of a task, each after its parent."""
        return self._task_processes.members(task, self._task_processes.orphans())

    # ------------------------------------------------------------------ questions

    def _list_processes(self) -> List[Tuple[RunningTask, List[processes.Process]]]:
        """Return the tasks with all their living processes."""
        orphans = self._task_processes.orphans() if self._tasks else {}
        return [(task, self._task_processes.members(task, orphans)) for task in self._tasks.values()]

    def _list_servers(self) -> List[Tuple[str, int, int]]:
        """Return the running tasks that should listen on their ports, because TensorFlow connects to them.

        Returns:
            The name, the port and the pid of the main process of each task of TensorFlow's roles. It is empty
            if the job has only one such task, which need not listen.
        """
        addresses = {} if self._cluster is None else self._cluster.addresses
        roles = [role for role in TF_CONFIG_ROLES if role in addresses]
        # A single task has no other one that could connect to it.
        if sum(len(addresses[role]) for role in roles) < 2:
            return []
        running = [task for task in self._tasks.values() if task.id.role in roles and not task.has_exited]
        return [(task.id, self._ports.port_of(task.id), task.pid) for task in running]

    def _tell(self, text: str) -> None:
        """Let the launcher show a line to the user."""
        self._send(events.HostNotice(*_stamp(), text))


def _stamp() -> Tuple[str, float]:
    """Return the first fields of an event: an empty host, which the launcher fills in, and the time."""
    return "", events.now()


def _stamp_of(task: RunningTask) -> Tuple[str, float, TaskId, int]:
    """Return the first fields of an event about a task: host, time, name of the task, attempt."""
    return (*_stamp(), task.id, task.attempt)

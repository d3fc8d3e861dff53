"""The state machine of a job: receives the events of tasks and agents, and returns commands.

::

    STARTUP ──> RUNNING ──> DRAINING ──> STOPPING ──> CLOSING ──> OVER
        └────────────┴─────────────────────────^           ^
                                  (all tasks are gone) ────┘

STARTUP: agents start and hold ports. RUNNING: tasks run, until the policy, the user or a timer ends the job.
A task that is to start again (`launcher.supervisor.restarting`) changes no phase: the job is RUNNING.
DRAINING: the job is done, and some tasks have time left to finish. STOPPING: until every task is gone.
CLOSING: until every agent is closed. OVER: no process of the job runs, and nothing follows.

`launcher.launch.orchestrator` passes each event to `Machine`, and executes the commands. Before that, an
event of a host passes two gates: `Machine.verify` refuses what no agent may say now, and its host is lost;
`Machine.handle` drops what a host that is already lost had sent before. The tables at the end say which
function handles which event and which timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError
from launcher.common.record import replace
from launcher.common.report import Report, TaskState
from launcher.common.text import join_names
from launcher.job import Plan
from launcher.supervisor import describe, ending, host_events, requests, restarting, stalls, task_events
from launcher.supervisor.commands import Command, Timer, TimerKind
from launcher.supervisor.records import TaskRecord
from launcher.supervisor.state import JobState, Phase

#: How many messages for the user an agent may send between the starts of two tasks.
_MAX_NOTICES = 100
_PROCESS_STATES = (TaskState.RUNNING, TaskState.STOPPING)


class Machine:
    """The state machine of one job: receives events, and returns commands.

    Args:
        run_name: The name of the run, for the report.
        state: The state of the job, which only the machine changes.
    """

    def __init__(self, run_name: str, state: JobState) -> None:
        self._run_name = run_name
        self.state = state

    # ------------------------------------------------------------------ questions

    @property
    def phase(self) -> Phase:
        """The phase of the job, which the module explains."""
        return self.state.phase

    def stranded(self, tasks: Iterable[TaskId]) -> list[TaskId]:
        """Return the tasks among these that cannot start again, because their hosts are lost.

        The launcher refuses ``launch restart`` for them. Tasks that move from a lost host to another one are
        not among them.
        """
        state = self.state
        staying = [state.tasks[task] for task in tasks if task not in state.tasks.restarting]
        return [record.task for record in staying if not state.hosts[record.host].is_active]

    def busy_hosts(self) -> list[str]:
        """Return the names of the hosts with tasks of which some process may still exist.

        These can measure the memory of their tasks, which ``launch ps`` asks for.
        """
        return self.state.hosts.names_of(self.state.tasks[task] for task in self.state.tasks.not_gone)

    def pids(self, tasks: Iterable[TaskId]) -> dict[str, dict[TaskId, int]]:
        """Return the pids of these tasks by their hosts, without the tasks that do not run."""
        pids: dict[str, dict[TaskId, int]] = {}
        for record in map(self.state.tasks.__getitem__, tasks):
            if record.state in _PROCESS_STATES and record.current.pid is not None:
                pids.setdefault(record.host, {})[record.task] = record.current.pid
        return pids

    def python_tasks_to_stop(self, timer: Timer) -> list[TaskId]:
        """Return the Python tasks that `time_up` will stop, because this timer has fired.

        The caller can take the stacks of these tasks first, and pass them to `time_up`. Only the time limit
        of a running job (JOB) and ``--stall`` (SILENCE) stop tasks that may hang: the list is empty for any
        other timer.
        """
        if timer.kind is TimerKind.JOB and self.phase is Phase.RUNNING:
            running = [each for each in self.state.tasks.values() if each.state is TaskState.RUNNING]
        else:
            running = stalls.tasks_to_stop(self.state) if timer.kind is TimerKind.SILENCE else []
        return [record.task for record in running if record.runs_python]

    def report(self, started_at: float, ended_at: float, run_dir: str = "") -> Report:
        """Return the report of the job as it is now.

        Args:
            started_at: When the job started, in seconds since the epoch.
            ended_at: When it ended, or the time now.
            run_dir: The folder of the run.
        """
        state, failure = self.state, self.state.failure
        # This advice depends on how the peers of the failed task have ended, so it is added only here.
        if failure is not None and not failure.hint:
            failure = replace(failure, hint=describe.peers_hint(state, failure))
        return Report(
            job=self._run_name,
            exit_code=state.exit_code,
            started_at=started_at,
            ended_at=ended_at,
            tasks=tuple(record.report() for record in state.tasks.values()),
            failure=failure,
            run_dir=run_dir,
            restarts=state.completed_restarts,
        )

    # ------------------------------------------------------------------ events

    def begin(self) -> list[Command]:
        """Begin the job, and return the first commands, which set timers.

        The launcher starts the agents at the same time. A job without hosts is over at once.
        """
        state = self.state
        if state.hosts:
            state.set_timer(TimerKind.NOTICE)  # When it fires, the user is told which hosts are waited for.
            state.set_timer(TimerKind.READY)  # It limits how long agents may take to start and hold ports.
            if state.policy.timeout is not None:
                state.set_timer(TimerKind.JOB, state.policy.timeout)
        ending.finish_if_closed(state)
        return state.drain_commands()

    def verify(self, event: events.AgentEvent) -> None:
        """Check that a host may send this event now. `handle` must not be called if it may not.

        An event that `handle` ignores anyway is not checked.

        Raises:
            ProtocolError: The event contradicts what the host has said before. That is a fault of the host.
        """
        state, host = self.state, self.state.hosts.get(event.host)
        if host is None or not host.is_heard or self.phase is Phase.OVER:
            return
        # An agent says once that it runs, before anything else. So AgentReady is wrong from an agent that has
        # said so, and every other event from one that has not.
        if isinstance(event, events.AgentReady) == host.has_agent:
            raise ProtocolError(f"{type(event).__name__} at the wrong moment")
        # An event about a task must fit the state of its present attempt.
        record = state.tasks.get(getattr(event, "task", TaskId("")))
        if record is not None and not _can_happen_to(record, event):
            found = f"attempt {record.attempt} is {record.state.value}"
            raise ProtocolError(f"{type(event).__name__} of {record.task} at the wrong moment: {found}")
        # Before the first start, the answer must contain a port for each task. Later, tasks may have been
        # assigned to the host after it was told which ports to hold.
        if isinstance(event, events.PortsHeld) and state.phase is Phase.STARTUP:
            missing = [record.task for record in host.tasks if record.task not in event.ports]
            if missing:
                raise ProtocolError(f"PortsHeld without {join_names(missing)}")
        if isinstance(event, events.HostNotice) and host.notice_count >= _MAX_NOTICES:
            raise ProtocolError(f"more than {_MAX_NOTICES} notices")

    def handle(self, event: events.Event) -> list[Command]:
        """Return the commands that follow from an event. An event of a host must have passed `verify`.

        Events of lost hosts, and events after the end of the job, have no effect. A type of event without a
        handler only informs the user.

        Raises:
            InvalidTransitionError: The event led to an impossible state, which is a bug in launch.
        """
        host = self.state.hosts.get(getattr(event, "host", ""))
        # A host that was told to stop its tasks owes an answer, and any event shows that its agent is alive.
        # But output is no answer: a task may print before its agent obeys.
        if host is not None and not isinstance(event, events.TaskOutput):
            host.owes_answer = False
        handler = _EVENT_HANDLERS.get(type(event))
        if handler is None or self.phase is Phase.OVER or (host is not None and not host.is_heard):
            return []
        # What changes now is reported with the time of this event, or with the last one if it has none.
        self.state.tasks.last_event_at = getattr(event, "at", self.state.tasks.last_event_at)
        handler(self.state, event)
        return self.state.drain_commands()

    def time_up(self, timer: Timer, at: float, stacks: str = "") -> list[Command]:
        """Return the commands that follow when a timer has fired.

        Args:
            timer: The timer, which must have been set.
            at: The time now, in seconds since the epoch.
            stacks: Where the tasks hang that are stopped for it, for the user. Empty if that is not known.
        """
        if self.phase is Phase.OVER:
            return []
        self.state.tasks.last_event_at = at  # What changes now is reported with this time.
        self.state.stalls.stacks = stacks
        _TIMER_HANDLERS[timer.kind](self.state, timer, at)
        return self.state.drain_commands()

    def handle_saved(self, restart: str) -> list[Command]:
        """Return the commands that follow when the results of tasks were copied, or could not be.

        Args:
            restart: The key of the restart that waits for the copies, as `SaveResults` has named it.
        """
        if self.phase is not Phase.OVER:
            restarting.handle_saved(self.state, restart)
        return self.state.drain_commands()

    def handle_plan(self, plan: Plan) -> list[Command]:
        """Return the commands that follow when the plan is made, after all hosts hold ports for their tasks.

        Either all tasks start for the first time, or they start again because tasks of lost hosts have moved.

        Args:
            plan: The plan, with the address and the port of each task.
        """
        state = self.state
        if state.phase is not Phase.STARTUP and not state.is_placing:  # The job has been stopped meanwhile.
            return []
        state.cancel_timers(TimerKind.READY)  # It limited how long agents may take to hold the ports.
        for task in plan.tasks:
            record = state.tasks[task.task]
            record.address, record.port, record.node = task.address, task.port, task.node
            state.plans[task.task] = task
        if state.moving_restart is None:
            _start_tasks(state)
        else:
            # The tasks of lost hosts have new hosts, so all tasks can start again. `start_if_due` would
            # look for new hosts once more if `moving_restart` were still set.
            restart, state.moving_restart = state.moving_restart, None
            restarting.start_if_due(state, restart)
        return state.drain_commands()


def _start_tasks(state: JobState) -> None:
    """Start all tasks of the job for the first time, and look for silent tasks from now on."""
    for record in state.tasks.start_order(state.tasks):
        # An error about a wrong change of the state will name its cause, which is the plan here.
        record.transition_to(TaskState.STARTING, "the plan")
        state.start(record)
    state.phase = Phase.RUNNING
    state.set_timer(TimerKind.START)  # It limits how long agents may take to start their tasks.
    stalls.set_tick_timer(state)


def _can_happen_to(record: TaskRecord, event: events.AgentEvent) -> bool:
    """Return whether this event can happen to a task in its present state.

    - A start, or a failed start, is reported once, while the task is to start.
    - Its own process exits once, after it has started.
    - The task is gone (no process of it is left) after that exit, or if SIGKILL cannot stop the process.
    - Any other event, such as output, can happen from the start of the process until the task is gone.

    Args:
        record: The task.
        event: The event, which may be about an earlier attempt or come from another host.
    """
    if record.host != event.host or getattr(event, "attempt", record.attempt) != record.attempt:
        return False
    has_started = record.current.pid is not None
    if isinstance(event, (events.TaskStarted, events.TaskNotStarted)):
        # A task may have been told to stop before its agent has answered that it runs.
        return not has_started and record.state in (TaskState.STARTING, TaskState.STOPPING)
    if not has_started:
        return False
    if isinstance(event, events.TaskExited):
        return record.state in _PROCESS_STATES
    if isinstance(event, events.TaskGone):
        # A process that SIGKILL did not stop does not exit.
        is_unkillable = record.state is TaskState.STOPPING and event.unkillable != ()
        return record.state is TaskState.ENDED or is_unkillable
    # Processes that a task has left behind may still print or be signalled after its own process has ended.
    return record.state in (*_PROCESS_STATES, TaskState.ENDED)


# ---------------------------------------------------------------------- who handles what

_TIMER_HANDLERS: Mapping[TimerKind, Callable[[JobState, Timer, float], None]] = {
    TimerKind.NOTICE: ending.handle_notice_timer,
    TimerKind.READY: host_events.handle_late_hosts,
    TimerKind.OTHER_HOSTS: host_events.handle_late_hosts,
    TimerKind.CHECK: host_events.handle_check_timer,
    TimerKind.START: host_events.handle_late_hosts,
    TimerKind.SILENCE: stalls.handle_tick,
    TimerKind.JOB: requests.handle_job_timer,
    TimerKind.RESTART: host_events.handle_restart_timer,
    TimerKind.PLACE: restarting.handle_place_timer,
    TimerKind.HOST_RETURN: restarting.handle_return_timer,
    TimerKind.DRAIN: ending.handle_drain_timer,
    TimerKind.ANSWER: host_events.handle_late_hosts,
    TimerKind.END: host_events.handle_late_hosts,
    TimerKind.CLOSE: host_events.handle_late_hosts,
}
_EVENT_HANDLERS: Mapping[type, Callable[[JobState, Any], None]] = {
    events.AgentReady: host_events.handle_agent_ready,
    events.PortsHeld: host_events.handle_ports_held,
    events.PortsRefused: host_events.handle_ports_refused,
    events.PeersTried: host_events.handle_peers_tried,
    events.HostNotice: host_events.handle_notice,
    events.AgentLost: host_events.handle_agent_lost,
    events.AgentClosed: host_events.handle_agent_closed,
    events.TaskStarted: task_events.handle_started,
    events.TaskNotStarted: task_events.handle_not_started,
    events.TaskOutput: task_events.handle_output,
    events.TaskSignalled: task_events.handle_signalled,
    events.TaskExited: task_events.handle_exited,
    events.TaskGone: task_events.handle_gone,
    events.StopAsked: requests.handle_stop_asked,
    events.RestartAsked: restarting.handle_restart_asked,
    events.TaskStopAsked: requests.handle_task_stop_asked,
    events.OutputDelayed: stalls.handle_output_delayed,
    events.StepsRead: stalls.handle_steps_read,
}

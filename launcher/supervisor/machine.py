"""The state machine of a job: takes the events of tasks and agents, and gives commands.

::

    STARTUP ──> RUNNING ──> DRAINING ──> STOPPING ──> CLOSING ──> OVER
        └────────────┴─────────────────────────^           ^
                                  (all tasks are gone) ────┘

STARTUP: agents start and hold ports. RUNNING: tasks run, until the policy, the user or a timer ends the job.
A task that is to start again (`launcher.supervisor.restarting`) changes no phase: the job is RUNNING.
DRAINING: the job is done, and some tasks have time left to finish. STOPPING: until every task is
gone. CLOSING: until every agent is closed. Each event gives a list of commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError
from launcher.common.events import Command
from launcher.common.record import replace
from launcher.common.report import Report, TaskState
from launcher.common.text import join_names
from launcher.job import Plan
from launcher.supervisor import (
    ending,
    host_events,
    requests,
    restarting,
    stalls,
    task_events,
)
from launcher.supervisor.records import HostState, TaskRecord
from launcher.supervisor.state import (
    NOTICE_TIMER,
    READY_TIMEOUT_SECONDS,
    START_TIMEOUT_SECONDS,
    JobState,
    Phase,
)


class Machine:
    """Supervises one job: takes events, gives commands.

    Args:
        name: the job's id.
        state: of the job.
    """

    def __init__(self, name: str, state: JobState) -> None:
        self._name = name
        self.state = state

    # ------------------------------------------------------------------ questions

    @property
    def phase(self) -> Phase:
        """The phase of the job."""
        return self.state.phase

    def stranded(self, tasks: Iterable[TaskId]) -> list[TaskId]:
        """Those of these tasks that can't start again: their hosts are lost, and they do not move."""
        left = [task for task in tasks if task not in self.state.tasks.restarting]
        return [task for task in left if not self.state.hosts[self.state.tasks[task].host].is_active]

    def busy_hosts(self) -> list[str]:
        """The hosts with tasks that are not over."""
        return self.state.hosts.of(self.state.tasks[task] for task in self.state.tasks.open)

    def report(self, started_at: float, ended_at: float, run_dir: str = "") -> Report:
        """The report of the job as it is now.

        Args:
            started_at, ended_at: of the job, seconds since the epoch.
            run_dir: the run's folder.
        """
        state = self.state
        tasks, failure = tuple(record.report() for record in state.tasks.values()), state.failure
        if failure is not None and not failure.hint:
            failure = replace(failure, hint=task_events.peers_hint(state, failure))
        return Report(
            self._name,
            exit_code=state.exit_code,
            started_at=started_at,
            ended_at=ended_at,
            tasks=tasks,
            failure=failure,
            run_dir=run_dir,
            restarts=state.restarts_made,
        )

    # ------------------------------------------------------------------ events

    def begin(self) -> list[Command]:
        """The first commands; the launcher starts the agents meanwhile."""
        state = self.state
        if state.hosts:
            state.emit(NOTICE_TIMER, events.SetTimer("ready", READY_TIMEOUT_SECONDS))
            if state.policy.timeout is not None:
                state.emit(events.SetTimer("job", state.policy.timeout))
        ending.finish_if_closed(state)
        return state.drain_commands()

    def verify(self, event: events.AgentEvent) -> None:
        """Check that a host may send this event now.

        Raises:
            ProtocolError: it contradicts what the host has said before.
        """
        _verify(self.state, event)

    def handle(self, event: events.Event) -> list[Command]:
        """The commands that follow from this event.

        Raises:
            InvalidTransitionError: a bug in launch; events of hosts must have passed `verify`.
        """
        host = self.state.hosts.get(getattr(event, "host", ""))
        if host is not None and not isinstance(event, events.TaskOutput):  # it may print and not have obeyed
            host.unanswered = False
        handler = _HANDLERS.get(type(event))
        if handler is None or self.phase is Phase.OVER:
            return []
        if host is not None and not host.is_active:
            answers = isinstance(event, (events.AgentReady, events.AgentLost))
            if host.state is not HostState.RETURNING or not answers:
                return []
        self.state.tasks.at = getattr(event, "at", self.state.tasks.at)
        handler(self.state, event)
        return self.state.drain_commands()

    def planned(self, plan: Plan) -> list[Command]:
        """The plan is made: start every task."""
        state = self.state
        if state.phase is not Phase.STARTUP and not state.is_placing:
            return []
        state.emit(events.CancelTimer("ready"))
        for task in plan.tasks:
            record = state.tasks[task.task]
            record.address, record.port, record.node = task.address, task.port, task.node
            state.plans[task.task] = task
        if state.phase is Phase.STARTUP:
            for record in state.tasks.start_order(state.tasks):
                record.transition_to(TaskState.STARTING, "the plan")
                state.start(record)
        if state.moving is not None:
            restart, state.moving = state.moving, None
            restarting.start_if_due(state, restart)
        else:
            state.phase = Phase.RUNNING
            state.emit(events.SetTimer("start", START_TIMEOUT_SECONDS))
            stalls.begin(state)
        return state.drain_commands()


def _time_up(state: JobState, event: events.TimeUp) -> None:
    """A timer has run out."""
    if handler := _TIMERS.get(event.timer):
        handler(state, event)
    elif event.timer.startswith("restart"):
        late = restarting.time_up(state, event)
        host_events.lose_hosts(state, late, "its agent did not stop the tasks", event.at)
    elif event.timer.startswith(restarting.RETURN_TIMER_PREFIX):
        restarting.reach(state, event.timer)
    else:
        host_events.lose_hosts(state, *ending.late_hosts(state, event.timer), event.at)


_TIMERS: dict[str, Callable[[JobState, events.TimeUp], None]] = {
    NOTICE_TIMER.timer: ending.notice,
    "job": requests.took_too_long,
    "drain": ending.drain_time_up,
    "check": host_events.check_late,
    stalls.SILENCE_TIMER: stalls.tick,
    restarting.PLACE_TIMER.timer: restarting.place_tick,
}
_HANDLERS: dict[type, Callable[[JobState, Any], None]] = {
    events.AgentReady: host_events.agent_ready,
    events.PortsHeld: host_events.ports_held,
    events.PortsRefused: host_events.ports_refused,
    events.PeersTried: host_events.peers_tried,
    events.TaskStarted: task_events.started,
    events.TaskNotStarted: task_events.not_started,
    events.TaskOutput: task_events.printed,
    events.TaskSignalled: task_events.signalled,
    events.TaskExited: task_events.exited,
    events.TaskGone: task_events.gone,
    events.HostNotice: host_events.noticed,
    events.AgentLost: host_events.agent_lost,
    events.AgentClosed: host_events.agent_closed,
    events.StopAsked: requests.stop_asked,
    events.RestartAsked: restarting.asked,
    events.OutputDelayed: stalls.output_delayed,
    events.TimeUp: _time_up,
}


_PROCESS_STATES = (TaskState.RUNNING, TaskState.STOPPING)
#: Notices of a host from the start of one task to that of the next.
_MAX_NOTICES = 100


def _verify(state: JobState, event: events.AgentEvent) -> None:
    """Check that a host may send this event now.

    Raises:
        ProtocolError: it contradicts what the host has said before.
    """
    host = state.hosts.get(event.host)
    if host is None or state.phase is Phase.OVER or not (host.is_active or host.state is HostState.RETURNING):
        return
    if isinstance(event, events.AgentReady) == host.ready:
        raise ProtocolError(f"{type(event).__name__} at the wrong moment")
    task = getattr(event, "task", None)
    if task is not None and not _is_possible(event, state.tasks[task]):
        record = state.tasks[task]
        found = f"attempt {record.attempt} is {record.state.value}"
        raise ProtocolError(f"{type(event).__name__} of {task} at the wrong moment: {found}")
    if isinstance(event, events.PortsHeld) and state.phase is Phase.STARTUP:
        missing = [record.task for record in host.tasks if record.task not in event.ports]
        if missing:
            raise ProtocolError(f"PortsHeld without {join_names(missing)}")
    if isinstance(event, events.HostNotice) and host.notices >= _MAX_NOTICES:
        raise ProtocolError(f"more than {_MAX_NOTICES} notices")


def _is_possible(event: events.AgentEvent, record: TaskRecord) -> bool:
    """Whether a task can be in a state in which this event happens to it."""
    if record.host != event.host or getattr(event, "attempt", record.attempt) != record.attempt:
        return False
    if isinstance(event, (events.TaskStarted, events.TaskNotStarted)):
        return record.pid is None and record.state in (TaskState.STARTING, TaskState.STOPPING)
    if record.pid is None:
        return False
    if isinstance(event, events.TaskExited):
        return record.state in _PROCESS_STATES
    if isinstance(event, events.TaskGone):
        return record.state is TaskState.ENDED or (
            record.state is TaskState.STOPPING and event.unkillable != ()
        )
    return record.state in (*_PROCESS_STATES, TaskState.ENDED)

"""The state machine of a job: follows every task and agent, and says what to do.

::

    GATHERING ──> RUNNING ──> DRAINING ──> STOPPING ──> CLOSING ──> OVER
        └────────────┴─────────────────────────^           ^
                                  (all tasks are gone) ────┘

GATHERING: agents come up and hold ports. RUNNING: until the policy, the user or a timer ends it. DRAINING:
the job is done, but for tasks that were given time to end by themselves. STOPPING: until every task is gone.
CLOSING: until every agent is closed. Each event gives a list of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launcher import events
from launcher.events import Command
from launcher.job import JobSpec, Placement, Plan
from launcher.report import Failure, Report, TaskState
from launcher.supervisor import ending, host_events, requests, task_events
from launcher.supervisor.state import JobState, Phase, orderly
from launcher.supervisor.tasks import InvalidTransition

__all__ = ["InvalidTransition", "Machine", "Phase"]

_HANDLERS: dict[type, Callable[[JobState, Any], list[Command]]] = {
    events.AgentReady: host_events.agent_ready,
    events.PortsHeld: host_events.ports_held,
    events.PortsRefused: host_events.ports_refused,
    events.PeersTried: host_events.peers_tried,
    events.TaskStarted: task_events.started,
    events.TaskNotStarted: task_events.not_started,
    events.TaskSignalled: task_events.signalled,
    events.TaskExited: task_events.exited,
    events.TaskGone: task_events.gone,
    events.AgentLost: host_events.agent_lost,
    events.AgentClosed: host_events.agent_closed,
    events.StopAsked: requests.stop_asked,
    events.TimeUp: requests.time_up,
}


class Machine:
    """Supervises one job.

    Args:
        job: what was asked for.
        placement: the host of each task.
        name: the job's id.
        check: let the hosts connect to each other before the tasks start.
    """

    def __init__(self, job: JobSpec, placement: Placement, name: str, check: bool = False) -> None:
        self._name = name
        self._job = JobState(job, placement, check)

    @property
    def phase(self) -> Phase:
        """How far the job has come."""
        return self._job.phase

    @property
    def failure(self) -> Failure | None:
        """The first failure by time, as far as is known."""
        return self._job.failure

    @property
    def hurried(self) -> bool:
        """Whether the user wants the end at once: nothing is waited for."""
        return self._job.hurried

    def begin(self) -> list[Command]:
        """The first commands; agents are being started meanwhile."""
        if not self._job.agents.states:
            return ending.finish_if_closed(self._job)
        timers: list[Command] = [ending.PATIENCE_TIMER, events.SetTimer("ready", requests.READY_LIMIT)]
        limit = self._job.policy.timeout
        return timers if limit is None else [*timers, events.SetTimer("job", limit)]

    def handle(self, event: events.Event) -> list[Command]:
        """What to do after this event.

        Raises:
            InvalidTransition: the events contradict each other (a fault of the launcher).
        """
        host = getattr(event, "host", None)
        if self.phase is Phase.OVER or (host is not None and not self._job.agents.received(host)):
            return []
        handler = _HANDLERS.get(type(event))
        return handler(self._job, event) if handler is not None else []

    def planned(self, plan: Plan) -> list[Command]:
        """The plan is made: start all of it."""
        if self.phase is not Phase.GATHERING:
            return []
        self._job.phase = Phase.RUNNING
        sequence = orderly(self._job.policy.grace)
        starts: list[Command] = [events.CancelTimer("ready"), events.SetTimer("start", requests.START_LIMIT)]
        for task in plan.tasks:
            record = self._job.tasks.records[task.task]
            record.move(TaskState.STARTING, "the plan")
            record.address, record.port = task.address, task.port
            self._job.tasks.starting.add(task.task)
            process = (task.argv, task.env, task.workdir, sequence, task.venv, task.script)
            arguments = (task.args, task.flags)
            starts.append(events.StartTask(task.host, task.task, record.attempt, *process, *arguments))
        return starts

    def report(self, started_at: float, ended_at: float, run_dir: str = "") -> Report:
        """How the job ended, or stands.

        Args:
            started_at, ended_at: of the whole job, seconds since the epoch.
            run_dir: the run's folder.
        """
        tasks = tuple(record.report() for record in self._job.tasks.records.values())
        job = self._job
        return Report(self._name, job.exit_code, started_at, ended_at, tasks, job.failure, run_dir)

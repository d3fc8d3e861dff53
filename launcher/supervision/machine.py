"""The machine: follows every task and agent, and says what is to be done.

::

    GATHERING ──> RUNNING ──> DRAINING ──> STOPPING ──> CLOSING ──> OVER
        └────────────┴─────────────────────────^           ^
                                  (all tasks are gone) ────┘

GATHERING: agents come up and hold ports. RUNNING: until the policy, the user or the clock says stop.
DRAINING: the job is done, but for tasks that were given time to end by themselves. STOPPING: until every
task is gone. CLOSING: until every agent is. Each fact gives a list of orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher import events
from launcher.events import Command
from launcher.job import JobSpec, Placement, Plan
from launcher.report import Failure, Report, TaskState
from launcher.supervision import stopping, waiting
from launcher.supervision.agentfacts import AgentFacts
from launcher.supervision.ending import Ending
from launcher.supervision.jobstate import JobState
from launcher.supervision.record import InvalidTransition
from launcher.supervision.taskfacts import TaskFacts
from launcher.supervision.waiting import PATIENTLY, Phase
from launcher.supervision.wishes import Wishes

if TYPE_CHECKING:
    from typing import Any

__all__ = ["InvalidTransition", "Machine", "Phase"]


class Machine:
    """Supervises one job.

    Args:
        job: what was asked for.
        placement: who runs where.
        name: the job's id.
        check: see whether the hosts reach each other, before anything is started.
    """

    def __init__(self, job: JobSpec, placement: Placement, name: str, check: bool = False) -> None:
        self._name = name
        self._job = JobState(job, placement)
        self._ending = Ending(self._job)
        agents = AgentFacts(self._job, self._ending, check)
        tasks = TaskFacts(self._job, self._ending, agents.leaves)
        wishes = Wishes(self._job, self._ending, agents, self.handle)
        self._handlers: dict[type, Callable[[Any], list[Command]]] = {
            events.AgentReady: agents.ready,
            events.PortsHeld: agents.held,
            events.PortsRefused: agents.refused,
            events.PeersTried: agents.tried,
            events.TaskStarted: tasks.started,
            events.TaskNotStarted: tasks.not_started,
            **dict.fromkeys((events.HostGpus, events.TaskOutput), lambda _: []),
            events.TaskSignalled: tasks.signalled,
            events.TaskExited: tasks.exited,
            events.TaskGone: tasks.gone,
            events.AgentLost: agents.lost,
            events.AgentClosed: agents.closed,
            events.StopAsked: wishes.stop_asked,
            events.TimeUp: wishes.time_up,
        }

    @property
    def phase(self) -> Phase:
        """How far the job has come."""
        return self._job.phase

    @property
    def failure(self) -> Failure | None:
        """The first failure by time, as far as is known."""
        return self._job.blame.failure

    @property
    def hurried(self) -> bool:
        """Whether nothing is waited for any more: somebody wants the end at once."""
        return self._job.hurried

    def begin(self) -> list[Command]:
        """The first orders; agents are being started meanwhile."""
        if not len(self._job.agents):
            return self._ending.finish_if_closed()
        timers: list[Command] = [PATIENTLY, events.SetTimer("ready", waiting.READY_LIMIT)]
        limit = self._job.policy.timeout
        return timers if limit is None else [*timers, events.SetTimer("job", limit)]

    def handle(self, fact: events.Event) -> list[Command]:
        """What is to be done after this fact.

        Raises:
            InvalidTransition: the facts contradict each other (a fault of ours).
        """
        host = getattr(fact, "host", None)
        if self.phase is Phase.OVER or (host is not None and not self._job.agents.hear(host)):
            return []
        return self._handlers[type(fact)](fact)

    def planned(self, plan: Plan) -> list[Command]:
        """The plan is made: start all of it."""
        if self.phase is not Phase.GATHERING:
            return []
        self._job.phase = Phase.RUNNING
        ladder = stopping.orderly(self._job.policy.grace)
        starts: list[Command] = [events.CancelTimer("ready"), events.SetTimer("start", waiting.START_LIMIT)]
        for task in plan.tasks:
            record = self._job.tasks.records[task.task]
            record.move(TaskState.STARTING, "the plan")
            record.address, record.port = task.address, task.port
            self._job.tasks.starting.add(task.task)
            what = (task.argv, task.env, task.workdir, ladder, task.venv, task.script)
            starts.append(events.StartTask(task.host, task.task, record.attempt, *what))
        return starts

    def report(self, started_at: float, ended_at: float, run_dir: str = "") -> Report:
        """How it ended, or how it stands.

        Args:
            started_at, ended_at: of the whole job, seconds since the epoch.
            run_dir: where its files are.
        """
        tasks = tuple(record.report() for record in self._job.tasks.records.values())
        blame = self._job.blame
        return Report(self._name, blame.exit_code, started_at, ended_at, tasks, blame.failure, run_dir)

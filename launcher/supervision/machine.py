"""The machine: follows every task and agent, and says what is to be done.

::

    GATHERING ──> RUNNING ──> STOPPING ──> CLOSING ──> OVER
        └─────────────────────────^           ^
                     (all tasks are gone) ────┘

GATHERING: agents come up and hold ports. RUNNING: until the policy, the user or the clock says stop.
STOPPING: until every task is gone. CLOSING: until every agent is. Each fact is handled at once and
gives a list of orders; nothing is remembered but what the records hold.
"""

from __future__ import annotations

import enum
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from launcher.model import facts, orders
from launcher.model.job import JobSpec
from launcher.model.orders import Order, Tell
from launcher.model.plan import Placement, Plan
from launcher.model.report import Failure, Report
from launcher.model.status import ExitStatus, Reason, TaskState
from launcher.model.task import TaskId
from launcher.supervision import policy, stopping, wording
from launcher.supervision.hosts import Agents, AgentState
from launcher.supervision.record import InvalidTransition, Record

__all__ = ["InvalidTransition", "Machine", "Phase"]

#: Seconds: agents may take to be ready and hold their ports; to start a task; to close.
READY_LIMIT, START_LIMIT, CLOSE_LIMIT = 60.0, 60.0, 15.0
#: Seconds of waiting without a word, then between two words.
PATIENCE, REPEAT = 2.0, 10.0
#: How many tasks may each have a line of their own about not ending on SIGTERM.
_TOLD = 3

_LAUNCHER_FAULT, _TIMED_OUT = 125, 124


class Phase(enum.Enum):
    """How far the job has come."""

    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSING = "closing"
    OVER = "over"


class Machine:
    """Supervises one job.

    Args:
        job: what was asked for.
        placement: who runs where.
        name: the job's id.
    """

    def __init__(self, job: JobSpec, placement: Placement, name: str) -> None:
        self._policy = job.policy
        self._name = name
        self.phase = Phase.GATHERING
        self.failure: Optional[Failure] = None
        self.exit_code = 0
        self._records: Dict[TaskId, Record] = {placed.task: Record(placed) for placed in placement.tasks}
        self._agents = Agents(host.name for host in placement.hosts())
        self._undecided: Set[TaskId] = set(policy.deciders(placement))
        #: Tasks that are not over.
        self._open: Set[TaskId] = set(self._records)
        self._awaited_starts: Set[TaskId] = set()
        #: When the job was done, all well.
        self._done_at: Optional[float] = None
        self._stubborn = 0
        self._handlers: Dict[type, Callable[[Any], List[Order]]] = {
            facts.AgentReady: self._agent_ready,
            facts.HostGpus: lambda _: [],
            facts.PortsHeld: self._ports_held,
            facts.PortsRefused: self._ports_refused,
            facts.TaskStarted: self._task_started,
            facts.TaskNotStarted: self._task_not_started,
            facts.TaskOutput: lambda _: [],
            facts.TaskSignalled: self._task_signalled,
            facts.TaskExited: self._task_exited,
            facts.TaskGone: self._task_gone,
            facts.AgentLost: self._agent_lost,
            facts.AgentClosed: self._agent_closed,
            facts.StopAsked: self._stop_asked,
            facts.TimeUp: self._time_up,
        }

    # ------------------------------------------------------------------ from outside

    def begin(self) -> List[Order]:
        """The first orders; agents are being started meanwhile."""
        timers: List[Order] = [orders.SetTimer("ready", READY_LIMIT), orders.SetTimer("patience", PATIENCE)]
        if self._policy.timeout is not None:
            timers.append(orders.SetTimer("job", self._policy.timeout))
        return timers

    def handle(self, fact: facts.Fact) -> List[Order]:
        """What is to be done after this fact.

        Raises:
            InvalidTransition: the facts contradict each other (a fault of ours).
        """
        host = getattr(fact, "host", None)
        if self.phase is Phase.OVER or (host is not None and self._agents.is_lost(host)):
            return []
        return self._handlers[type(fact)](fact)

    def planned(self, plan: Plan) -> List[Order]:
        """The plan is made: start all of it."""
        if self.phase is not Phase.GATHERING:
            return []
        self.phase = Phase.RUNNING
        ladder = stopping.orderly(self._policy.grace)
        starts: List[Order] = [orders.CancelTimer("ready"), orders.SetTimer("start", START_LIMIT)]
        for task in plan.tasks:
            record = self._records[task.task]
            record.move(TaskState.STARTING, "the plan")
            record.address, record.port = task.address, task.port
            self._awaited_starts.add(task.task)
            starts.append(
                orders.StartTask(
                    task.host, task.task, record.attempt, task.argv, task.env, task.workdir, ladder
                )
            )
        return starts

    def report(self, started_at: float, ended_at: float, run_dir: str = "") -> Report:
        """How it ended, or how it stands.

        Args:
            started_at, ended_at: of the whole job, seconds since the epoch.
            run_dir: where its files are.
        """
        tasks = tuple(record.report() for record in self._records.values())
        return Report(self._name, self.exit_code, started_at, ended_at, tasks, self.failure, run_dir)

    # ------------------------------------------------------------------ agents

    def _agent_ready(self, fact: facts.AgentReady) -> List[Order]:
        if self.phase is not Phase.GATHERING:
            return []
        self._agents.set(fact.host, AgentState.READY)
        return [orders.HoldPorts(fact.host, self._tasks_on(fact.host))]

    def _ports_held(self, fact: facts.PortsHeld) -> List[Order]:
        if self.phase is not Phase.GATHERING:
            return []
        self._agents.set(fact.host, AgentState.HOLDING)
        for task, port in fact.ports.items():
            self._records[task].port = port
        if not self._agents.all_hold():
            return []
        ports = {task: record.port for task, record in self._records.items() if record.port is not None}
        return [orders.MakePlan(ports)]

    def _ports_refused(self, fact: facts.PortsRefused) -> List[Order]:
        text = f"{fact.host} has no port for each of its tasks: {fact.why}"
        self._blame(Failure(Reason.LAUNCHER, None, fact.host, fact.at, text), _LAUNCHER_FAULT)
        return self._stop(stopping.at_once(), [Tell(text, urgent=True)])

    def _agent_lost(self, fact: facts.AgentLost) -> List[Order]:
        self._agents.set(fact.host, AgentState.LOST)
        text = f"host {fact.host} is lost: {fact.why}"
        told: List[Order] = [Tell(text, urgent=True), orders.HangUp(fact.host)]
        lost = [task for task in self._tasks_on(fact.host) if task in self._open]
        for task in lost:
            self._lose(self._records[task], fact)
        if self.phase is Phase.CLOSING and not lost:
            return told + self._finish_if_closed()
        self._blame(Failure(Reason.HOST_LOST, None, fact.host, fact.at, text), _LAUNCHER_FAULT)
        if self.phase is Phase.GATHERING:
            return self._stop(stopping.at_once(), told)
        return self._judge(fact.at, told)

    def _lose(self, record: Record, fact: facts.AgentLost) -> None:
        record.move(TaskState.LOST, fact)
        record.reason, record.detail, record.ended_at = Reason.HOST_LOST, "its host is lost", fact.at
        self._over(record.task)

    def _agent_closed(self, fact: facts.AgentClosed) -> List[Order]:
        if self.phase is not Phase.CLOSING:
            why = "its agent was ended from outside"
            return self._agent_lost(facts.AgentLost(fact.host, fact.at, why))
        self._agents.set(fact.host, AgentState.CLOSED)
        return self._finish_if_closed()

    # ------------------------------------------------------------------ tasks

    def _task_started(self, fact: facts.TaskStarted) -> List[Order]:
        record = self._records[fact.task]
        record.pid, record.started_at = fact.pid, fact.at
        if record.state is TaskState.STARTING:
            record.move(TaskState.RUNNING, fact)
        return self._start_answered(fact.task)

    def _task_not_started(self, fact: facts.TaskNotStarted) -> List[Order]:
        record = self._records[fact.task]
        record.move(TaskState.FAILED, fact)
        record.status = ExitStatus(code=fact.code)
        reasons = {127: Reason.NOT_FOUND, 126: Reason.NOT_RUNNABLE}
        record.reason, record.detail = reasons.get(fact.code, Reason.LAUNCHER), fact.why
        record.ended_at = fact.at
        text = f"{fact.task} could not be started{self._on(fact.host)}: {fact.why}"
        self._blame(Failure(record.reason, fact.task, fact.host, fact.at, text), fact.code)
        self._over(fact.task)
        return self._start_answered(fact.task) + self._judge(fact.at, self._tell_failure(text))

    def _start_answered(self, task: TaskId) -> List[Order]:
        self._awaited_starts.discard(task)
        if self._awaited_starts or self.phase is not Phase.RUNNING:
            return []
        return [orders.CancelTimer("start"), orders.CancelTimer("patience")]

    def _task_signalled(self, fact: facts.TaskSignalled) -> List[Order]:
        record = self._records[fact.task]
        record.signalled = record.signalled or not record.status.known
        if fact.signal != stopping.SIGABRT:
            return []
        self._stubborn += 1
        if self._stubborn > _TOLD:
            return []
        text = f"{fact.task} did not end on SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
        return [Tell(text)]

    def _task_exited(self, fact: facts.TaskExited) -> List[Order]:
        record = self._records[fact.task]
        record.move(TaskState.ENDED, fact)
        record.status = ExitStatus(fact.code, fact.signal)
        record.ended_at, record.peak_rss, record.cpu_s = fact.at, fact.peak_rss, fact.cpu_s
        record.detail = wording.exit_detail(record.status, fact.oom)
        self._undecided.discard(fact.task)
        late = self._done_at is not None and fact.at >= self._done_at
        if record.signalled or (late and not record.status.ok):
            record.outcome, record.reason = TaskState.STOPPED, Reason.STOPPED
            return self._judge(fact.at, [])
        return self._judge(fact.at, self._ended_by_itself(record, fact))

    def _ended_by_itself(self, record: Record, fact: facts.TaskExited) -> List[Order]:
        record.reason = wording.exit_reason(record.status, fact.oom)
        record.outcome = TaskState.SUCCEEDED if record.status.ok else TaskState.FAILED
        if record.status.ok:
            return []
        after = "" if record.started_at is None else f" after {wording.seconds(fact.at - record.started_at)}"
        text = f"{record.task} failed{self._on(record.host)}{after}: {record.detail}"
        hint = wording.exit_hint(record.status, fact.oom)
        failure = Failure(record.reason, record.task, record.host, fact.at, text, hint)
        self._blame(failure, record.status.shell)
        return self._tell_failure(text)

    def _task_gone(self, fact: facts.TaskGone) -> List[Order]:
        record = self._records[fact.task]
        record.leftovers, record.unkillable = fact.leftovers, fact.unkillable
        told: List[Order] = []
        if fact.leftovers:
            told.append(Tell(f"{fact.task} left {fact.leftovers} processes behind: they were ended"))
        if fact.unkillable:
            pids = ", ".join(map(str, fact.unkillable))
            told.append(
                Tell(f"{fact.task}: SIGKILL did not end pid {pids}{self._on(fact.host)}", urgent=True)
            )
        record.move(record.outcome, fact)
        self._over(fact.task)
        return told + self._close_if_empty()

    def _over(self, task: TaskId) -> None:
        self._open.discard(task)
        self._undecided.discard(task)
        self._awaited_starts.discard(task)

    # ------------------------------------------------------------------ the job's end

    def _blame(self, failure: Failure, exit_code: int) -> None:
        """Keep the first failure by time; a task's own end beats what was noticed later."""
        first = self.failure
        if first is None or (first.task is not None and failure.task is not None and failure.at < first.at):
            self.failure, self.exit_code = failure, exit_code

    def _judge(self, at: float, told: List[Order]) -> List[Order]:
        """After a task's end: go on, or stop the rest. ``told`` is said first."""
        if self.phase is not Phase.RUNNING:
            return told + self._close_if_empty()
        verdict = self._verdict()
        if verdict is policy.Verdict.GO_ON:
            return told + self._close_if_empty()
        if self.failure is None:
            self._done_at = at
        return self._stop(stopping.orderly(self._policy.grace), told)

    def _verdict(self) -> policy.Verdict:
        return policy.verdict(self._policy.on_failure, self.failure is not None, len(self._undecided))

    def _tell_failure(self, text: str) -> List[Order]:
        if self.phase is not Phase.RUNNING:
            return []  # one of many that fall with the first
        others = sum(self._records[task].state is not TaskState.ENDED for task in self._open)
        if not others:
            return [Tell(text)]
        if self._verdict() is policy.Verdict.GO_ON:
            return [Tell(f"{text}; {wording.tasks(others)} go on")]
        return [Tell(f"{text}; stopping the other {wording.tasks(others)}")]

    def _stop(self, ladder: orders.Ladder, told: List[Order]) -> List[Order]:
        """End everything that runs; what was not started never will be."""
        self.phase = Phase.STOPPING
        for record in self._records.values():
            if record.state is TaskState.PENDING:
                record.move(TaskState.CANCELLED, "the job was over")
                record.reason = Reason.NEVER_STARTED
                self._over(record.task)
            elif record.state in (TaskState.STARTING, TaskState.RUNNING):
                record.move(TaskState.STOPPING, "the job is over")
        timers: List[Order] = [orders.CancelTimer(name) for name in ("job", "ready", "start")]
        timers.append(orders.SetTimer("patience", PATIENCE))
        return told + timers + self._stop_orders(ladder) + self._close_if_empty()

    def _stop_orders(self, ladder: orders.Ladder) -> List[Order]:
        by_host: Dict[str, List[TaskId]] = {}
        for task, record in self._records.items():
            if task in self._open:
                by_host.setdefault(record.host, []).append(task)
        if not by_host:
            return []
        stops: List[Order] = [orders.StopTasks(host, tuple(tasks), ladder) for host, tasks in by_host.items()]
        return [orders.SetTimer("end", stopping.longest(ladder)), *stops]

    def _close_if_empty(self) -> List[Order]:
        if self._open or self.phase is Phase.CLOSING:
            return []
        self.phase = Phase.CLOSING
        closes: List[Order] = [orders.CloseAgent(host) for host in self._agents.open()]
        cancels: List[Order] = [orders.CancelTimer(name) for name in ("end", "job", "start", "ready")]
        timers: List[Order] = [orders.SetTimer("close", CLOSE_LIMIT), orders.SetTimer("patience", PATIENCE)]
        return [*cancels, *timers, *closes, *self._finish_if_closed()]

    def _finish_if_closed(self) -> List[Order]:
        if self._agents.open():
            return []
        self.phase = Phase.OVER
        return [orders.Finish(self.exit_code)]

    # ------------------------------------------------------------------ the user and the clock

    def _stop_asked(self, fact: facts.StopAsked) -> List[Order]:
        if self.phase is Phase.STOPPING:
            return [
                Tell(f"{fact.who} again: killing what is left at once"),
                *self._stop_orders(stopping.at_once()),
            ]
        if self.phase is Phase.CLOSING:
            return []
        failure = Failure(Reason.INTERRUPTED, None, None, fact.at, f"stopped by {fact.who}")
        self._blame(failure, 128 + fact.signal)
        grace = wording.seconds(self._policy.grace)
        text = f"{fact.who}: stopping {wording.tasks(len(self._open))}, up to {grace}; once more kills them at once"
        return self._stop(stopping.orderly(self._policy.grace), [Tell(text)])

    def _time_up(self, fact: facts.TimeUp) -> List[Order]:
        if fact.timer == "patience":
            return self._say_what_is_awaited()
        if fact.timer == "job":
            return self._job_took_too_long(fact)
        late, why = self._late(fact.timer)
        given_up: List[Order] = []
        for host in late:
            given_up += self._agent_lost(facts.AgentLost(host, fact.at, why))
        return given_up

    def _job_took_too_long(self, fact: facts.TimeUp) -> List[Order]:
        if self.phase not in (Phase.GATHERING, Phase.RUNNING):
            return []
        limit = wording.seconds(self._policy.timeout or 0.0)
        text = f"the job took longer than its time limit of {limit}"
        hint = "--timeout sets the limit; the logs show what each task was doing"
        self._blame(Failure(Reason.TIMEOUT, None, None, fact.at, text, hint), _TIMED_OUT)
        told: List[Order] = [Tell(f"{text}; stopping {wording.tasks(len(self._open))}")]
        return self._stop(stopping.orderly(self._policy.grace), told)

    def _late(self, timer: str) -> Tuple[Tuple[str, ...], str]:
        """Hosts that are behind when this timer runs out, and what is to be said of them."""
        if timer == "ready":
            return self._agents.not_holding(), f"no answer from its agent in {wording.seconds(READY_LIMIT)}"
        if timer == "start":
            late = tuple({self._records[task].host for task in self._awaited_starts})
            return late, f"its agent could not start a task in {wording.seconds(START_LIMIT)}"
        if timer == "end":
            return tuple({self._records[task].host for task in self._open}), "its agent did not end the tasks"
        return self._agents.open(), "its agent did not close"

    def _say_what_is_awaited(self) -> List[Order]:
        text = self._awaited()
        return [Tell(text), orders.SetTimer("patience", REPEAT)] if text else []

    def _awaited(self) -> str:
        if self.phase is Phase.GATHERING:
            return f"waiting for the agent on {wording.some(self._agents.not_holding())}"
        if self.phase is Phase.CLOSING:
            return f"waiting for the agent on {wording.some(self._agents.open())} to close"
        waiting = self._awaited_starts if self.phase is Phase.RUNNING else self._open
        names = tuple(str(task) for task in self._records if task in waiting)
        verb = "start" if self.phase is Phase.RUNNING else "end"
        return f"waiting for {wording.some(names)} to {verb}" if names else ""

    # ------------------------------------------------------------------ small questions

    def _tasks_on(self, host: str) -> Tuple[TaskId, ...]:
        return tuple(task for task, record in self._records.items() if record.host == host)

    def _on(self, host: str) -> str:
        return wording.whose(host, len(self._agents) > 1)

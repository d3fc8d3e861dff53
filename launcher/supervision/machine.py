"""The machine: follows every task and agent, and says what is to be done.

::

    GATHERING ──> RUNNING ──> STOPPING ──> CLOSING ──> OVER
        └─────────────────────────^           ^
                     (all tasks are gone) ────┘

GATHERING: agents come up and hold ports. RUNNING: until the policy, the user or the clock says stop.
STOPPING: until every task is gone. CLOSING: until every agent is. Each fact gives a list of orders.
"""

from __future__ import annotations

from collections.abc import Callable

from launcher.model import facts, orders
from launcher.model.job import JobSpec
from launcher.model.orders import Order, Tell
from launcher.model.plan import Placement, Plan
from launcher.model.records import TYPE_CHECKING
from launcher.model.report import Failure, Report
from launcher.model.status import ExitStatus, Reason, TaskState
from launcher.model.task import TaskId
from launcher.supervision import policy, stopping, waiting, wording
from launcher.supervision.blame import Blame
from launcher.supervision.gathering import HOST_FAULT, Gathering
from launcher.supervision.hosts import Agents, AgentState
from launcher.supervision.record import InvalidTransition, Record
from launcher.supervision.roster import Roster
from launcher.supervision.waiting import Phase, Waiting

if TYPE_CHECKING:
    from typing import Any

__all__ = ["InvalidTransition", "Machine", "Phase"]

#: How many tasks may each have a line of their own about not ending on SIGTERM.
_TOLD = 3

_TIMED_OUT = 124
_PATIENTLY = orders.SetTimer("patience", waiting.PATIENCE)


class Machine:
    """Supervises one job.

    Args:
        job: what was asked for.
        placement: who runs where.
        name: the job's id.
        check: see whether the hosts reach each other, before anything is started.
    """

    def __init__(self, job: JobSpec, placement: Placement, name: str, check: bool = False) -> None:
        self._policy, self._name = job.policy, name
        self._named = check or len(placement.hosts()) > 1  # whether a host has to be named
        self.phase = Phase.GATHERING
        self._tasks = Roster(placement)
        self._agents = Agents(host.name for host in placement.hosts())
        self._waiting = Waiting(self._tasks, self._agents)
        self._blame = Blame()
        self._gathering = Gathering(self._tasks, self._agents, self._blame, check)
        #: When somebody last asked for the end, and whether nothing is waited for any more because of it.
        self._asked_at: float | None = None
        self.hurried = False
        self._stubborn = 0
        self._handlers: dict[type, Callable[[Any], list[Order]]] = {
            facts.AgentReady: self._agent_ready,
            facts.PortsHeld: self._ports_held,
            facts.PortsRefused: self._ports_refused,
            facts.PeersTried: self._peers_tried,
            facts.TaskStarted: self._task_started,
            facts.TaskNotStarted: self._task_not_started,
            **dict.fromkeys((facts.HostGpus, facts.TaskOutput), lambda _: []),
            facts.TaskSignalled: self._task_signalled,
            facts.TaskExited: self._task_exited,
            facts.TaskGone: self._task_gone,
            facts.AgentLost: self._agent_lost,
            facts.AgentClosed: self._agent_closed,
            facts.StopAsked: self._stop_asked,
            facts.TimeUp: self._time_up,
        }

    # ------------------------------------------------------------------ from outside

    @property
    def failure(self) -> Failure | None:
        """The first failure by time, as far as is known."""
        return self._blame.failure

    def begin(self) -> list[Order]:
        """The first orders; agents are being started meanwhile."""
        if not len(self._agents):
            return self._finish_if_closed()
        timers: list[Order] = [_PATIENTLY, orders.SetTimer("ready", waiting.READY_LIMIT)]
        limit = self._policy.timeout
        return timers if limit is None else [*timers, orders.SetTimer("job", limit)]

    def handle(self, fact: facts.Fact) -> list[Order]:
        """What is to be done after this fact.

        Raises:
            InvalidTransition: the facts contradict each other (a fault of ours).
        """
        host = getattr(fact, "host", None)
        if self.phase is Phase.OVER or (host is not None and not self._agents.hear(host)):
            return []
        return self._handlers[type(fact)](fact)

    def planned(self, plan: Plan) -> list[Order]:
        """The plan is made: start all of it."""
        if self.phase is not Phase.GATHERING:
            return []
        self.phase = Phase.RUNNING
        ladder = stopping.orderly(self._policy.grace)
        starts: list[Order] = [orders.CancelTimer("ready"), orders.SetTimer("start", waiting.START_LIMIT)]
        for task in plan.tasks:
            record = self._tasks.records[task.task]
            record.move(TaskState.STARTING, "the plan")
            record.address, record.port = task.address, task.port
            self._tasks.starting.add(task.task)
            what = (task.argv, task.env, task.workdir, ladder, task.venv, task.script)
            starts.append(orders.StartTask(task.host, task.task, record.attempt, *what))
        return starts

    def report(self, started_at: float, ended_at: float, run_dir: str = "") -> Report:
        """How it ended, or how it stands.

        Args:
            started_at, ended_at: of the whole job, seconds since the epoch.
            run_dir: where its files are.
        """
        tasks = tuple(record.report() for record in self._tasks.records.values())
        return Report(self._name, self._blame.exit_code, started_at, ended_at, tasks, self.failure, run_dir)

    # ------------------------------------------------------------------ agents

    def _agent_ready(self, fact: facts.AgentReady) -> list[Order]:
        if self.phase is Phase.CLOSING:  # it may have come up after everybody was told
            return [orders.CloseAgent(fact.host)]
        return self._gathered(self._gathering.ready(fact))

    def _ports_held(self, fact: facts.PortsHeld) -> list[Order]:
        return self._gathered(self._gathering.held(fact))

    def _ports_refused(self, fact: facts.PortsRefused) -> list[Order]:
        return self._gathered(self._gathering.refused(fact))

    def _peers_tried(self, fact: facts.PeersTried) -> list[Order]:
        return self._gathered(self._gathering.tried(fact))

    def _gathered(self, told: list[Order]) -> list[Order]:
        """Go on gathering, or give up once everybody was heard."""
        if self.phase is not Phase.GATHERING:
            return []
        if self._gathering.failed():
            return self._stop(told)
        return told + (self._gathering.bound() if self.failure else [])

    def _agent_lost(self, fact: facts.AgentLost) -> list[Order]:
        self._agents.set(fact.host, AgentState.LOST)
        self._gathering.lost(fact.host)
        text = wording.lost(fact.host, fact.why)
        told: list[Order] = [Tell(text, urgent=True), orders.HangUp(fact.host)]
        if self.phase is Phase.CLOSING:  # nothing of the job was there any more
            return told + self._finish_if_closed()
        for task in self._tasks.open_on(fact.host):
            self._lose(self._tasks.records[task], fact)
        self._blame.fail(Failure(Reason.HOST_LOST, None, fact.host, fact.at, text), HOST_FAULT)
        return self._gathered(told) if self.phase is Phase.GATHERING else self._judge(told)

    def _lose(self, record: Record, fact: facts.AgentLost) -> None:
        if record.state is TaskState.ENDED:  # its own end was seen: only what it left behind is lost
            record.move(record.outcome, fact)
        else:
            record.move(TaskState.LOST, fact)
            record.reason, record.detail = Reason.HOST_LOST, f"its host is lost: {fact.why}"
            record.ended_at = None if record.started_at is None else fact.at
        if self._tasks.ended(record.task):
            self._blame.decided(fact.at)
        self._tasks.over(record.task)

    def _agent_closed(self, fact: facts.AgentClosed) -> list[Order]:
        if self.phase is not Phase.CLOSING:
            return self._agent_lost(facts.AgentLost(fact.host, fact.at, wording.LEFT))
        self._agents.set(fact.host, AgentState.CLOSED)
        return self._finish_if_closed()

    def _agent_leaves(self, fact: facts.TaskSignalled) -> list[Order]:
        """An agent ends a task that nobody asked it to: somebody ended the agent, or its guardian."""
        self._tasks.records[fact.task].move(TaskState.STOPPING, fact)
        if self._agents.is_leaving(fact.host):
            return []
        self._agents.set(fact.host, AgentState.LEAVING)
        text = f"host {fact.host} is lost: {wording.LEFT}"
        self._blame.fail(Failure(Reason.HOST_LOST, None, fact.host, fact.at, text), HOST_FAULT)
        return self._judge([Tell(text, urgent=True)])

    # ------------------------------------------------------------------ tasks

    def _task_started(self, fact: facts.TaskStarted) -> list[Order]:
        record = self._tasks.records[fact.task]
        record.pid, record.started_at = fact.pid, fact.at
        if record.state is TaskState.STARTING:
            record.move(TaskState.RUNNING, fact)
        return self._start_answered(fact.task)

    def _task_not_started(self, fact: facts.TaskNotStarted) -> list[Order]:
        record = self._tasks.records[fact.task]
        record.move(TaskState.FAILED, fact)
        record.status = ExitStatus(code=fact.code)
        record.reason, record.detail = wording.start_reason(fact.code), fact.why
        record.ended_at = fact.at
        if self._tasks.ended(fact.task):
            self._blame.decided(fact.at)
        self._tasks.over(fact.task)
        text = f"{fact.task} could not be started{self._on(fact.host)}: {fact.why}"
        failure = Failure(record.reason, fact.task, fact.host, fact.at, text)
        first = self._blame.fail(failure, fact.code)
        return self._start_answered(fact.task) + self._judge(self._tell_failure(text, first))

    def _start_answered(self, task: TaskId) -> list[Order]:
        self._tasks.starting.discard(task)
        if self._tasks.starting or self.phase is not Phase.RUNNING:
            return []
        return [orders.CancelTimer("start"), orders.CancelTimer("patience")]

    def _task_signalled(self, fact: facts.TaskSignalled) -> list[Order]:
        record = self._tasks.records[fact.task]
        record.signalled = record.signalled or not record.status.known
        if record.state in (TaskState.STARTING, TaskState.RUNNING):
            return self._agent_leaves(fact)
        if fact.signal != stopping.SIGABRT:
            return []
        self._stubborn += 1
        if self._stubborn > _TOLD + 1:
            return []
        who = "more tasks" if self._stubborn > _TOLD else str(fact.task)
        return [Tell(wording.stubborn(who, record.status.known))]

    def _task_exited(self, fact: facts.TaskExited) -> list[Order]:
        record = self._tasks.records[fact.task]
        record.move(TaskState.ENDED, fact)
        record.status = ExitStatus(fact.code, fact.signal)
        record.ended_at, record.peak_rss, record.cpu_s = fact.at, fact.peak_rss, fact.cpu_s
        record.detail = wording.exit_detail(record.status, fact.oom)
        if self._tasks.ended(fact.task):
            self._blame.decided(fact.at)
        if record.signalled or (self._blame.too_late(fact.at) and not record.status.ok):
            record.outcome, record.reason = TaskState.STOPPED, Reason.STOPPED
            return self._judge([])
        return self._judge(self._ended_by_itself(record, fact))

    def _ended_by_itself(self, record: Record, fact: facts.TaskExited) -> list[Order]:
        record.reason = wording.exit_reason(record.status, fact.oom)
        record.outcome = TaskState.SUCCEEDED if record.status.ok else TaskState.FAILED
        if record.status.ok:
            early = record.service and self._tasks.undecided
            return (
                [Tell(f"{record.task} ended by itself (exit code 0) before the job was done")]
                if early
                else []
            )
        after = "" if record.started_at is None else f" after {wording.seconds(fact.at - record.started_at)}"
        text = f"{record.task} failed{self._on(record.host)}{after}: {record.detail}"
        hint = wording.exit_hint(record.status, fact.oom)
        failure = Failure(record.reason, record.task, record.host, fact.at, text, hint)
        return self._tell_failure(text, self._blame.fail(failure, record.status.shell))

    def _task_gone(self, fact: facts.TaskGone) -> list[Order]:
        record = self._tasks.records[fact.task]
        record.leftovers, record.unkillable = fact.leftovers, fact.unkillable
        told: list[Order] = []
        if fact.leftovers:
            told.append(Tell(f"{fact.task} left {wording.processes(fact.leftovers)} behind: ended by us"))
        if fact.unkillable:
            text = wording.unkillable(fact.task, fact.unkillable) + self._on(fact.host)
            told.append(Tell(text, urgent=True))
        if not record.status.known:
            record.reason, record.detail = Reason.STOPPED, "SIGKILL did not end it"
        record.move(record.outcome, fact)
        self._tasks.over(fact.task)
        return self._judge(told)

    # ------------------------------------------------------------------ the job's end

    def _judge(self, told: list[Order]) -> list[Order]:
        """After a task's end: go on, or stop the rest. ``told`` is said first."""
        if self.phase is not Phase.RUNNING:
            return told + self._close_if_empty()
        verdict = self._verdict()
        if verdict is policy.Verdict.GO_ON:
            return told
        if verdict is policy.Verdict.DONE:
            self._blame.done()
        return self._stop(told)

    def _verdict(self) -> policy.Verdict:
        return policy.verdict(self._policy.on_failure, self.failure is not None, len(self._tasks.undecided))

    def _tell_failure(self, text: str, first: bool) -> list[Order]:
        """Say that a task failed, unless it is one of many that fell with the first."""
        if self.phase is not Phase.RUNNING:
            return [Tell(f"{text}; that was before all else")] if first else []
        others = self._tasks.alive()
        if not others:
            return []  # the report is next, and says it
        goes_on = self._verdict() is policy.Verdict.GO_ON
        rest = f"stopping the other {wording.tasks(others, many_only=True)}"
        return [Tell(f"{text}; {wording.tasks(others)} left" if goes_on else f"{text}; {rest}")]

    def _stop(self, told: list[Order]) -> list[Order]:
        """End everything that runs; what was not started never will be."""
        self.phase = Phase.STOPPING
        self._tasks.to_stop()
        ladder = stopping.orderly(self._policy.grace)
        timers: list[Order] = [orders.CancelTimer(name) for name in waiting.BEFORE_STOP]
        if self._tasks.open:
            timers += [_PATIENTLY, orders.SetTimer("end", stopping.longest(ladder))]
        return told + timers + [*self._tasks.stops(ladder, ended=False)] + self._close_if_empty()

    def _close_if_empty(self) -> list[Order]:
        if self._tasks.open or self.phase is not Phase.STOPPING:
            return []
        self.phase = Phase.CLOSING
        closes: list[Order] = [orders.CloseAgent(host) for host in self._agents.open()]
        timers: list[Order] = [*map(orders.CancelTimer, waiting.BEFORE_CLOSE)]
        if closes:
            timers += [_PATIENTLY, orders.SetTimer("close", waiting.CLOSE_LIMIT)]
        return [*timers, *closes, *self._finish_if_closed()]

    def _finish_if_closed(self) -> list[Order]:
        if self._agents.open():
            return []
        self.phase = Phase.OVER
        return [orders.Finish(self._blame.exit_code)]

    # ------------------------------------------------------------------ the user and the clock

    def _stop_asked(self, fact: facts.StopAsked) -> list[Order]:
        before, again = self._asked_at, "" if self._asked_at is None else " again"
        if before is not None and abs(fact.at - before) < waiting.ECHO:
            return []
        self._asked_at = fact.at
        if self.phase is Phase.STOPPING:
            return self._hurry(fact.who + again)
        if self.phase is Phase.CLOSING:
            return self._leave_agents(fact.who + again)
        failure = Failure(Reason.INTERRUPTED, None, None, fact.at, f"stopped by {fact.who}")
        self._blame.fail(failure, 128 + fact.signal)
        text = f"{fact.who}: {self._what_stops()}"
        if self.phase is Phase.RUNNING and self._policy.grace > 0:
            text += f", up to {wording.limit(self._policy.grace)}; once more kills them at once"
        return self._stop([Tell(text)])

    def _hurry(self, who: str) -> list[Order]:
        """Kill what is left; who asks a third time is told what we wait for."""
        if self.hurried:
            return [Tell(f"{who}: they were killed; {self._waiting.words(self.phase)}")]
        self.hurried = True
        self._agents.ask(self._tasks.hosts_of(self._tasks.open))
        ladder = stopping.at_once()
        text = f"{who}: killing what is left of {wording.tasks(len(self._tasks.open))} at once"
        timers = waiting.hurried(stopping.longest(ladder))
        return [Tell(text), *timers, *self._tasks.stops(ladder, ended=True)]

    def _leave_agents(self, who: str) -> list[Order]:
        """Nothing of the job is left: agents that take their time to close need not be waited for."""
        self.hurried = True
        hosts = self._agents.lose_open()
        text = f"{who}: not waiting for the agent on {wording.some(hosts)} to close"
        return [Tell(text), *map(orders.HangUp, hosts), *self._finish_if_closed()]

    def _time_up(self, fact: facts.TimeUp) -> list[Order]:
        if fact.timer == "patience":
            text = self._waiting.words(self.phase)
            return [Tell(text), orders.SetTimer("patience", waiting.REPEAT)] if text else []
        if fact.timer == "job":
            return self._job_took_too_long(fact)
        if fact.timer == "check":
            return self._gathered(self._gathering.late())
        late, why = self._waiting.late(fact.timer)
        return [order for host in late for order in self.handle(facts.AgentLost(host, fact.at, why))]

    def _job_took_too_long(self, fact: facts.TimeUp) -> list[Order]:
        if self.phase not in (Phase.GATHERING, Phase.RUNNING):
            return []
        text = f"the job took longer than its time limit of {wording.limit(self._policy.timeout or 0.0)}"
        hint = "--timeout sets the limit; the logs show what each task was doing"
        self._blame.fail(Failure(Reason.TIMEOUT, None, None, fact.at, text, hint), _TIMED_OUT)
        return self._stop([Tell(f"{text}; {self._what_stops()}")])

    def _what_stops(self) -> str:
        if self.phase is Phase.GATHERING:
            return "no task was started yet"
        return f"stopping {wording.tasks(self._tasks.alive())}"

    def _on(self, host: str) -> str:
        return wording.whose(host, self._named)

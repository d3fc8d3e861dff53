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

from collections.abc import Callable, Collection, Iterable
from typing import Any

from launcher import events
from launcher.events import Command
from launcher.job import Host, JobSpec, Placement, Plan
from launcher.report import Failure, Reason, Report, TaskState
from launcher.supervisor import host_events, order, restarting, returning, stalls, task_events
from launcher.supervisor.restarts import Restarts
from launcher.supervisor.state import (
    AT_ONCE,
    CLOSE_LIMIT,
    NOTICE_TIMER,
    READY_LIMIT,
    REPEAT,
    SIGINT,
    SIGTERM,
    START_LIMIT,
    TIMED_OUT,
    JobState,
    Phase,
    limit_text,
    longest,
)
from launcher.supervisor.tasks import InvalidTransition
from launcher.task_id import TaskId
from launcher.text import counted, duration, listed

__all__ = ["InvalidTransition", "Machine", "Phase"]

#: Seconds for an agent to answer: a request to end at once; and, after the grace, a request to end in order.
_ANSWER_LIMIT, _LATE_ANSWER_LIMIT = 1.0, 3.0
#: Seconds within which a second signal is an echo of the first: ``timeout`` signals its command and then the
#: command's process group, a shell passes on a hang-up.
_ECHO = 0.02
#: Signals that a user can send again; a terminal or a pipe is closed only once.
_REPEATABLE = (SIGINT, SIGTERM)


class Machine(JobState):
    """Supervises one job: takes events, gives commands.

    Args:
        job: roles and policy.
        placement: the host of each task.
        name: the job's id.
        check: let the hosts connect to each other before the tasks start.
        restarts: the policy of restarts; ``None``: a new one.
        tasks_end: see `JobState`.
    """

    def __init__(
        self,
        job: JobSpec,
        placement: Placement,
        name: str,
        check: bool = False,
        restarts: Restarts | None = None,
        tasks_end: float | None = None,
    ) -> None:
        super().__init__(job, placement, check, restarts or Restarts(job, placement), tasks_end)
        self._name = name

    @property
    def failed(self) -> bool:
        """Whether the job has failed; it may still run."""
        return self.failure is not None

    def tasks(self) -> Collection[TaskId]:
        """The names of all tasks, in the order of the table."""
        return self.records.keys()

    def tasks_to_restart(self) -> list[TaskId]:
        """Tasks that are stopped, or wait, to start again."""
        return [*self.restarting]

    def stranded(self, tasks: Iterable[TaskId]) -> list[TaskId]:
        """Those of these tasks that can't start again: their hosts are lost, and they do not move."""
        left = [task for task in tasks if task not in self.restarting]
        return [task for task in left if self.records[task].host not in self.agents]

    def host(self, name: str) -> Host:
        """The host of this name."""
        return self.hosts[name]

    def busy_hosts(self) -> list[str]:
        """The hosts with tasks that are not over."""
        return self.hosts_of(self.open)

    def begin(self) -> list[Command]:
        """The first commands; the launcher starts the agents meanwhile."""
        if self.agents:
            self.do(NOTICE_TIMER, events.SetTimer("ready", READY_LIMIT))
            if self.policy.timeout is not None:
                self.do(events.SetTimer("job", self.policy.timeout))
        self.finish_if_closed()
        return self.take_commands()

    def verify(self, event: events.AgentEvent) -> None:
        """Check that a host may send this event now.

        Raises:
            ProtocolError: it contradicts what the host has said before.
        """
        order.verify(self, event)

    def handle(self, event: events.Event) -> list[Command]:
        """The commands that follow from this event.

        Raises:
            InvalidTransition: a bug in launch; events of hosts must have passed `verify`.
        """
        host = getattr(event, "host", None)
        if not isinstance(event, events.TaskOutput):  # a host that prints need not have obeyed
            self.unanswered.discard(host or "")
        handler = _HANDLERS.get(type(event))
        if handler is None or self.phase is Phase.OVER:
            return []
        answers = host in self.returning and isinstance(event, (events.AgentReady, events.AgentLost))
        if host is not None and host not in self.agents and not answers:
            return []
        handler(self, event)
        return self.take_commands()

    def planned(self, plan: Plan) -> list[Command]:
        """The plan is made: start every task."""
        if self.phase is not Phase.STARTUP and not self.placing:
            return []
        self.do(events.CancelTimer("ready"))
        for task in plan.tasks:
            record = self.records[task.task]
            record.address, record.port = task.address, task.port
            self.plans[task.task] = task
            if self.phase is Phase.STARTUP:
                record.move(TaskState.STARTING, "the plan")
                self.start(record)
        if self.placing:
            restarting.planned(self)
        else:
            self.phase = Phase.RUNNING
            self.do(events.SetTimer("start", START_LIMIT))
            stalls.begin(self)
        return self.take_commands()

    def report(self, started_at: float, ended_at: float, run_dir: str = "") -> Report:
        """The report of the job as it is now.

        Args:
            started_at, ended_at: of the job, seconds since the epoch.
            run_dir: the run's folder.
        """
        tasks = tuple(record.report() for record in self.records.values())
        fields = (self._name, self.exit_code, started_at, ended_at, tasks, self.failure, run_dir)
        return Report(*fields, restarts=self.restarts_made)


# ---------------------------------------------------------------------- requests to stop


def _stop_asked(job: JobState, event: events.StopAsked) -> None:
    """The user asks for the end of the job: the first time in order, then at once."""
    before, job.last_stop_at = job.last_stop_at, event.at
    if before is not None and abs(event.at - before) < _ECHO:
        job.last_stop_at = before
        return
    name = event.who if before is None else f"{event.who} again"
    if job.phase is Phase.STOPPING:
        _kill(job, name)
    elif job.phase is Phase.CLOSING:  # every task is gone
        job.immediate = True
        job.notify(f"{name}: not waiting for the agent on {listed([*job.agents])} to close")
        job.do(*map(events.HangUp, job.agents))
        job.agents.clear()
        job.finish_if_closed()
    elif job.phase is Phase.DRAINING:
        _stop_in_order(job, f"{event.who}: the job is done; ", event)
    else:
        failure = Failure(Reason.INTERRUPTED, None, None, event.at, f"stopped by {event.who}")
        job.fail(failure, 128 + event.signal)
        _stop_in_order(job, f"{event.who}: ", event)


def _stop_in_order(job: JobState, why: str, event: events.StopAsked) -> None:
    grace = job.policy.grace
    how_long = ""
    if job.phase is not Phase.STARTUP and job.alive() and grace > 0:
        again = f"{event.who} again" if event.signal in _REPEATABLE else "Ctrl-C"
        how_long = f", up to {limit_text(grace)}; {again} kills them at once"
    job.notify(f"{why}{_stop_text(job)}{how_long}")
    _stop_and_expect_answers(job)


def _stop_and_expect_answers(job: JobState) -> None:
    job.stop()
    if job.phase is Phase.STOPPING:
        _expect_answers(job, max(0.0, job.policy.grace) + _LATE_ANSWER_LIMIT)


def _kill(job: JobState, name: str) -> None:
    """Kill the tasks that are left; on a further request only name them."""
    if job.immediate:
        job.notify(f"{name}: the tasks were killed; {_waiting_for(job)}")
        return
    job.immediate = True
    job.notify(f"{name}: killing what is left of {counted(len(job.open), 'task')} at once")
    job.do(events.SetTimer("end", longest(AT_ONCE)))
    _expect_answers(job, _ANSWER_LIMIT)
    job.send_stops([record for record in job.records.values() if record.task in job.open], AT_ONCE)


def _expect_answers(job: JobState, seconds: float) -> None:
    """Set a limit for each host to answer, so that nothing waits for the lease of a silent host."""
    job.unanswered.update(job.hosts_of(job.open))
    job.answer_limit = seconds
    job.do(events.SetTimer("answer", seconds))


def _stop_text(job: JobState) -> str:
    if job.phase is Phase.STARTUP:
        return "no task was started yet"
    return f"stopping {counted(job.alive() or len(job.open), 'task')}" if job.open else "no task runs now"


# ---------------------------------------------------------------------- timers


def _time_up(job: JobState, event: events.TimeUp) -> None:
    """A timer has run out."""
    if event.timer == "notice":
        text = _waiting_for(job)
        if text:
            job.notify(text)
            job.do(events.SetTimer("notice", REPEAT))
    elif event.timer == "job":
        _job_took_too_long(job, event)
    elif event.timer == "drain":
        job.drain_time_up()
    elif event.timer == "check":
        host_events.check_late(job)
    elif event.timer == stalls.TIMER:
        stalls.look(job, event)
    elif event.timer.startswith("restart"):
        late = restarting.time_up(job, event)
        host_events.lose_hosts(job, late, "its agent did not stop the tasks", event.at)
        restarting.start_due(job)
    elif event.timer.startswith(returning.TIMER):
        returning.time_up(job, event.timer)
    else:
        host_events.lose_hosts(job, *_late(job, event.timer), event.at)


def _waiting_for(job: JobState) -> str:
    """``waiting for worker/0 to end``; empty if the job waits for nothing in particular."""
    verb, tasks = "end", job.open
    if job.phase is Phase.STARTUP:
        late = listed([*job.not_ready])
        return f"waiting for {f'the agent on {late}' if late else 'the hosts to connect to each other'}"
    if job.phase is Phase.CLOSING:
        return f"waiting for the agent on {listed([*job.agents])} to close"
    if job.phase is Phase.DRAINING:
        draining = {record.task: record.drain for record in job.draining()}
        limit = limit_text(max(draining.values()))
        return f"waiting for {job.names(draining)} to finish (at most {limit} after the job's end)"
    if job.phase is Phase.RUNNING:
        ending = job.open.intersection(job.restarting)
        waited = job.not_ready.keys() | job.returning
        hosts = [host for host in job.hosts_of(job.restarting) if host in waited]
        if hosts and not ending:
            return f"waiting for the agent on {listed(hosts)}"
        verb, tasks = ("end", ending) if ending else ("start", job.starting)
        first = all(job.records[task].attempt == 1 for task in tasks)
        if job.preload and first and verb == "start":
            verb += f": --preload imports {listed(job.preload)} first"
    return f"waiting for {job.names(tasks)} to {verb}" if tasks else ""


def _late(job: JobState, timer: str) -> tuple[list[str], str]:
    """The hosts that are late when this timer runs out, and the reason why they are lost."""
    if timer == "ready":
        return [*job.not_ready], f"no answer from its agent in {limit_text(READY_LIMIT)}"
    if timer == "rest":
        return [*job.not_ready], "it had not answered yet when another host failed"
    if timer == "start":
        return job.hosts_of(job.starting), f"its agent could not start a task in {limit_text(START_LIMIT)}"
    if timer == "answer":
        silent = [host for host in job.agents if host in job.unanswered]
        return silent, f"its agent did not answer in {limit_text(job.answer_limit)}"
    if timer == "end":
        return job.hosts_of(job.open), "its agent did not stop the tasks"
    return [*job.agents], f"its agent did not close in {limit_text(CLOSE_LIMIT)}"


def _job_took_too_long(job: JobState, event: events.TimeUp) -> None:
    if job.phase not in (Phase.STARTUP, Phase.RUNNING, Phase.DRAINING):
        return
    limit = limit_text(job.policy.timeout or 0.0, job.policy.timeout_text)
    job.notify(f"the time limit of {limit} is over: {_stop_text(job)}")
    if job.phase is not Phase.DRAINING:
        ended = [
            f"{record.task} ended after {duration(record.ended_at - record.started_at)}"
            for record in job.records.values()
            if not record.service and record.task not in job.restarting
            if record.started_at is not None and record.ended_at is not None
        ]
        went_on = f"; {listed(ended)}, {job.names(job.deciding)} went on" if ended else ""
        text = f"the job took longer than its time limit of {limit}{went_on}"
        hint = stalls.hint_at_timeout(job)
        job.fail(Failure(Reason.TIMEOUT, None, None, event.at, text, hint, limit), TIMED_OUT)
    _stop_and_expect_answers(job)


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
    events.StopAsked: _stop_asked,
    events.RestartAsked: restarting.asked,
    events.OutputDelayed: stalls.output_delayed,
    events.TimeUp: _time_up,
}

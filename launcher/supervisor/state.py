"""The state of one job: its phase, its agents, and the tasks that may go on when the job is done."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from launcher.events import StopSteps
from launcher.job import JobSpec, OnFailure, Placement, TaskId, is_loopback
from launcher.report import Failure, TaskState
from launcher.supervisor.tasks import SIGKILL, TaskRecord, Tasks
from launcher.text import listed

#: Exit codes of a job that took too long, and of one with a fault of the launcher or of a host.
TIMED_OUT, HOST_FAULT = 124, 125
#: Seconds of waiting before the first message, then between two messages.
PATIENCE, REPEAT = 2.0, 10.0

# Numbers of signal(7) on Linux: the same on every host, whatever its Python.
SIGINT, SIGABRT, SIGTERM = 2, 6, 15
#: Seconds for a hung program to print its stacks on SIGABRT, at most; after SIGKILL until a process counts as
#: unkillable; that an agent may be late before it counts as lost.
_STACKS, _LAST, _MARGIN = 2.0, 5.0, 10.0


class Phase(enum.Enum):
    """How far the job has come."""

    GATHERING = "gathering"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    CLOSING = "closing"
    OVER = "over"


def orderly(grace: float) -> StopSteps:
    """SIGTERM; after ``grace`` seconds SIGABRT, so that Python shows its stacks; then SIGKILL."""
    if grace <= 0:
        return at_once()
    return ((SIGTERM, grace), (SIGABRT, min(_STACKS, grace)), (SIGKILL, _LAST))


def at_once() -> StopSteps:
    """SIGKILL."""
    return ((SIGKILL, _LAST),)


def longest(sequence: StopSteps) -> float:
    """Seconds after which every task that is stopped so is over, or its agent is lost."""
    return sum(seconds for _, seconds in sequence) + _MARGIN


def limit_text(seconds: float, written: str = "") -> str:
    """A time limit as it was written, ``2h``; else in seconds, ``0.5 s``."""
    return written if written[-1:].isalpha() else f"{seconds:.10g} s"


class JobState:
    """One job.

    Args:
        job: what was asked for.
        placement: the host of each task.
        check: let the hosts connect to each other before the tasks start.
    """

    def __init__(self, job: JobSpec, placement: Placement, check: bool = False) -> None:
        self.policy = job.policy
        self.phase = Phase.GATHERING
        self.tasks = Tasks(placement)
        self.agents = Agents(host.name for host in placement.hosts())
        self.draining = Draining(self.tasks)
        self.failure: Failure | None = None
        self.exit_code = 0
        #: A request to end the job at once was made: nothing is waited for any more.
        self.hurried = False
        #: Let the hosts connect to each other; those that have not answered; the others' time is limited.
        self.check = check and len(placement.hosts()) > 1
        self.checking: set[str] = set()
        self.answers_limited = False
        #: When the user last asked for the end; seconds that agents were given to answer.
        self.asked_at: float | None = None
        self.answer_limit = 0.0
        #: Tasks that are being stopped; how many did not end on SIGTERM; ``--drain`` was advised.
        self.stopped: set[TaskId] = set()
        self.stubborn = 0
        self.advised_drain = False
        #: The last end of a deciding task; the same once the job is done.
        self._decided_at: float | None = None
        self._done_at: float | None = None
        self._name_hosts = _is_host_news(placement)

    def on(self, host: str) -> str:
        """`` on node1``; empty where the user knows the host."""
        return f" on {host}" if self._name_hosts else ""

    def fail(self, failure: Failure, exit_code: int) -> bool:
        """Something failed. Returns whether it is the first failure by time.

        Events of several hosts cross on their way. The end of a task has the time when it happened, all else
        the time when it was noticed, which is now: so only a task can turn out to have been the first.
        """
        first = self.failure
        if first is not None and (failure.task is None or failure.at >= first.at):
            return False
        self.failure, self.exit_code = failure, exit_code
        return True

    def ended(self, task: TaskId, at: float) -> None:
        """The process of a task is over."""
        if task in self.tasks.undecided:
            self.tasks.undecided.discard(task)
            self._decided_at = at if self._decided_at is None else max(at, self._decided_at)

    def done(self) -> None:
        """The last deciding task has ended: from then on an end is no failure."""
        self._done_at = self._decided_at

    @property
    def was_done(self) -> bool:
        """Whether the job ends because it is done, and well."""
        return self._done_at is not None and self.failure is None

    def too_late(self, at: float) -> bool:
        """Whether the job was done by then."""
        return self._done_at is not None and at >= self._done_at

    def must_stop(self) -> bool:
        """Whether a failure stops the other tasks."""
        return self.failure is not None and self.policy.on_failure is OnFailure.STOP

    def is_done(self) -> bool:
        """Whether all deciding tasks have ended, so that the rest is stopped, which counts as success."""
        return not self.must_stop() and not self.tasks.undecided


def _is_host_news(placement: Placement) -> bool:
    """Whether a host is worth naming: not this machine, nor a container that is named after its task."""
    if all(placed.task.names(placed.host.name) for placed in placement.tasks):
        return False
    hosts = placement.hosts()
    return len(hosts) > 1 or not all(is_loopback(host.name) for host in hosts)


class AgentState(enum.Enum):
    """How far an agent has come."""

    AWAITED = "awaited"
    READY = "ready"
    HOLDING = "holding"  #: it holds the ports of all its tasks
    REFUSED = "refused"  #: it has no ports for them
    LEAVING = "leaving"  #: it ends its tasks and itself without a command
    CLOSED = "closed"
    LOST = "lost"


class Agents:
    """The agents, by the name of their host."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.states: dict[str, AgentState] = dict.fromkeys(hosts, AgentState.AWAITED)
        #: Hosts that owe an answer, and since when.
        self._owing: dict[str, float] = {}

    def set(self, host: str, state: AgentState) -> None:
        """The agent is in ``state`` now; a lost one stays lost."""
        if self.states[host] is not AgentState.LOST:
            self.states[host] = state

    def received(self, host: str) -> bool:
        """An event came from it. Returns whether the event counts: not if the host is lost."""
        self._owing.pop(host, None)
        return self.states[host] is not AgentState.LOST

    def expect_answers(self, hosts: Iterable[str], at: float) -> None:
        """These owe an answer; a host that owes one already owes it since then."""
        self._owing = {host: self._owing.get(host, at) for host in hosts}

    def silent(self, since: float = float("inf")) -> tuple[str, ...]:
        """Hosts that owe an answer since then or longer."""
        return tuple(host for host in self.states if host in self._owing and self._owing[host] <= since)

    def early(self) -> tuple[str, ...]:
        """Hosts that do not hold their ports yet."""
        early = (AgentState.AWAITED, AgentState.READY)
        return tuple(host for host, state in self.states.items() if state in early)

    def open(self) -> tuple[str, ...]:
        """Hosts whose agent is neither closed nor lost."""
        over = (AgentState.CLOSED, AgentState.LOST)
        return tuple(host for host, state in self.states.items() if state not in over)


class Draining:
    """Tasks that may end by themselves when the job is done: an evaluator, a worker after its chief.

    Args:
        tasks: the job's.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        #: Seconds since the job was done: passed, and reported to the user.
        self._passed = 0.0
        self._reported = 0.0
        #: Seconds that will have passed when the timer that was set last fires.
        self._next = 0.0

    def going_on(self) -> list[TaskRecord]:
        """Tasks that have time left, and have not ended."""
        return [
            record
            for record in self._tasks.records.values()
            if record.drain > self._passed and record.state in (TaskState.STARTING, TaskState.RUNNING)
        ]

    def works(self) -> bool:
        """Whether tasks that are not services are among them."""
        return any(not record.service for record in self.going_on())

    def staying(self) -> frozenset[TaskId]:
        """These tasks, and those that serve them: sidecars; services while a task that is none goes on.

        A worker can't end well when its ps is stopped. Empty if only serving tasks would be left.
        """
        going_on, works = [record.task for record in self.going_on()], self.works()
        records = self._tasks.records.items()
        serving = (task for task, record in records if record.sidecar or (works and record.service))
        return frozenset((*going_on, *serving)) if going_on else frozenset()

    def next_end(self) -> float:
        """Seconds until the time of the next of them is over."""
        self._next = min(record.drain for record in self.going_on())
        return self._next - self._passed

    def time_up(self) -> str:
        """The time of some is over: the message for the user, empty if all of them have ended."""
        before = {record.task for record in self.going_on()}
        self._passed = self._next
        late = listed(self._tasks.named(before - self.staying()))
        limit = limit_text(self._passed)
        return f"{late} did not finish within {limit} of the job's end: stopped" if late else ""

    def waiting_for(self) -> str:
        """``waiting for evaluator/0 to finish (58 s left)``; called at `PATIENCE`, then each `REPEAT`."""
        self._reported += REPEAT if self._reported else PATIENCE
        going_on = self.going_on()
        left = max((record.drain for record in going_on), default=0.0) - self._reported
        names = listed([str(record.task) for record in going_on])
        return f"waiting for {names} to finish ({left:.0f} s left)" if left > 0 else ""

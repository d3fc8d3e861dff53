"""The state of one job."""

from __future__ import annotations

import enum

from launcher.job import JobSpec, OnFailure, Placement, is_loopback
from launcher.report import Failure
from launcher.supervisor.draining import Draining
from launcher.supervisor.hosts import Agents
from launcher.supervisor.tasks import Tasks

#: Exit codes of a job that took too long, and of one with a fault of the launcher or of a host.
TIMED_OUT, HOST_FAULT = 124, 125


class Phase(enum.Enum):
    """How far the job has come."""

    GATHERING = "gathering"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    CLOSING = "closing"
    OVER = "over"


class Verdict(enum.Enum):
    """What the end of a task means for the job."""

    GO_ON = "go on"
    DONE = "done"  #: all deciding tasks have ended: stop the rest, which counts as success
    STOP = "stop"  #: a task failed: stop the rest


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
        self.check = check and len(self.agents) > 1
        self.checking: set[str] = set()
        self.answers_limited = False
        #: When the user last asked for the end; seconds that agents were given to answer.
        self.asked_at: float | None = None
        self.answer_limit = 0.0
        #: Tasks that were told to stop; how many did not end on SIGTERM; ``--drain`` was advised.
        self.told_to_stop: set[str] = set()
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

    def decided(self, at: float) -> None:
        """A deciding task ended."""
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

    def verdict(self) -> Verdict:
        """What to do after the end of a task."""
        if self.failure is not None and self.policy.on_failure is OnFailure.STOP:
            return Verdict.STOP
        return Verdict.GO_ON if self.tasks.undecided else Verdict.DONE


def _is_host_news(placement: Placement) -> bool:
    """Whether a host is worth naming: not this machine, nor a container that is named after its task."""
    if all(placed.task.names(placed.host.name) for placed in placement.tasks):
        return False
    hosts = placement.hosts()
    return len(hosts) > 1 or not all(is_loopback(host.name) for host in hosts)

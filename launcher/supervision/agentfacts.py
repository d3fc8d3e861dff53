"""What becomes of agents: they gather, and are lost, end unasked, or close."""

from __future__ import annotations

from launcher import events
from launcher.events import Command, Tell
from launcher.report import Failure, Reason, TaskState
from launcher.supervision import wording
from launcher.supervision.ending import Ending
from launcher.supervision.gathering import HOST_FAULT, Gathering
from launcher.supervision.hosts import AgentState
from launcher.supervision.jobstate import JobState
from launcher.supervision.record import Record
from launcher.supervision.waiting import Phase


class AgentFacts:
    """Follows the agents.

    Args:
        job: as it stands.
        ending: ends it.
        check: see whether the hosts reach each other, before anything is started.
    """

    def __init__(self, job: JobState, ending: Ending, check: bool) -> None:
        self._job = job
        self._ending = ending
        self._gathering = Gathering(job.tasks, job.agents, job.blame, check)

    def ready(self, fact: events.AgentReady) -> list[Command]:
        """An agent has answered."""
        if self._job.phase is Phase.CLOSING:  # it may have come up after everybody was told
            return [events.CloseAgent(fact.host)]
        return self._gathered(self._gathering.ready(fact))

    def held(self, fact: events.PortsHeld) -> list[Command]:
        """A host has its ports."""
        return self._gathered(self._gathering.held(fact))

    def refused(self, fact: events.PortsRefused) -> list[Command]:
        """A host has no ports to give."""
        return self._gathered(self._gathering.refused(fact))

    def tried(self, fact: events.PeersTried) -> list[Command]:
        """A host has tried to reach others."""
        return self._gathered(self._gathering.tried(fact))

    def check_is_late(self) -> list[Command]:
        """Trying takes too long."""
        return self._gathered(self._gathering.late())

    def _gathered(self, told: list[Command]) -> list[Command]:
        """Go on gathering, or give up once everybody was heard."""
        if self._job.phase is not Phase.GATHERING:
            return []
        if self._gathering.failed():
            return self._ending.stop(told)
        return told + self._gathering.bound()

    def lost(self, fact: events.AgentLost) -> list[Command]:
        """Nothing more will come from it, nor will its tasks be seen again."""
        reached = not self._job.agents.is_early(fact.host)
        self._job.agents.set(fact.host, AgentState.LOST)
        self._gathering.lost(fact.host)
        text = wording.lost(fact.host, fact.why, reached)
        told: list[Command] = [Tell(text, urgent=True), events.HangUp(fact.host)]
        if self._job.phase is Phase.CLOSING:  # nothing of the job was there any more
            return told + self._ending.finish_if_closed()
        for task in self._job.tasks.open_on(fact.host):
            self._lose(self._job.tasks.records[task], fact, reached)
        self._blame(fact.host, fact.at, text)
        return self._gathered(told) if self._job.phase is Phase.GATHERING else self._ending.judge(told)

    def _lose(self, record: Record, fact: events.AgentLost, reached: bool) -> None:
        if record.state is TaskState.ENDED:  # its own end was seen: only what it left behind is lost
            record.move(record.outcome, fact)
        else:
            record.move(TaskState.LOST, fact)
            record.reason, record.detail = (
                Reason.HOST_LOST,
                f"its host {wording.lost_how(reached)}: {fact.why}",
            )
            record.ended_at = None if record.started_at is None else fact.at
        if self._job.tasks.ended(record.task):
            self._job.blame.decided(fact.at)
        self._job.tasks.over(record.task)

    def closed(self, fact: events.AgentClosed) -> list[Command]:
        """It was told to close, and did; or somebody else ended it."""
        if self._job.phase is not Phase.CLOSING:
            return self.lost(events.AgentLost(fact.host, fact.at, wording.LEFT))
        self._job.agents.set(fact.host, AgentState.CLOSED)
        return self._ending.finish_if_closed()

    def leaves(self, fact: events.TaskSignalled) -> list[Command]:
        """An agent ends a task that nobody asked it to: somebody ended the agent, or its guardian."""
        self._job.tasks.records[fact.task].move(TaskState.STOPPING, fact)
        if self._job.agents.is_leaving(fact.host):
            return []
        self._job.agents.set(fact.host, AgentState.LEAVING)
        text = f"host {fact.host} is lost: {wording.LEFT}"
        self._blame(fact.host, fact.at, text)
        return self._ending.judge([Tell(text, urgent=True)])

    def _blame(self, host: str, at: float, text: str) -> None:
        """A lost host is the job's failure, unless the job has begun and only its sidecars were there."""
        if self._job.phase is Phase.GATHERING or not self._job.tasks.only_sidecars_on(host):
            self._job.blame.fail(Failure(Reason.HOST_LOST, None, host, at, text), HOST_FAULT)

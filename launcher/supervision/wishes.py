"""What the user and the clock want."""

from __future__ import annotations

from collections.abc import Callable

from launcher import events
from launcher.events import Command, Tell
from launcher.report import Failure, Reason
from launcher.supervision import stopping, waiting, wording
from launcher.supervision.agentfacts import AgentFacts
from launcher.supervision.ending import Ending
from launcher.supervision.jobstate import JobState
from launcher.supervision.waiting import Phase, Waiting
from launcher.text import listed

_TIMED_OUT = 124
#: What somebody can ask for once more; a terminal or a pipe is closed only once.
_BY_HAND = (stopping.SIGINT, stopping.SIGTERM)


class Wishes:
    """Hears those who want the end, and timers that run out.

    Args:
        job: as it stands.
        ending: ends it.
        agents: follows the agents.
        handle: takes in a fact.
    """

    def __init__(
        self,
        job: JobState,
        ending: Ending,
        agents: AgentFacts,
        handle: Callable[[events.Event], list[Command]],
    ) -> None:
        self._job = job
        self._ending = ending
        self._agents = agents
        self._handle = handle
        self._waiting = Waiting(job.tasks, job.agents)
        #: When somebody last asked for the end.
        self._asked_at: float | None = None

    def stop_asked(self, fact: events.StopAsked) -> list[Command]:
        """Somebody wants the job to end: in order at first, then at once."""
        before, again = self._asked_at, "" if self._asked_at is None else " again"
        if before is not None and abs(fact.at - before) < waiting.ECHO:
            return []
        self._asked_at = fact.at
        if self._job.phase is Phase.STOPPING:
            return self._hurry(fact.who + again, fact.at)
        if self._job.phase is Phase.CLOSING:
            return self._leave_agents(fact.who + again)
        if self._job.phase is Phase.DRAINING:
            return self._stop_in_order(f"{fact.who}: the job is done; ", fact)
        failure = Failure(Reason.INTERRUPTED, None, None, fact.at, f"stopped by {fact.who}")
        self._job.blame.fail(failure, 128 + fact.signal)
        return self._stop_in_order(f"{fact.who}: ", fact)

    def _stop_in_order(self, why: str, fact: events.StopAsked) -> list[Command]:
        text = f"{why}{self._what_stops()}{self._how_long(fact.signal)}"
        return [*self._ending.stop([Tell(text)]), *self._await_answers(fact.at)]

    def _await_answers(self, now: float) -> list[Command]:
        """Who wants the end does not wait for the lease of a host from which nothing comes any more."""
        if self._job.phase is not Phase.STOPPING:
            return []
        self._job.agents.ask(self._job.tasks.hosts_of(self._job.tasks.open), now)
        return [self._waiting.for_answers(max(0.0, self._job.policy.grace) + waiting.LATE_ANSWER_LIMIT)]

    def _how_long(self, signal: int) -> str:
        grace = self._job.policy.grace
        if self._job.phase is Phase.GATHERING or grace <= 0:
            return ""
        again = "once more" if signal in _BY_HAND else "Ctrl-C"
        return f", up to {wording.limit(grace)}; {again} kills them at once"

    def _hurry(self, who: str, now: float) -> list[Command]:
        """Kill what is left; who asks a third time is told what we wait for."""
        job = self._job
        if job.hurried:
            return [Tell(f"{who}: they were killed; {self._waiting.words(job.phase)}")]
        job.hurried = True
        job.agents.ask(job.tasks.hosts_of(job.tasks.open), now)
        ladder = stopping.at_once()
        text = f"{who}: killing what is left of {wording.tasks(len(job.tasks.open))} at once"
        timers = (
            events.SetTimer("end", stopping.longest(ladder)),
            self._waiting.for_answers(waiting.ANSWER_LIMIT),
        )
        stops = job.tasks.stops(ladder, ended=True)
        silent = job.agents.silent(now - waiting.ANSWER_LIMIT)
        return [Tell(text), *timers, *stops, *self._lost(silent, now, self._waiting.no_answer())]

    def _lost(self, hosts: tuple[str, ...], now: float, why: str) -> list[Command]:
        return [order for host in hosts for order in self._handle(events.AgentLost(host, now, why))]

    def _leave_agents(self, who: str) -> list[Command]:
        """Nothing of the job is left: agents that take their time to close need not be waited for."""
        self._job.hurried = True
        hosts = self._job.agents.lose_open()
        text = f"{who}: not waiting for the agent on {listed(hosts)} to close"
        return [Tell(text), *map(events.HangUp, hosts), *self._ending.finish_if_closed()]

    def time_up(self, fact: events.TimeUp) -> list[Command]:
        """A timer that was set has run out."""
        if fact.timer == "patience":
            drains = self._job.phase is Phase.DRAINING
            text = self._job.draining.words() if drains else self._waiting.words(self._job.phase)
            return [Tell(text), events.SetTimer("patience", waiting.REPEAT)] if text else []
        if fact.timer == "job":
            return self._job_took_too_long(fact)
        if fact.timer == "drain":
            return self._ending.drained()
        if fact.timer == "check":
            return self._agents.check_is_late()
        late, why = self._waiting.late(fact.timer)
        return self._lost(late, fact.at, why)

    def _job_took_too_long(self, fact: events.TimeUp) -> list[Command]:
        limit = wording.limit(self._job.policy.timeout or 0.0, self._job.policy.timeout_said)
        if self._job.phase is Phase.DRAINING:
            return self._ending.stop([Tell(f"the time limit of {limit} is over: {self._what_stops()}")])
        if self._job.phase not in (Phase.GATHERING, Phase.RUNNING):
            return []
        went_on = wording.went_on(*self._job.tasks.progress())
        text = f"the job took longer than its time limit of {limit}{went_on}"
        failure = Failure(Reason.TIMEOUT, None, None, fact.at, text, wording.STACKS, limit)
        self._job.blame.fail(failure, _TIMED_OUT)
        return self._ending.stop([Tell(f"the time limit of {limit} is over: {self._what_stops()}")])

    def _what_stops(self) -> str:
        if self._job.phase is Phase.GATHERING:
            return "no task was started yet"
        return f"stopping {wording.tasks(self._job.tasks.alive())}"

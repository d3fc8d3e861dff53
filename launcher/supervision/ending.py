"""The job's end: when it has come, and the orders that bring it about."""

from __future__ import annotations

from collections.abc import Collection

from launcher import events
from launcher.events import Command, Ladder, Tell
from launcher.job import TaskId
from launcher.supervision import policy, stopping, waiting, wording
from launcher.supervision.jobstate import JobState
from launcher.supervision.waiting import PATIENTLY, Phase

#: The job has not been told to end.
_GOING = (Phase.RUNNING, Phase.DRAINING)


class Ending:
    """Ends the job, when what happened says so or somebody wants it.

    Args:
        job: as it stands.
    """

    def __init__(self, job: JobState) -> None:
        self._job = job
        #: Tasks that were told to end.
        self._asked: set[TaskId] = set()

    def judge(self, told: list[Command]) -> list[Command]:
        """After a task's end: go on, or stop the rest. ``told`` is said first."""
        if self._job.phase not in _GOING:
            return told + self._close_if_empty()
        if self._goes_on():
            return told + self._stops_who_served()
        if self._job.phase is Phase.RUNNING and self._verdict() is policy.Verdict.DONE:
            self._job.blame.done()
            if self._will_drain():
                return self._drain(told)
        return self.stop(told)

    def _goes_on(self) -> bool:
        """Whether what has happened is no reason to stop the rest, or not yet."""
        if self._job.phase is Phase.DRAINING:
            return self._verdict() is not policy.Verdict.STOP and bool(self._job.draining.going_on())
        return self._verdict() is policy.Verdict.GO_ON

    def _verdict(self) -> policy.Verdict:
        failed = self._job.blame.failure is not None
        return policy.verdict(self._job.policy.on_failure, failed, len(self._job.tasks.undecided))

    def tell_failure(self, text: str, first: bool) -> list[Command]:
        """Say that a task failed, unless it is one of many that fell with the first."""
        if self._job.phase not in _GOING:
            return [Tell(f"{text}; that was before all else")] if first else []
        others = self._job.tasks.alive()
        if not others:
            return []  # the report is next, and says it
        rest = f"stopping the other {wording.tasks(others, many_only=True)}"
        some_go_on = self._goes_on() or self._will_drain()
        return [Tell(f"{text}; {wording.tasks(others)} left" if some_go_on else f"{text}; {rest}")]

    def _will_drain(self) -> bool:
        """Whether the job is done, and some may take their time."""
        return self._verdict() is policy.Verdict.DONE and bool(self._job.draining.going_on())

    def _stops_who_served(self) -> list[Command]:
        """While the job drains: end the services that stayed for the sake of those that have ended."""
        if self._job.phase is not Phase.DRAINING or self._job.draining.works():
            return []
        return self._stops(self._job.draining.staying())

    def _drain(self, told: list[Command]) -> list[Command]:
        """The job is done: stop all but those that may take some time to end by themselves."""
        self._job.phase = Phase.DRAINING
        return [*told, PATIENTLY, *self._stops_but_draining()]

    def _stops_but_draining(self) -> list[Command]:
        draining = self._job.draining
        return [events.SetTimer("drain", draining.next_end()), *self._stops(draining.staying())]

    def drained(self) -> list[Command]:
        """The time that some were given is over."""
        text = self._job.draining.time_up()
        told: list[Command] = [Tell(text)] if text else []
        return told + self._stops_but_draining() if self._job.draining.going_on() else self.stop(told)

    def stop(self, told: list[Command]) -> list[Command]:
        """End everything that runs; what was not started never will be."""
        self._job.phase = Phase.STOPPING
        stops = self._stops()
        timers: list[Command] = [events.CancelTimer(name) for name in waiting.BEFORE_STOP]
        if self._job.tasks.open:
            timers += [PATIENTLY, events.SetTimer("end", stopping.longest(self._ladder()))]
        return told + timers + stops + self._close_if_empty()

    def _ladder(self) -> Ladder:
        return stopping.orderly(self._job.policy.grace)

    def _stops(self, but: Collection[TaskId] = ()) -> list[Command]:
        """Orders to end them in order, each once."""
        tasks = self._job.tasks
        tasks.to_stop(but)
        stops = tasks.stops(self._ladder(), ended=False, but=self._asked.union(but))
        self._asked.update(task for order in stops for task in order.tasks)
        return [*stops]

    def _close_if_empty(self) -> list[Command]:
        if self._job.tasks.open or self._job.phase is not Phase.STOPPING:
            return []
        self._job.phase = Phase.CLOSING
        closes: list[Command] = [events.CloseAgent(host) for host in self._job.agents.open()]
        timers: list[Command] = [*map(events.CancelTimer, waiting.BEFORE_CLOSE)]
        if closes:
            timers += [PATIENTLY, events.SetTimer("close", waiting.CLOSE_LIMIT)]
        return [*timers, *closes, *self.finish_if_closed()]

    def finish_if_closed(self) -> list[Command]:
        """It is over when every agent is."""
        if self._job.agents.open():
            return []
        self._job.phase = Phase.OVER
        return [events.Finish(self._job.blame.exit_code)]

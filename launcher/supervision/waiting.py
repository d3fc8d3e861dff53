"""What each phase waits for: every wait has a name for the user, and an end."""

from __future__ import annotations

import enum

from launcher import events
from launcher.supervision import wording
from launcher.supervision.hosts import Agents
from launcher.supervision.roster import Roster
from launcher.text import listed

#: Seconds: agents may take to be ready and hold their ports; to start a task; to close.
READY_LIMIT, START_LIMIT, CLOSE_LIMIT = 60.0, 60.0, 15.0
#: Seconds for the other agents to answer once a host has failed.
REST_LIMIT = 10.0
#: Seconds for the check of the network.
CHECK_LIMIT = 10.0
#: Seconds in which an agent must answer somebody who wants the end at once; and, after the grace, somebody
#: who wants it in order.
ANSWER_LIMIT, LATE_ANSWER_LIMIT = 1.0, 3.0
#: Seconds of waiting without a word, then between two words.
PATIENCE, REPEAT = 2.0, 10.0
PATIENTLY = events.SetTimer("patience", PATIENCE)
#: Timers of what comes before the stop.
BEFORE_STOP = ("job", "ready", "rest", "check", "start", "drain")
#: Timers of the tasks' end.
BEFORE_CLOSE = ("end", "answer")
_CHECKING = "waiting for the hosts to try whether they reach each other"
#: Seconds within which a second signal is an echo of the first, not a second wish: ``timeout`` signals
#: its command and then the command's group, a shell passes on the hang-up that we had already.
ECHO = 0.1


class Phase(enum.Enum):
    """How far the job has come."""

    GATHERING = "gathering"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    CLOSING = "closing"
    OVER = "over"


class Waiting:
    """Says whom we wait for.

    Args:
        tasks, agents: the job's.
    """

    def __init__(self, tasks: Roster, agents: Agents) -> None:
        self._tasks = tasks
        self._agents = agents
        #: Seconds that were given to answer.
        self._answer_limit = ANSWER_LIMIT

    def for_answers(self, seconds: float) -> events.SetTimer:
        """Agents must have said something by then."""
        self._answer_limit = seconds
        return events.SetTimer("answer", seconds)

    def no_answer(self) -> str:
        """What is said of one that did not."""
        return f"its agent did not answer in {wording.limit(self._answer_limit)}"

    def words(self, phase: Phase) -> str:
        """``waiting for worker/0 to end``; empty: for nothing that has to come soon."""
        if phase is Phase.GATHERING:
            late = self._agents.not_holding()
            return f"waiting for the agent on {listed(late)}" if late else _CHECKING
        if phase is Phase.CLOSING:
            return f"waiting for the agent on {listed(self._agents.open())} to close"
        verb, tasks = ("start", self._tasks.starting) if phase is Phase.RUNNING else ("end", self._tasks.open)
        return f"waiting for {listed(self._tasks.named(tasks))} to {verb}" if tasks else ""

    def late(self, timer: str) -> tuple[tuple[str, ...], str]:
        """Hosts that are behind when this timer runs out, and what is to be said of them."""
        if timer == "ready":
            return self._agents.not_holding(), f"no answer from its agent in {wording.limit(READY_LIMIT)}"
        if timer == "rest":
            return self._agents.not_holding(), "it had not answered yet when another host failed"
        if timer == "start":
            late = self._tasks.hosts_of(self._tasks.starting)
            return late, f"its agent could not start a task in {wording.limit(START_LIMIT)}"
        if timer == "answer":
            return self._agents.silent(), self.no_answer()
        if timer == "end":
            return self._tasks.hosts_of(self._tasks.open), "its agent did not end the tasks"
        return self._agents.open(), f"its agent did not close in {wording.limit(CLOSE_LIMIT)}"

"""The job as it stands: what all that decide look at, and change."""

from __future__ import annotations

from launcher.model.job import JobSpec
from launcher.model.plan import Placement
from launcher.supervision import wording
from launcher.supervision.blame import Blame
from launcher.supervision.draining import Draining
from launcher.supervision.hosts import Agents
from launcher.supervision.roster import Roster
from launcher.supervision.waiting import Phase


class JobState:
    """One job.

    Args:
        job: what was asked for.
        placement: who runs where.
        named: a host has to be named even if it is the only one.
    """

    def __init__(self, job: JobSpec, placement: Placement, named: bool) -> None:
        self.policy = job.policy
        self.phase = Phase.GATHERING
        self.tasks = Roster(placement)
        self.agents = Agents(host.name for host in placement.hosts())
        self.blame = Blame()
        self.draining = Draining(self.tasks)
        #: Nothing is waited for any more: somebody wants the end at once.
        self.hurried = False
        self._named = named or len(placement.hosts()) > 1

    def on(self, host: str) -> str:
        """`` on node1`` where there are several hosts, else nothing."""
        return wording.whose(host, self._named)

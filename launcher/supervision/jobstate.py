"""The job as it stands: what all that decide look at, and change."""

from __future__ import annotations

from launcher.job import JobSpec, Placement, is_loopback
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
    """

    def __init__(self, job: JobSpec, placement: Placement) -> None:
        self.policy = job.policy
        self.phase = Phase.GATHERING
        self.tasks = Roster(placement)
        self.agents = Agents(host.name for host in placement.hosts())
        self.blame = Blame()
        self.draining = Draining(self.tasks)
        #: Nothing is waited for any more: somebody wants the end at once.
        self.hurried = False
        self._hosts_tell = _hosts_tell(placement)

    def on(self, host: str) -> str:
        """`` on node1``; nothing where that is no news."""
        return f" on {host}" if self._hosts_tell else ""


def _hosts_tell(placement: Placement) -> bool:
    """Whether it is news where a task is: not on this machine, nor in a container that is named after it."""
    if all(placed.task.names(placed.host.name) for placed in placement.tasks):
        return False
    hosts = placement.hosts()
    return len(hosts) > 1 or not all(is_loopback(host.name) for host in hosts)

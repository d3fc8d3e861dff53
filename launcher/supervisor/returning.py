"""Lost hosts that come back: a new agent is started there, and later restarts may use the host."""

from __future__ import annotations

from launcher import events
from launcher.supervisor import restarting
from launcher.supervisor.hosts import HostRecord, HostState
from launcher.supervisor.state import JobState, Phase

#: Begins the name of the timer of each lost host.
TIMER = "return of "
#: Seconds between two attempts to reach a lost host.
_PAUSE = 30.0


def expect(job: JobState, host: str) -> None:
    """Try to reach a lost host later, when its tasks have ended for certain."""
    if job.tasks_end and job.restarts.limit and _goes_on(job):
        job.do(events.SetTimer(TIMER + host, max(job.tasks_end, _PAUSE)))


def time_up(job: JobState, timer: str) -> None:
    """Try to reach a lost host; not before its tasks have moved to others, and not without a restart."""
    if job.moving is not None or not job.restarts.left:
        job.do(events.SetTimer(timer, _PAUSE))
    elif _goes_on(job):
        job.start_agent(job.hosts[timer.removeprefix(TIMER)])


def came_back(job: JobState, host: HostRecord, event: events.AgentReady) -> None:
    """A new agent runs on a lost host."""
    if not _goes_on(job):  # the link is closed with the others
        host.move(HostState.LOST, event)
        return
    host.move(HostState.READY, event)
    host.ready = True
    if not host.tasks and host.host not in job.placement.standby:
        job.placement = job.placement._replace(standby=(*job.placement.standby, host.host))
    if job.tasks_end:
        job.notify(f"host {host.name} is back: it can take the tasks of a host that is lost")
    if job.moving is not None:
        restarting.start_if_due(job, job.moving)


def stays_lost(job: JobState, host: HostRecord, event: events.AgentLost) -> None:
    """No new agent could be started on a lost host: try it again."""
    host.move(HostState.LOST, event)
    if _goes_on(job):
        job.do(events.SetTimer(TIMER + host.name, _PAUSE))


def _goes_on(job: JobState) -> bool:
    return job.phase in (Phase.STARTUP, Phase.RUNNING) and job.failure is None

"""Lost hosts that come back: a new agent is started there, and later restarts may use the host."""

from __future__ import annotations

from launcher import events
from launcher.job import Host, Placement
from launcher.supervisor import restarting
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
        job.start_agent(timer.removeprefix(TIMER))


def came_back(job: JobState, host: str) -> None:
    """A new agent runs on a lost host."""
    job.returning.discard(host)
    if not _goes_on(job):  # the link is closed with the others
        return
    job.agents[host] = None
    job.self_stopping.discard(host)
    job.placement = _with_standby(job.placement, job.hosts[host])
    job.moving = job.moving and _with_standby(job.moving, job.hosts[host])
    if job.tasks_end:
        job.notify(f"host {host} is back: it can take the tasks of a host that is lost")
    restarting.start_due(job)


def stays_lost(job: JobState, host: str) -> None:
    """No new agent could be started on a lost host: try it again."""
    job.returning.discard(host)
    if _goes_on(job):
        job.do(events.SetTimer(TIMER + host, _PAUSE))


def _with_standby(placement: Placement, host: Host) -> Placement:
    if host.name in [each.name for each in placement.agent_hosts()]:
        return placement
    return placement._replace(standby=(*placement.standby, host))


def _goes_on(job: JobState) -> bool:
    return job.phase in (Phase.STARTUP, Phase.RUNNING) and job.failure is None

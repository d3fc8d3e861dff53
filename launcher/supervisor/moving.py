"""The tasks of lost hosts move: where to, and how their new hosts prepare for them.

Lost hosts may come back: a new agent is started there, and later restarts may use the host.
"""

from __future__ import annotations

from launcher.common import events
from launcher.common.report import Failure, Reason
from launcher.common.text import join_names
from launcher.job import Placement
from launcher.scheduler.placement import replace
from launcher.supervisor.ending import continue_or_stop
from launcher.supervisor.hosts import HostRecord, HostState
from launcher.supervisor.state import HOST_FAULT, READY_LIMIT, JobState, Phase
from launcher.supervisor.tasks import Restart

#: Begins the name of the timer of each host that may come back.
RETURN = "return of "
#: Seconds between two attempts to reach a lost host.
_PAUSE = 30.0
#: Hosts that are lost by one cause are lost within about this time: then look once for hosts for all tasks.
LOOK = events.SetTimer("place", 1.0)


def choose(job: JobState) -> Placement | None:
    """Where the tasks run without the lost hosts; ``None``: there is no room. New containers are made."""
    if not job.tasks_end:
        return job.placement
    return replace(job.placement, {name for name, host in job.hosts.items() if not host.active})


def look_for_room(job: JobState, _: events.TimeUp) -> None:
    """End the job now if there is no room for its tasks."""
    if job.moving is not None and not job.moving.placing and choose(job) is None:
        _fail(job, job.moving)


def hold_ports(job: JobState, restart: Restart) -> None:
    """Let all hosts hold ports for the tasks that they have from now on; the plan follows."""
    placement = choose(job)
    if placement is None:
        _fail(job, restart)
        return
    job.placement, restart.placing = placement, True
    for placed in placement.tasks:
        job.tasks[placed.task].place(placed)
    job.hosts.place(job.tasks.values())
    job.do(events.MoveTasks(placement), events.SetTimer("ready", READY_LIMIT))
    for host in job.hosts.values():
        if host.active and host.tasks:  # one without an agent is that of a lost sidecar
            host.move(HostState.HOLDING, "tasks move")
            if host.ready:
                job.do(host.hold_ports())


def _fail(job: JobState, restart: Restart) -> None:
    lost = [*restart.lost_hosts]
    stranded = job.tasks.names([task.task for host in lost for task in job.hosts[host].own])
    hosts = f"host {lost[0]} is" if len(lost) == 1 else f"hosts {join_names(lost)} are"
    why = "; ".join(dict.fromkeys(restart.lost_hosts.values()))
    text = f"{hosts} lost: {why}; no other host has room for {stranded}"
    job.forget_restarts(job.tasks)
    job.notify(text, urgent=True)
    job.fail(Failure(Reason.HOST_LOST, None, lost[0], restart.lost_at, text), HOST_FAULT)
    continue_or_stop(job)


def expect_back(job: JobState, host: str) -> None:
    """Try to reach a lost host later, when its tasks have ended for certain."""
    if job.tasks_end and job.restarts.limit and _goes_on(job):
        job.do(events.SetTimer(RETURN + host, max(job.tasks_end, _PAUSE)))


def reach(job: JobState, timer: str) -> None:
    """Try to reach a lost host; not before its tasks have moved to others, and not without a restart."""
    if job.moving is not None or not job.restarts.left:
        job.do(events.SetTimer(timer, _PAUSE))
    elif _goes_on(job):
        job.start_agent(job.hosts[timer.removeprefix(RETURN)])


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


def stays_lost(job: JobState, host: HostRecord, event: events.AgentLost) -> None:
    """No new agent could be started on a lost host: try it again."""
    host.move(HostState.LOST, event)
    if _goes_on(job):
        job.do(events.SetTimer(RETURN + host.name, _PAUSE))


def _goes_on(job: JobState) -> bool:
    return job.phase in (Phase.STARTUP, Phase.RUNNING) and job.failure is None

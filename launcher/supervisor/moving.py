"""The tasks of lost hosts move: where to, and how their new hosts prepare for them."""

from __future__ import annotations

from launcher import events
from launcher.job import Placement
from launcher.report import Failure, Reason
from launcher.scheduler.placement import replace
from launcher.supervisor.ending import continue_or_stop
from launcher.supervisor.hosts import HostState
from launcher.supervisor.restarts import Restart
from launcher.supervisor.state import HOST_FAULT, READY_LIMIT, JobState
from launcher.text import listed

#: Hosts that are lost by one cause are lost within about this time: then look once for hosts for all tasks.
LOOK = events.SetTimer("place", 1.0)


def choose(job: JobState) -> Placement | None:
    """Where the tasks run without the lost hosts; ``None``: there is no room. New containers are made."""
    if not job.tasks_end:
        return job.placement
    return replace(job.placement, {name for name, host in job.hosts.items() if not host.active})


def look_for_room(job: JobState) -> None:
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
                job.do(events.HoldPorts(host.name, tuple(task.task for task in host.tasks)))


def _fail(job: JobState, restart: Restart) -> None:
    lost = [*restart.lost_hosts]
    stranded = job.tasks.names([task.task for host in lost for task in job.hosts[host].own])
    hosts = f"host {lost[0]} is" if len(lost) == 1 else f"hosts {listed(lost)} are"
    text = f"{hosts} lost: no other host has room for {stranded}"
    job.forget_restarts(job.tasks)
    job.notify(text, urgent=True)
    job.fail(Failure(Reason.HOST_LOST, None, lost[0], restart.lost_at, text), HOST_FAULT)
    continue_or_stop(job)

"""The tasks of lost hosts move: where to, and how their new hosts prepare for them.

Lost hosts may come back: a new agent is started there, and later restarts may use the host.
"""

from __future__ import annotations

from launcher.common import events
from launcher.common.record import replace
from launcher.common.report import Failure, Reason
from launcher.common.text import join_names
from launcher.job import Placement
from launcher.scheduler.placement import replace_hosts
from launcher.supervisor.ending import continue_or_stop
from launcher.supervisor.hosts import HostRecord, HostState
from launcher.supervisor.state import HOST_FAULT_EXIT_CODE, READY_TIMEOUT_SECONDS, JobState, Phase
from launcher.supervisor.tasks import Restart

#: Begins the name of the timer of each host that may come back.
RETURN_TIMER_PREFIX = "return of "
#: Seconds between two attempts to reach a lost host.
_RECOVERY_PAUSE_SECONDS = 30.0
#: Hosts that are lost by one cause are lost within about this time: then look once for hosts for all tasks.
PLACE_TIMER = events.SetTimer("place", 1.0)


def choose(state: JobState) -> Placement | None:
    """Where the tasks run without the lost hosts; ``None``: there is no room. New containers are made."""
    if not state.tasks_end:
        return state.placement
    return replace_hosts(state.placement, {name for name, host in state.hosts.items() if not host.is_active})


def place_tick(state: JobState, _: events.TimeUp) -> None:
    """End the job now if there is no room for its tasks."""
    if state.moving is not None and not state.moving.placing and choose(state) is None:
        _fail(state, state.moving)


def hold_ports(state: JobState, restart: Restart) -> None:
    """Let all hosts hold ports for the tasks that they have from now on; the plan follows."""
    placement = choose(state)
    if placement is None:
        _fail(state, restart)
        return
    state.placement, restart.placing = placement, True
    for placed in placement.tasks:
        state.tasks[placed.task].place(placed)
    state.hosts.place(state.tasks.values())
    state.emit(events.MoveTasks(placement), events.SetTimer("ready", READY_TIMEOUT_SECONDS))
    for host in state.hosts.values():
        if host.is_active and host.tasks:  # one without an agent is that of a lost sidecar
            host.transition_to(HostState.HOLDING, "tasks move")
            if host.ready:
                state.emit(host.hold_ports())


def _fail(state: JobState, restart: Restart) -> None:
    lost = [*restart.lost_hosts]
    stranded = state.tasks.names([task.task for host in lost for task in state.hosts[host].own])
    hosts = f"host {lost[0]} is" if len(lost) == 1 else f"hosts {join_names(lost)} are"
    why = "; ".join(dict.fromkeys(restart.lost_hosts.values()))
    text = f"{hosts} lost: {why}; no other host has room for {stranded}"
    state.forget_restarts(state.tasks)
    state.tell(text, urgent=True)
    state.fail(Failure(Reason.HOST_LOST, None, lost[0], restart.lost_at, text), HOST_FAULT_EXIT_CODE)
    continue_or_stop(state)


def expect_back(state: JobState, host: str) -> None:
    """Try to reach a lost host later, when its tasks have ended for certain."""
    if state.tasks_end and state.restarts.limit and _goes_on(state):
        state.emit(events.SetTimer(RETURN_TIMER_PREFIX + host, max(state.tasks_end, _RECOVERY_PAUSE_SECONDS)))


def reach(state: JobState, timer: str) -> None:
    """Try to reach a lost host; not before its tasks have moved to others, and not without a restart."""
    if state.moving is not None or not state.restarts.has_restarts_left:
        state.emit(events.SetTimer(timer, _RECOVERY_PAUSE_SECONDS))
    elif _goes_on(state):
        state.start_agent(state.hosts[timer.removeprefix(RETURN_TIMER_PREFIX)])


def came_back(state: JobState, host: HostRecord, event: events.AgentReady) -> None:
    """A new agent runs on a lost host."""
    if not _goes_on(state):  # the link is closed with the others
        host.transition_to(HostState.LOST, event)
        return
    host.transition_to(HostState.READY, event)
    host.ready = True
    if not host.tasks and host.host not in state.placement.standby:
        state.placement = replace(state.placement, standby=(*state.placement.standby, host.host))
    if state.tasks_end:
        state.tell(f"host {host.name} is back: it can take the tasks of a host that is lost")


def stays_lost(state: JobState, host: HostRecord, event: events.AgentLost) -> None:
    """No new agent could be started on a lost host: try it again."""
    host.transition_to(HostState.LOST, event)
    if _goes_on(state):
        state.emit(events.SetTimer(RETURN_TIMER_PREFIX + host.name, _RECOVERY_PAUSE_SECONDS))


def _goes_on(state: JobState) -> bool:
    return state.phase in (Phase.STARTUP, Phase.RUNNING) and state.failure is None

"""The order of what a host may say: an event at the wrong moment is a fault of that host."""

from __future__ import annotations

from launcher.common import events
from launcher.common.errors import ProtocolError
from launcher.common.report import TaskState
from launcher.common.text import join_names
from launcher.supervisor.hosts import HostState
from launcher.supervisor.state import JobState, Phase
from launcher.supervisor.tasks import TaskRecord

_PROCESS_STATES = (TaskState.RUNNING, TaskState.STOPPING)
#: Notices of a host from the start of one task to that of the next.
_MAX_NOTICES = 100


def verify(state: JobState, event: events.AgentEvent) -> None:
    """Check that a host may send this event now.

    Raises:
        ProtocolError: it contradicts what the host has said before.
    """
    host = state.hosts.get(event.host)
    if host is None or state.phase is Phase.OVER or not (host.is_active or host.state is HostState.RETURNING):
        return
    if isinstance(event, events.AgentReady) == host.ready:
        raise ProtocolError(f"{type(event).__name__} at the wrong moment")
    task = getattr(event, "task", None)
    if task is not None and not _is_possible(event, state.tasks[task]):
        record = state.tasks[task]
        found = f"attempt {record.attempt} is {record.state.value}"
        raise ProtocolError(f"{type(event).__name__} of {task} at the wrong moment: {found}")
    if isinstance(event, events.PortsHeld) and state.phase is Phase.STARTUP:
        missing = [record.task for record in host.tasks if record.task not in event.ports]
        if missing:
            raise ProtocolError(f"PortsHeld without {join_names(missing)}")
    if isinstance(event, events.HostNotice) and host.notices >= _MAX_NOTICES:
        raise ProtocolError(f"more than {_MAX_NOTICES} notices")


def _is_possible(event: events.AgentEvent, record: TaskRecord) -> bool:
    """Whether a task can be in a state in which this event happens to it."""
    if record.host != event.host or getattr(event, "attempt", record.attempt) != record.attempt:
        return False
    if isinstance(event, (events.TaskStarted, events.TaskNotStarted)):
        return record.pid is None and record.state in (TaskState.STARTING, TaskState.STOPPING)
    if record.pid is None:
        return False
    if isinstance(event, events.TaskExited):
        return record.state in _PROCESS_STATES
    if isinstance(event, events.TaskGone):
        return record.state is TaskState.ENDED or (
            record.state is TaskState.STOPPING and event.unkillable != ()
        )
    return record.state in (*_PROCESS_STATES, TaskState.ENDED)

"""What holds in the state of a job after every event."""

from __future__ import annotations

from collections import Counter

from launcher.common.report import TaskState
from launcher.supervisor.records import ACTIVE_STATES, HostState, HostTable, TaskTable
from launcher.supervisor.state import JobState, Phase


def validate(job: JobState) -> None:
    """Check the state of a job.

    Raises:
        AssertionError: a fault of the launcher.
    """
    _validate_tasks(job.tasks)
    _validate_hosts(job.hosts)
    lost = {task for task, record in job.tasks.items() if not job.hosts[record.host].is_active}
    assert not job.tasks.not_gone & lost
    assert job.phase is Phase.RUNNING or not job.tasks.restarting
    assert job.phase not in (Phase.CLOSING, Phase.OVER) or not job.tasks.not_gone
    assert job.phase is not Phase.STOPPING or job.tasks.not_gone
    assert job.phase is not Phase.CLOSING or job.hosts.has_any(*ACTIVE_STATES)
    assert job.phase is not Phase.OVER or not job.hosts.has_any(*ACTIVE_STATES)
    assert job.phase is not Phase.DRAINING or job.tasks.drain.tasks
    assert {*job.restarts.values()} == {*job.tasks.restarting.values()}
    assert job.moving_restart is None or [*job.restarts.values()] == [job.moving_restart]
    if job.phase in (Phase.RUNNING, Phase.DRAINING) and not job.is_placing:
        assert not job.hosts.has_any(HostState.HOLDING, HostState.TRYING)


def _validate_tasks(tasks: TaskTable) -> None:
    ended = {task for task, record in tasks.items() if record.state is TaskState.ENDED}
    stalled = {task for task, record in tasks.items() if record.current.has_stalled}
    unanswered = (TaskState.STARTING, TaskState.STOPPING)
    assert tasks.not_gone == {task for task, record in tasks.items() if not record.state.is_over}
    assert tasks.alive == tasks.not_gone - ended - stalled
    assert tasks.starting == {
        task for task, record in tasks.items() if record.state in unanswered and record.current.pid is None
    }
    assert tasks.all_deciding & (tasks.not_gone - ended | tasks.restarting.keys()) <= tasks.deciding
    assert tasks.deciding <= tasks.all_deciding & (tasks.not_gone | tasks.restarting.keys())
    assert all(task in restart.tasks for task, restart in tasks.restarting.items())
    for restart in {*tasks.restarting.values()}:
        assert all(tasks.restarting[task] is restart for task in restart.tasks)


def _validate_hosts(hosts: HostTable) -> None:
    assert +hosts._counts == Counter(host.state for host in hosts.values())
    for host in hosts.values():
        assert not (host.has_agent and not host.is_active), host.name
        assert not (host.has_agent and host.state is HostState.STARTING), host.name
        assert host.has_agent or host.state not in (HostState.READY, HostState.TRYING), host.name
        assert all(task.next_host == host.name for task in host.tasks), host.name

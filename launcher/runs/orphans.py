"""Kills processes that a run left on this machine, after its launcher, agent and watchdog were killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from launcher.agent.processes import Process, tag, tag_of, user_of
from launcher.agent.sweep import kill_all, tagged
from launcher.common.record import Record
from launcher.runs.run import Run, RunState, forget_agents

#: Seconds for killed processes to end.
_KILL_TIMEOUT_SECONDS = 5.0
#: Seconds between two looks at the processes.
_POLL_SECONDS = 0.02
#: States of a suspended process.
_SUSPENDED_STATES = "Tt"


class Swept(Record):
    """The result for some runs."""

    #: A message for the user; empty: nothing was left.
    text: str = ""
    #: Some processes still exist.
    left: bool = False


def kill_leftovers(runs: Iterable[Run], seconds: float | None = None) -> Swept:
    """Kill the agents and tasks that these runs left here, if their launchers died.

    Records of other users are ignored.

    Args:
        runs: runs without a report.
        seconds: for agents that still run to end their tasks and themselves; then they are killed too.
            ``None``: agents that still run are not killed.
    """
    died = [run for run in runs if run.agents and run.is_ours and run.state is RunState.DIED]
    swept = [_sweep(run, seconds) for run in died]
    text = "; ".join(result.text for result in swept if result.text)
    return Swept(text, any(result.left for result in swept))


def _sweep(run: Run, seconds: float | None) -> Swept:
    until = time.monotonic() + (seconds or 0.0)
    agents = {tag(number, 0) for number in run.agents}
    while ending := [
        process
        for process in _processes(run)
        if process.state not in _SUSPENDED_STATES and tag_of(process.pid) in agents
    ]:
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_SECONDS)
    if ending and seconds is None:
        return Swept(f"the launcher of job {run.name} died; its agent is stopping its tasks here", left=True)
    found = _processes(run)
    left = kill_all(lambda: _processes(run), _KILL_TIMEOUT_SECONDS)
    if not left:
        forget_agents(run)
    if not found:
        return Swept()
    many = f"{len(found)} processes" if len(found) > 1 else "a process"
    but = f", but SIGKILL did not stop pid {', '.join(map(str, left))}" if left else ""
    return Swept(f"the launcher of job {run.name} died and left {many} here: killed{but}", bool(left))


def _processes(run: Run) -> list[Process]:
    """The agents and watchdogs of the run, and all that they started.

    Those of this user, unless this user is root: processes of others could set an agent's tag.
    """
    by_number = tagged()
    return [
        process
        for number in run.agents
        for process in by_number.get(number, [])
        if os.geteuid() in (0, user_of(process.pid))
    ]

"""What a run left on this machine: launcher, guardian and agent were killed, or stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from launcher.runs.owner import user_of
from launcher.runs.run import Run, RunState, forget_agents, load

if TYPE_CHECKING:
    from launcher.agent.processes import Process

#: Seconds for what was killed to be gone.
_PATIENCE = 5.0
#: Seconds between two looks at what should be gone soon, and until we say that we wait for it.
_LOOK, _SAY = 0.02, 2.0
#: An agent starts so many ticks (hundredths of a second) after its guardian at the latest.
_APART = 500
#: States of a process that does nothing by itself.
_STOPPED = "Tt"


class Swept(NamedTuple):
    """What became of it."""

    #: What is to be said; empty: nothing was there.
    text: str = ""
    #: Whether something is left.
    left: bool = False


class _Found(NamedTuple):
    """What there is of a run that died: what its agents started, and agents and guardians themselves."""

    started: list[Process]
    keepers: list[Process]

    @property
    def every(self) -> list[Process]:
        """All processes, those first that could start others."""
        return [*self.keepers, *self.started]

    @property
    def ending(self) -> bool:
        """Whether somebody is there to end it: neither killed nor stopped."""
        return any(keeper.state not in _STOPPED for keeper in self.keepers)


def sweep_died(runs: Iterable[Run], patience: float | None = None) -> Swept:
    """End what those of these runs left that died: what carries the mark of their agents, and these too.

    Nothing is done on the word of another user's record.

    Args:
        runs: those that may have died.
        patience: seconds for agents that are at it just now; what is there then is killed all the same.
            ``None``: they are left alone.
    """
    died = [run for run in runs if run.agents and run.is_ours and run.state is RunState.DIED]
    swept = [_sweep(run, patience) for run in died]
    return Swept("; ".join(filter(None, (one.text for one in swept))), any(one.left for one in swept))


def sweep_at(folders: Iterable[str]) -> str:
    """The same for the runs in these folders; what is to be said of it."""
    return sweep_died(filter(None, map(load, folders))).text


def _sweep(run: Run, patience: float | None) -> Swept:
    found = _after(run, patience or 0.0)
    if not found.every:
        forget_agents(run)
        return Swept()
    if found.ending and patience is None:
        return Swept(f"job {run.job} died; its agent is just ending what it left here", left=True)
    left = _kill(run)
    if not left:
        forget_agents(run)
    many = f"{len(found.every)} processes" if len(found.every) > 1 else "a process"
    but = f", but {', '.join(map(str, left))} can't be" if left else ""
    return Swept(f"job {run.job} died and had left {many} here: killed{but}", bool(left))


def _after(run: Run, patience: float) -> _Found:
    """What there is of it, once its agent had some time to end it."""
    began, said = time.monotonic(), False
    while (found := _find(run)).ending and (waited := time.monotonic() - began) < patience:
        if waited > _SAY and not said:
            said = True
            print(f"waiting for the agent of {run.job}, which ends its tasks", file=sys.stderr, flush=True)
        time.sleep(_LOOK)
    return found


def _kill(run: Run) -> list[int]:
    """Kill all there is of it until there is nothing; pids that are still there."""
    from launcher.agent.processes import send

    until = time.monotonic() + _PATIENCE
    while True:
        every = _find(run).every
        for process in every:
            send(process, signal.SIGKILL)
        if not every or time.monotonic() > until:
            return [process.pid for process in every]
        time.sleep(_LOOK)


def _find(run: Run) -> _Found:
    """Keepers are looked for first: they end after all else, so what is seen once they are gone is left."""
    from launcher.agent.processes import all_processes
    from launcher.agent.sweep import tagged

    keepers = [process for process in all_processes() if not process.ended and _keeps(run, process)]
    by_agent = tagged()
    started = [process for agent in run.agents for process in by_agent.get(agent.number, [])]
    known = {process.pid for process in keepers}
    mine = [process for process in started if process.pid not in known and _is_mine(process.pid)]
    return _Found(mine, keepers)


def _keeps(run: Run, process: Process) -> bool:
    """Whether it is a guardian of this run, or an agent: in its guardian's session, and little younger."""
    for agent in run.agents:
        if process.pid == agent.pid:
            return process.start == agent.start_ticks
        if process.session == agent.pid and 0 <= process.start - agent.start_ticks <= _APART:
            return _is_mine(process.pid)
    return False


def _is_mine(pid: int) -> bool:
    """Whether this user may end it: anybody can put on the mark of an agent."""
    return os.geteuid() in (0, user_of(pid))

"""What a run left on this machine because launcher, guardian and agent were all killed: nobody ended it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from launcher.model.watermark import agent_of
from launcher.runs.registry import Run, RunState, forget_agents, load

#: Started by name: nobody imports the agent.
_SWEEP, _KERNEL = "launcher.agent.sweep", "launcher.agent.kernel"
#: Seconds for what was killed to be gone.
_PATIENCE = 5.0


def sweep_died(runs: Iterable[Run]) -> str:
    """End what those of these runs left that died: only what carries the mark of their agents.

    Returns:
        What is to be said of it; empty: nothing was there.
    """
    died = [run for run in runs if run.agents and run.state is RunState.DIED]
    if not died:
        return ""
    lost, there = _found()
    return "; ".join(filter(None, (_sweep(run, lost, there) for run in died)))


def sweep_at(folders: Iterable[str]) -> str:
    """The same for the runs in these folders."""
    return sweep_died(filter(None, map(load, folders)))


def _found() -> tuple[list[int], set[int]]:
    """The agent of every process that none looks after any more; all agents that have processes here."""
    sweep, kernel = importlib.import_module(_SWEEP), importlib.import_module(_KERNEL)
    agents = (agent_of(kernel.watermark_of(process.pid)) for process in sweep.lost())
    return [agent for agent in agents if agent is not None], set(sweep.marked())


def _sweep(run: Run, lost: list[int], there: set[int]) -> str:
    if not there.intersection(run.agents):
        forget_agents(run)
        return ""
    mine = [agent for agent in lost if agent in run.agents]
    if not mine:  # its agent is ending them just now
        return ""
    sweep = importlib.import_module(_SWEEP)
    left = [pid for agent in set(mine) for pid in sweep.sweep(agent, _PATIENCE)]
    many = f"{len(mine)} processes" if len(mine) > 1 else "a process"
    but = f", but {', '.join(map(str, left))} can't be" if left else ""
    return f"job {run.job} died and had left {many} here: killed{but}"

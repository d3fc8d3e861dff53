"""The names of runs and tasks that a shell completes. Each reads the folders of the runs."""

from __future__ import annotations

from launcher.runs.run import RunState, all_runs, tasks


def unfinished_runs() -> list[str]:
    """The names of runs that have no report."""
    return [run.name for run in all_runs() if run.state is not RunState.ENDED]


def runs_and_tasks() -> list[str]:
    """The names of all runs, and of the tasks of the newest."""
    return [*(run.name for run in all_runs()), *newest_tasks()]


def newest_tasks() -> list[str]:
    """The names of the tasks of the newest run."""
    return [task for run in all_runs()[-1:] for task in tasks(run)]

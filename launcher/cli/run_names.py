"""The argument that names a run, and the names of runs and tasks that a shell completes."""

from __future__ import annotations

from launcher.config.settings import Setting
from launcher.runs.run import RunState, all_runs, tasks


def run_argument(help: str, positional: str = "?") -> Setting[str | None]:
    """Return the row of an argument that names a run."""
    return Setting(
        "run", str, help, metavar="RUN", default=None, positional=positional, complete=unfinished_runs
    )


def unfinished_runs() -> list[str]:
    """The names of runs that have no report; shells complete them, and read the folders of the runs."""
    return [run.name for run in all_runs() if run.state is not RunState.ENDED]


def runs_and_tasks() -> list[str]:
    """The names of all runs, and of the tasks of the newest."""
    return [*(run.name for run in all_runs()), *newest_tasks()]


def newest_tasks() -> list[str]:
    """The names of the tasks of the newest run."""
    return [task for run in all_runs()[-1:] for task in tasks(run)]

"""The argument that names a run, and the names of runs and tasks that a shell completes.

Commands such as ``launch stop`` and ``launch logs`` share it. Completion must stay fast and silent, so these
functions only read the folders of runs.
"""

from __future__ import annotations

from launcher.config.settings import Setting
from launcher.config.values import not_empty
from launcher.runs.run import RunState, all_runs, running, tasks


def run_argument(default: str = "", positional: str = "?") -> Setting[str | None]:
    """Return the row of the table of settings for an argument that names a run.

    Args:
        default: What the help says about the command without it.
        positional: How many words the argument has: ``?`` if it may be left out, ``1`` if not.
    """
    help = f"its name, its id or the end of that, `latest`, or its folder{default}"
    return Setting(
        "run", not_empty, help, metavar="RUN", default=None, positional=positional, complete=unfinished_runs
    )


def unfinished_runs() -> list[str]:
    """Return what runs that have not ended are called, for a shell to complete."""
    return [run.called for run in all_runs() if run.state is not RunState.ENDED]


def runs_and_tasks() -> list[str]:
    """Return what all runs are called and the tasks of the newest run, for a shell to complete."""
    return [*dict.fromkeys(run.called for run in all_runs()), *newest_tasks()]


def newest_tasks() -> list[str]:
    """Return the names of the tasks of the newest run that is running, or else of the newest, as above."""
    runs = all_runs()
    # Without any runs there is no newest one.
    return [task for run in (running(runs) or runs)[-1:] for task in tasks(run)]

"""The argument that names a run, and the names of runs and tasks that a shell completes.

Commands such as ``launch stop`` and ``launch logs`` share it. Completion must stay fast and silent, so its
functions only read the folders of runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from launcher.backends.queued_runs import find
from launcher.common.errors import Fault, InputError
from launcher.config.settings import Setting
from launcher.config.values import not_empty
from launcher.runs.run import Run, RunState, all_runs, running, tasks


def run_argument(default: str = "", positional: str = "?") -> Setting[str | None]:
    """Return the row of the table of settings for an argument that names a run.

    Args:
        default: What the help says about the command without this argument.
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
    """Return the tasks of the newest run that is running, or else of the newest, for a shell to complete."""
    runs = all_runs()
    # Without any runs there is no newest one.
    return [task for run in (running(runs) or runs)[-1:] for task in tasks(run)]


SELECTED: Setting[tuple[str, ...]] = Setting(
    "selected", str, "a run (default: `latest`), then tasks (worker/0) or roles", metavar="RUN | TASK",
    default=(), positional="*", repeatable=True, complete=runs_and_tasks,
)  # fmt: skip


def run_and_tasks(selected: Sequence[str]) -> tuple[Run, Sequence[str]]:
    """Return the run and the names of tasks in the arguments of a command, of `SELECTED`.

    The first argument may name a run. If it names a task or a role instead, the newest run is meant.

    Args:
        selected: The arguments as the user typed them.

    Raises:
        InputError: The first argument names neither a run, nor a task of the newest run.
    """
    if not selected:
        return find(), ()  # The newest run, with all tasks.
    try:
        return find(selected[0]), selected[1:]
    except InputError:
        if not all_runs():
            raise
        newest = find()
        roles = {task.role for task in tasks(newest)}
        is_path = selected[0].startswith((".", "/", "~")) or os.path.isdir(selected[0])
        if is_path and selected[0].rpartition("/")[0] not in roles:
            raise
        # Only tasks have a slash in their names. A wrong task is reported later.
        if "/" in selected[0] or selected[0] in roles:
            return newest, selected
        # The user may have typed worker0 or worker-0 for worker/0.
        task = re.fullmatch(r"(.+?)[-_:.]?(\d+)", selected[0])
        if task is None or task[1] not in roles:
            raise
        expected = f"did you mean {task[1]}/{task[2]}?"
        raise InputError([Fault("", f"no run and no task {selected[0]!r}", expected)]) from None

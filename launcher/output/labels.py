"""What stands before the bar of a task's lines, on the console as in ``launch logs``. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from launcher.job import TaskId

#: Labels are padded to the longest, but not beyond this.
_WIDTH = 40


def labels(hosts: Mapping[TaskId, str], shown: Collection[TaskId]) -> dict[TaskId, str]:
    """The name of each task, where there are several hosts also its host's; equally long.

    Args:
        hosts: of every task of the job.
        shown: those tasks that need a label.
    """
    several = len(set(hosts.values())) > 1 and not all(task.names(host) for task, host in hosts.items())
    names = {task: f"{hosts[task]} {task}" if several else str(task) for task in shown}
    width = min(_WIDTH, max(map(len, names.values()), default=0))
    return {task: name.ljust(width) for task, name in names.items()}

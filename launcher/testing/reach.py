"""Which process of this machine is a task, and signals for all that belong to it."""

from __future__ import annotations

from launcher.model.task import TASK_MARK, TaskId
from launcher.testing import processes
from launcher.testing.processes import Process


class Reach:
    """Finds the processes of one task, where it runs on this machine.

    Args:
        task, job: whose they are.
        launcher: pid of the launcher of the job.
    """

    def __init__(self, task: TaskId, job: str, launcher: int) -> None:
        self._task = task
        self._job = job
        self._launcher = launcher

    def main(self, pid: int) -> Process | None:
        """The process of this pid, if it lives and is provably the main process of the task.

        It leads a session of its own, and was given the job's and the task's name, or descends from the
        launcher. The pid of another machine's process, or of one in a container, is nothing of that here.
        """
        process = processes.look_at(pid)
        if process is None or process.ended or process.session != pid:
            return None
        named = processes.has_in_environment(pid, TASK_MARK, f"{self._job}:{self._task}")
        return process if named or processes.descends_from(process, self._launcher) else None

    def watermark(self, pid: int) -> int:
        """The number that all its processes carry; 0: there is none, or it can't be seen from here."""
        process = self.main(pid)
        mark = 0 if process is None else processes.watermark_of(pid)
        return mark if process is not None and processes.is_still(process) else 0


def signal_all(main: Process, number: int) -> None:
    """Signal every process of a task, its main process first.

    Raises:
        PermissionError: some are another user's.
    """
    for process in processes.whole_task(main):
        processes.send(process, number)


def suspended(main: Process, wanted: bool) -> bool:
    """Whether all processes of a task are suspended (or none of them: not ``wanted``)."""
    seen = (processes.look_at(process.pid) for process in processes.whole_task(main))
    return all(process is None or process.ended or process.stopped is wanted for process in seen)

"""How a test gets at the processes of a task: those of this machine, and those in a container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from launcher.job import TASK_MARK, TaskId
from launcher.testing import processes
from launcher.testing.processes import Process
from launcher.testing.trouble import JustEnded

if TYPE_CHECKING:
    from launcher.testing.containers import Containers


class Reach(Protocol):
    """Signals for one task; ``pid`` is that of its main process, as its host numbers it.

    Each raises `ClusterError` if the task can't be reached, `JustEnded` if that may be because it is over.
    """

    def signal(self, pid: int, number: int) -> None:
        """Signal its main process."""

    def signal_all(self, pid: int, number: int) -> None:
        """Signal every process of it."""

    def suspended(self, pid: int, wanted: bool) -> bool:
        """Whether all its processes are suspended (or none of them: not ``wanted``)."""

    def watermark(self, pid: int) -> int:
        """The number that all its processes carry; 0: there is none, or it can't be seen from here."""


class Here:
    """A task that runs on this machine.

    Args:
        task, job, host: who it is, and where it is said to run.
        launcher: pid of the launcher of the job.
    """

    def __init__(self, task: TaskId, job: str, host: str, launcher: int) -> None:
        self._task = task
        self._job = job
        self._host = host
        self._launcher = launcher

    def signal(self, pid: int, number: int) -> None:
        """See `Reach.signal`."""
        processes.send(self._certain(pid), number)

    def signal_all(self, pid: int, number: int) -> None:
        """See `Reach.signal_all`; its main process first."""
        for process in processes.whole_task(self._certain(pid)):
            processes.send(process, number)

    def suspended(self, pid: int, wanted: bool) -> bool:
        """See `Reach.suspended`."""
        seen = (processes.look_at(process.pid) for process in processes.whole_task(self._certain(pid)))
        living = (process for process in seen if process is not None and not process.ended)
        return all(processes.is_suspended(process) is wanted for process in living)

    def watermark(self, pid: int) -> int:
        """See `Reach.watermark`."""
        process = self.main(pid)
        mark = 0 if process is None else processes.watermark_of(pid)
        return mark if process is not None and processes.is_still(process) else 0

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

    def _certain(self, pid: int) -> Process:
        process = self.main(pid)
        if process is None:
            what = f"process {pid} of {self._host} is none of this machine, or has just ended"
            raise JustEnded(f"{self._task} can't be signalled: {what}")
        return process


class InContainer:
    """A task that runs in a container.

    Args:
        task, job, host: who it is, and the name of its container.
        containers: reaches there.
    """

    def __init__(self, task: TaskId, job: str, host: str, containers: Containers) -> None:
        self._task = task
        self._job = job
        self._host = host
        self._containers = containers

    def signal(self, pid: int, number: int) -> None:
        """See `Reach.signal`."""
        self._signal(pid, number, "main")

    def signal_all(self, pid: int, number: int) -> None:
        """See `Reach.signal_all`."""
        self._signal(pid, number, "all")

    def suspended(self, pid: int, wanted: bool) -> bool:
        """See `Reach.suspended`; signal 0 only looks."""
        return all((state in "Tt") is wanted for state in self._signal(pid, 0, "main"))

    def watermark(self, pid: int) -> int:
        """See `Reach.watermark`: containers are looked for by their labels instead."""
        return 0

    def _signal(self, pid: int, number: int, whom: str) -> str:
        """How its processes are then, a letter for each."""
        states = self._containers.signal(self._job, self._host, number, pid, whom)
        if states is None:
            raise JustEnded(f"{self._task} can't be signalled: it has just ended")
        return states

"""What the fixture ``cluster`` is: starts clusters for a test, and leaves nothing of them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.testing import processes
from launcher.testing.command import Backend, Wanted, Words, command_line, in_containers
from launcher.testing.containers import Containers
from launcher.testing.job import Job
from launcher.testing.launching import LauncherProcess
from launcher.testing.processes import Process
from launcher.testing.record import RunRecord
from launcher.testing.waiting import LOOK
from launcher.transports.docker.engine import FIXED_ADDRESSES

if TYPE_CHECKING:
    from typing import Literal

#: A variable that everything a cluster starts inherits: it tells what is left of it.
MARK = "TF_LAUNCHER_TESTING"

#: Seconds that a job may take which said nothing of time; and after its ``timeout`` and ``grace``.
_BOUND = _MARGIN = 60.0
_GRACE = 10.0
#: Seconds in which agents end what a launcher that was killed has left to them; in which what nobody ends any
#: more may end by itself; and in which SIGKILL works.
_AGENTS, _ALONE, _KILL = 10.0, 0.5, 10.0
#: How those are called who end what is left.
_KEEPERS = ("launch-agent", "launch-guardian")


class Cluster:
    """Starts clusters; each is a ``launch`` in a process of its own, the real thing.

    Args:
        folder: makes the folder for the files of the launches, once the first is started.
        backend: where tasks run unless `start` is told: ``local``, or ``docker:IMAGE``.

    Raises:
        ClusterError: there is no such backend.
    """

    def __init__(self, folder: Callable[[], Path], backend: str = "local") -> None:
        self._make_folder = folder
        self._folder: Path | None = None
        self._backend = Backend.of(backend)
        self._mark = uuid.uuid4().hex
        self._watermarks: set[int] = set()
        #: Those that were started.
        self.jobs: list[Job] = []

    def start(
        self,
        program: Words | str = (),
        *,
        ps: int | None = None,
        workers: int | None = None,
        chief: bool = False,
        evaluator: bool = False,
        roles: Mapping[str, int | Mapping[str, Any]] | None = None,
        flags: bool = False,
        env: Mapping[str, str] | None = None,
        hosts: str | os.PathLike[str] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        python: str | os.PathLike[str] | None = None,
        on_failure: Literal["stop", "continue"] | None = None,
        grace: float | None = None,
        timeout: float | None = None,
        options: Words = (),
        backend: str | None = None,
        left_running: bool = False,
        within: float = 60.0,
    ) -> Job:
        """Start a cluster, and return when its tasks run.

        Args:
            program: ``["train.py", "--steps", "500"]``, ``["-m", "package.train"]``, any command with its
                arguments, or ``["job.yaml"]``. Paths are relative to the current folder.
            ps, workers, chief, evaluator: how many of each; one worker if nothing is said.
            roles: others, by name: how many, or what a job file says of a role (docs/jobfile.md).
            flags: append ``--ps_hosts= --worker_hosts= --job_name= --task_index=``.
            env: for the tasks; never on a command line.
            hosts: a hostfile, or ``host:slots,...``; default: this machine.
            workdir, python: where the tasks run, and with which Python; default: here, and with this one.
            on_failure: what one failed task means for the others; default: ``stop``.
            grace, timeout: seconds from SIGTERM to harder signals; and for the whole job.
            options: more options of ``launch``, as its command line has them.
            backend: ``local`` or ``docker:IMAGE``; default: as pytest was told.
            left_running: the test may end while it runs; it is ended then.
            within: seconds for its start.

        Raises:
            CannotStart: it ended before its tasks were on their way, be it that none could be started; says
                with which exit code, and why.
            WaitFailed: its tasks do not run in time.
            ClusterError: there is no such backend.
        """
        __tracebackhide__ = True
        words: Words = [program] if isinstance(program, str) else program
        wanted = Wanted(
            words, ps, workers, chief, evaluator, roles or {}, flags, env or {}, hosts, workdir, python,
            on_failure, grace, timeout, options,
        )  # fmt: skip
        chosen = self._backend if backend is None else Backend.of(backend)
        job = self._launch(wanted, chosen, left_running)
        job.begin(within)
        self._watermarks.update(task.watermark() for task in job.tasks)
        return job

    def _launch(self, wanted: Wanted, backend: Backend, left_running: bool) -> Job:
        folder = self._new_folder()
        environment = {**os.environ, **wanted.env, MARK: self._mark, FIXED_ADDRESSES: "1"}
        process = LauncherProcess(command_line(wanted, backend, folder), environment, folder / "output")
        bound = _BOUND
        if wanted.timeout is not None:
            bound = wanted.timeout + (_GRACE if wanted.grace is None else wanted.grace) + _MARGIN
        containers = Containers(environment) if in_containers(wanted, backend) else None
        job = Job(process, RunRecord(str(folder / "run")), containers, bound, left_running)
        self.jobs.append(job)
        return job

    def _new_folder(self) -> Path:
        if self._folder is None:
            self._folder = self._make_folder()
        folder = self._folder / f"job-{len(self.jobs)}"
        folder.mkdir()
        return folder

    def close(self) -> list[str]:
        """End what runs.

        Returns:
            What a test should not have left, in words.
        """
        left = [
            f"job {job.name} was left running; wait for its end, or start it with left_running=True"
            for job in self.jobs
            if job.running and not job.left_running
        ]
        for job in self.jobs:
            job.end()
        behind = self._end_orphans() + [name for job in self.jobs for name in job.remove_containers()]
        return left + [f"{name} was left behind by a launch that has ended" for name in behind]

    def _end_orphans(self) -> list[str]:
        """What is there although every launcher has ended. Agents get time to end it; then it is killed."""
        if not self.jobs:
            return []
        since = time.monotonic()
        while orphans := self._orphans():
            kept = any(processes.name_of(process.pid) in _KEEPERS for process in orphans)
            if time.monotonic() - since > (_AGENTS if kept else _ALONE):
                break
            time.sleep(LOOK)
        names = [_named(process) for process in orphans]
        until = time.monotonic() + _KILL
        while (rest := self._orphans()) and time.monotonic() < until:
            for process in rest:
                processes.send(process, 9)
            time.sleep(LOOK)
        return names

    def _orphans(self) -> list[Process]:
        """What carries our mark, or the watermark of a task of ours."""
        return [
            process
            for process in processes.all_processes()
            if process.pid != os.getpid() and not process.ended and self._is_ours(process.pid)
        ]

    def _is_ours(self, pid: int) -> bool:
        if processes.has_in_environment(pid, MARK, self._mark):
            return True
        mark = processes.watermark_of(pid)
        return mark != 0 and mark in self._watermarks

    def tails(self) -> list[tuple[str, str]]:
        """For the report of a failed test: a title and the ends of the logs, for each job."""
        return [(f"cluster: job {job.name or 'that did not start'}", job.tails()) for job in self.jobs]


def _named(process: Process) -> str:
    words = processes.command_of(process.pid) or processes.name_of(process.pid)
    return f"process {process.pid} ({words})"

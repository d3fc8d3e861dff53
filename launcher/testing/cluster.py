"""The fixture ``cluster``: starts clusters for a test, and leaves nothing of them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.api.driver import Driver
from launcher.api.options import Program, Settings, Words
from launcher.testing.containers import Containers
from launcher.testing.job import Job
from launcher.testing.waiting import LOOK, ClusterError
from launcher.transports.docker.engine import FIXED_ADDRESSES

if TYPE_CHECKING:
    from typing import Literal

#: A variable that everything a cluster starts inherits.
MARK = "TF_LAUNCHER_TESTING"

_DOCKER = "docker:"
#: Seconds that a job may take by default, also after its ``timeout`` and ``grace``; and the default grace.
_BOUND = 60.0
_GRACE = 10.0
#: Seconds in which agents end what a launcher that was killed has left; in which what has no agent may end;
#: and in which SIGKILL works.
_AGENTS, _ALONE, _KILL = 10.0, 0.5, 10.0
#: Names of processes that end what is left.
_KEEPERS = ("launch-agent", "launch-watchdog")


class Cluster:
    """Starts clusters; each is a ``launch`` in a process of its own.

    Args:
        folder: makes the folder for the files of the launches when the first one starts.
        backend: where tasks run by default: ``local``, or ``docker:IMAGE``.

    Raises:
        ClusterError: there is no such backend.
    """

    def __init__(self, folder: Callable[[], Path], backend: str = "local") -> None:
        self._make_folder = folder
        self._folder: Path | None = None
        self._image = _image(backend)
        self._mark = uuid.uuid4().hex
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
            ps, workers, chief, evaluator: how many of each; default: one worker.
            roles: further roles by name: how many, or what a job file says of a role (docs/jobfile.md).
            flags: append ``--ps_hosts= --worker_hosts= --job_name= --task_index=``.
            env: names and values for the tasks; they are not on any command line.
            hosts: a hostfile, or ``host:slots,...``; default: this machine.
            workdir, python: where the tasks run, and with which Python; default: here, and with this one.
            on_failure: ``"stop"`` (default): the job ends when one task fails; ``"continue"``: the others go
                on.
            grace, timeout: seconds from SIGTERM to SIGKILL, and for the whole job.
            options: more options of ``launch``, as its command line has them.
            backend: ``local`` or ``docker:IMAGE``; default: pytest's ``--cluster-backend``.
            left_running: the test may end while the job runs; it is ended then.
            within: seconds for its start.

        Raises:
            CannotStart: it ended before one of its tasks was started; has ``exit_code`` and ``output``.
            WaitFailed: its tasks do not run in time.
            ClusterError: there is no such backend.
        """
        __tracebackhide__ = True
        image = self._image if backend is None else _image(backend)
        folder = self._new_folder()
        settings = Settings(
            hosts, image, None, env, workdir, python, on_failure, grace, timeout, folder / "run", None, flags,
            options=options,
        )  # fmt: skip
        words, overlay = Program(
            [program] if isinstance(program, str) else program, ps, workers, chief, evaluator, roles
        ).command_line()
        environ = {**settings.environ(), MARK: self._mark, FIXED_ADDRESSES: "1"}
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            driver = Driver([*settings.words(), *words], environ, roles=overlay, output=output)
            driver.start()
        finally:
            os.close(output)
        bound = _BOUND + (0 if timeout is None else timeout + (_GRACE if grace is None else grace))
        docker = image or any(os.fspath(word).partition("=")[0] == "--docker" for word in options)
        job = Job(driver, folder, Containers(environ) if docker else None, bound, left_running)
        self.jobs.append(job)
        job.begin(within)
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
            job.driver.end()
        behind = self._end_orphans()
        for job in self.jobs:
            killed = (job.exit_code or 0) > 128 and job.report() is None
            if job.containers is not None and killed:
                behind += job.containers.remove(job.name)
        return left + [f"{name} was left behind by a launch that has ended" for name in behind]

    def _end_orphans(self) -> list[str]:
        """End what is there although every launcher has ended; agents have time to do it."""
        since = time.monotonic()
        while orphans := list(self._orphans()) if self.jobs else []:
            agents = any(name in _KEEPERS for _, name, _ in orphans)
            if time.monotonic() - since > (_AGENTS if agents else _ALONE):
                break
            time.sleep(LOOK)
        until = time.monotonic() + _KILL
        while (rest := list(self._orphans()) if orphans else []) and time.monotonic() < until:
            for process, _, _ in rest:
                _kill(process)
            time.sleep(LOOK)
        return [f"process {process.pid} ({command})" for process, _, command in orphans]

    def _orphans(self) -> Iterator[tuple[psutil.Process, str, str]]:
        """Processes with our mark, their names and commands."""
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(MARK) == self._mark:
                    yield process, process.name(), " ".join(process.cmdline()) or process.name()
            except psutil.Error:  # it has just ended, or is another user's
                continue

    def tails(self) -> list[tuple[str, str]]:
        """For the report of a failed test: a title and the ends of the logs, for each job."""
        return [(f"cluster: job {job.name or 'that did not start'}", job.tails()) for job in self.jobs]


def _image(backend: str) -> str | None:
    """The image of a backend; ``None``: this machine.

    Raises:
        ClusterError: there is no such backend.
    """
    if backend == "local":
        return None
    if backend.startswith(_DOCKER) and len(backend) > len(_DOCKER):
        return backend[len(_DOCKER) :]
    raise ClusterError(f"{backend!r} is no backend for clusters; expected local, or docker:IMAGE")


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()  # psutil compares the time of its start
    except psutil.Error:
        return

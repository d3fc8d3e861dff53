"""The fixture ``cluster``: starts clusters for a test, and leaves nothing of them.

The plug-in makes one for each test that asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.api.run import (
    AnyPath,
    RunOptions,
    Words,
    option_environ,
    program_driver,
    read_options,
)
from launcher.backends.docker.engine import FIXED_ADDRESSES_VARIABLE, Engine
from launcher.common.arguments import Arguments, named_arguments, number
from launcher.runs.folder import kill_leftovers
from launcher.runs.run import load
from launcher.testing.job import ClusterError, Job

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Seconds that a job may take by default, even after its ``timeout`` and ``grace``; and the default grace.
_DEFAULT_BOUND_SECONDS = 60.0
_DEFAULT_GRACE_SECONDS = 10.0
#: Seconds in which agents end the tasks of a launcher that was killed.
_AGENTS_END_SECONDS = 10.0


class Cluster:
    """Starts clusters; each is a ``launch`` in a process of its own.

    Args:
        folder: For the files of the launches.
        backend: Where tasks run by default: ``local``, or ``docker:IMAGE``.

    Raises:
        ClusterError: There is no such backend.
    """

    def __init__(self, folder: Path, backend: str = "local") -> None:
        self._folder = folder
        self._image = _image(backend)
        #: Those that were started.
        self.jobs: list[Job] = []
        #: Whether the test function has passed.
        self.passed = False

    @named_arguments("cluster.start", RunOptions.__annotations__)
    def start(  # noqa: PLR0913 - public
        self,
        program: Words | AnyPath,
        *,
        ps: int | None = None,
        workers: int | None = None,
        chief: bool = False,
        evaluator: bool = False,
        roles: Mapping[str, int | Mapping[str, Any]] | None = None,
        backend: str | None = None,
        left_running: bool = False,
        within: float = 60.0,
        **options: Unpack[RunOptions],
    ) -> Job:
        """Start a cluster, and return when its tasks run.

        Args:
            program: ``["train.py", "--steps", "500"]``, ``["-m", "package.train"]``, any command with its
                arguments, or ``["job.yaml"]``. Paths are relative to the current folder.
            ps: Number of parameter servers.
            workers: Number of workers; default: one, if no other role is given.
            chief: Whether there is a chief.
            evaluator: Whether there is an evaluator.
            roles: Further roles by name: how many, or the keys that a job file has for a role
                (docs/jobfile.md).
            backend: ``local`` or ``docker:IMAGE``; default: pytest's ``--cluster-backend``.
            left_running: The test may end while the job runs; it is ended then.
            within: Seconds for its start.
            options: ``flags``, ``env``, ``hosts``, ``workdir``, ``python``, ``venv``, ``on_failure``,
                ``grace``, ``timeout``, ``stall``, ``restarts``, ``restart``, ``preload``, ``sync``,
                ``collect``, ``options``: as those of `launcher.run`. Defaults of the project
                (``launch.toml``) are not read: a test has all its settings.

        Returns:
            The job, all of whose tasks run, or have run.

        Raises:
            CannotStart: It ended before one of its tasks was started; has ``exit_code`` and ``output``.
            WaitFailed: Its tasks do not run in time.
            ClusterError: There is no such backend.
            InputError: An argument is wrong.
        """
        __tracebackhide__ = True
        image = self._image if backend is None else _image(backend)
        folder = self._folder / f"job-{len(self.jobs)}"
        found = Arguments("cluster.start")
        within = found.read("within", within, number(0))
        read = read_options(found, {**options, "run_dir": folder / "run", "docker": image})
        found.check()
        tasks = {"ps": ps, "workers": workers, "chief": chief, "evaluator": evaluator, "roles": roles}
        more = {FIXED_ADDRESSES_VARIABLE: "1"}
        driver = program_driver("cluster.start", program, tasks, read, more, defaults=False)
        folder.mkdir()
        timeout, grace = read.get("timeout"), read.get("grace")
        bound = _DEFAULT_BOUND_SECONDS + (timeout or 0) + (_DEFAULT_GRACE_SECONDS if grace is None else grace)
        job = Job(driver, folder, option_environ(read) if image else None, bound, left_running)
        driver.output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            driver.start()
        finally:
            os.close(driver.output)
        self.jobs.append(job)
        job.begin(within)
        return job

    def close(self) -> list[str]:
        """End all jobs.

        Returns:
            A line for each job and process that the test should not have left, and for each container that
            cannot be removed.

        Raises:
            TransportError: The Docker engine of a launch that was killed does not respond.
        """
        left = [
            f"job {job.name} was left running; wait for it, or start it with left_running=True"
            for job in self.jobs
            if job.running and not job.left_running
        ]
        for job in self.jobs:
            job.driver.end()
        runs = [run for job in self.jobs if (run := load(job.paths.root)) is not None]
        swept = kill_leftovers(runs, _AGENTS_END_SECONDS).text
        left += [swept] if swept else []
        for job in self.jobs:
            if job.environ is not None and job.name and job.report() is None:  # it was killed
                engine = Engine(environ=job.environ)
                left += engine.remove(engine.objects(job.name)).values()
        return left

    def tails(self) -> list[tuple[str, str]]:
        """For the report of a failed test: a title and the ends of the logs, for each job."""
        return [(f"cluster: job {job.name or 'that did not start'}", job.tails()) for job in self.jobs]


def _image(backend: str) -> str | None:
    """Return the image of a backend, or None if this machine.

    Raises:
        ClusterError: There is no such backend.
    """
    kind, _, image = backend.partition(":")
    if backend == "local" or (kind == "docker" and image):
        return image or None
    raise ClusterError(f"{backend!r} is not a backend for clusters; expected local, or docker:IMAGE")

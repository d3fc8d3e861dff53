"""``Cluster``: starts clusters for a test, and leaves nothing of them behind.

The plug-in makes one for each test that uses the fixture ``cluster``. Every process and container that a test
has started must be gone when `Cluster.close` returns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.api.run import AnyPath, RunOptions, Words, option_environ, program_driver, read_options
from launcher.backends.docker.engine import FIXED_ADDRESSES_VARIABLE, Engine
from launcher.common.arguments import Arguments, named_arguments, number
from launcher.runs.folder import kill_leftovers
from launcher.runs.run import load
from launcher.testing.job import ClusterError, Job

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: How long `Job.wait` waits by default, in addition to the ``timeout`` and ``grace`` of the job.
_DEFAULT_BOUND_SECONDS = 60.0
#: The ``grace`` of a job whose test names none.
_DEFAULT_GRACE_SECONDS = 10.0
#: How long agents may take to stop the tasks of a launcher that was killed.
_AGENTS_END_SECONDS = 10.0


class Cluster:
    """The value of the fixture ``cluster``, which starts clusters for a test.

    Each cluster is a ``launch`` in a process of its own. pytest makes this object, and a test never does.

    Args:
        folder: The folder for the files of the launches.
        backend: Where tasks run by default: ``local`` or ``docker:IMAGE``.

    Raises:
        ClusterError: There is no such backend.
    """

    def __init__(self, folder: Path, backend: str = "local") -> None:
        self._folder = folder
        #: The image of containers in which tasks run by default. None if they run on this machine.
        self._image = _image(backend)
        #: The jobs that the test has started, in order.
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

        ::

            job = cluster.start(["train.py", "--steps", "500"], ps=1, workers=2, flags=True)

        Args:
            program: The program and its arguments: ``["train.py", "--steps", "500"]``, ``["-m",
                "package.train"]``, any other command, or a job file (``["job.yaml"]``). Paths are relative to
                the current folder.
            ps: The number of parameter servers. By default there are none.
            workers: The number of workers. By default there is one, if the call names no other role.
            chief: Whether there is a chief.
            evaluator: Whether there is an evaluator.
            roles: Further roles by name. A value is a number of tasks, or a dict of the keys that a role has
                in a job file (docs/jobfile.md).
            backend: Where the tasks run: ``local`` or ``docker:IMAGE``. By default pytest's
                ``--cluster-backend`` says so.
            left_running: Whether the test may end while the job runs. The job is stopped then.
            within: How many seconds the start of all tasks may take.
            options: How the job runs: ``flags``, ``env``, ``hosts``, ``workdir``, ``python``, ``venv``,
                ``on_failure``, ``grace``, ``timeout``, ``stall``, ``restarts``, ``restart``, ``preload``,
                ``sync``, ``collect`` and ``options``, as in `launcher.run`. Defaults of the project
                (``launch.toml``) are not read, so that a test names all its settings.

        Returns:
            The job. All its tasks run, or have run.

        Raises:
            CannotStart: The launch exited before one of its tasks was started.
            WaitFailed: The tasks do not run in time.
            ClusterError: There is no such backend.
            InputError: An argument is wrong.
        """
        __tracebackhide__ = True
        image = self._image if backend is None else _image(backend)
        folder = self._folder / f"job-{len(self.jobs)}"
        call = Arguments("cluster.start")
        within = call.read("within", within, number(0))
        read = read_options(call, {**options, "run_dir": folder / "run", "docker": image})
        call.check()  # It raises all faults of arguments together.
        tasks = {"ps": ps, "workers": workers, "chief": chief, "evaluator": evaluator, "roles": roles}
        # A container that is disconnected from its network can only be connected again with a fixed address.
        variables = {FIXED_ADDRESSES_VARIABLE: "1"}
        # A test sees all that its tasks print.
        read["options"] = [*read.get("options", ()), "--verbose"]
        driver = program_driver("cluster.start", program, tasks, read, variables, defaults=False)
        folder.mkdir()
        timeout, grace = read.get("timeout"), read.get("grace")
        bound = _DEFAULT_BOUND_SECONDS + (timeout or 0) + (_DEFAULT_GRACE_SECONDS if grace is None else grace)
        # With its environment the job reaches the Docker engine of its containers.
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
        """Stop all jobs, and remove what is left of them.

        Returns:
            A line for each job and process that the test should not have left, and for each container that
            cannot be removed.

        Raises:
            TransportError: The Docker engine of a launch that was killed does not respond.
        """
        leftovers = [
            f"job {job.name} was left running; wait for it, or start it with left_running=True"
            for job in self.jobs
            if job.running and not job.left_running
        ]
        for job in self.jobs:
            job.driver.end()  # If its launcher still runs, this stops it and its tasks at once.
        runs = [run for job in self.jobs if (run := load(job.paths.root)) is not None]
        killed = kill_leftovers(runs, _AGENTS_END_SECONDS).text
        leftovers += [killed] if killed else []
        for job in self.jobs:
            # A launcher that was killed has not removed its containers.
            if job.environ is not None and job.name and job.report() is None:
                engine = Engine(environ=job.environ)
                leftovers += engine.remove(engine.objects(job.name)).values()
        return leftovers

    def tails(self) -> list[tuple[str, str]]:
        """Return a title and the last lines of each job, for the report of a failed test."""
        return [(f"cluster: job {job.name or 'that did not start'}", job.tails()) for job in self.jobs]


def _image(backend: str) -> str | None:
    """Return the Docker image of a backend, or None for the backend ``local``.

    Raises:
        ClusterError: There is no such backend.
    """
    kind, _, image = backend.partition(":")
    if backend == "local" or (kind == "docker" and image):
        return image or None
    raise ClusterError(f"{backend!r} is not a backend for clusters; expected local, or docker:IMAGE")

"""The interface of renderers."""

from typing import Protocol

from launcher.common.events import Event, Restarting, TaskMoved, Tell
from launcher.common.record import Record
from launcher.common.report import Report
from launcher.job import Placement, RunPaths

#: Events that a renderer shows. `TaskMoved` has the state of a task: what agents say about it is not shown.
DisplayEvent = Event | Tell | TaskMoved | Restarting


class RunInfo(Record):
    """The job as renderers get it before the first event."""

    run_name: str
    placement: Placement
    #: The run's files.
    paths: RunPaths
    #: Seconds since the epoch.
    started_at: float
    #: Other machines without a port that ``--relay`` forwards here.
    without_relay: tuple[str, ...] = ()


class TaskPlace(Record):
    """What a launch knows about where its tasks run, for the hints of a failure."""

    #: Whether there may be other machines than this one.
    other_machines: bool = False
    #: Whether these are reached over SSH.
    over_ssh: bool = False
    in_containers: bool = False
    #: Whether ``--sync`` copied folders there.
    synced: bool = False
    #: How files get into a container; see `launcher.backends.backend.Backend.missing_file_hint`.
    files: str = ""
    #: The command that makes environments there.
    prepare: str = "launch prepare"
    #: The name of the environment that such a command made, and the tasks use; empty if they use none.
    venv: str = ""
    #: Names of variables that the user sets for tasks. The plan does not have those of ``-x NAME``.
    passed: frozenset[str] = frozenset()


class Renderer(Protocol):
    """Shows a job. One thread calls `begin` once, then `on` and `tick`, then `close` once.

    No method raises an exception if output can't be written: a full disk or a closed pipe does not end a job.
    """

    def begin(self, run_info: RunInfo) -> None:
        """The run begins."""

    def on(self, event: DisplayEvent) -> None:
        """An event happened."""

    def tick(self, now: float) -> float | None:
        """Time passes (``now`` by ``time.monotonic``).

        Returns:
            Seconds until the next call is needed; ``None``: no time limit.
        """

    def close(self, report: Report) -> None:
        """The run has ended. When this returns, all output is written or queued."""


class Background(Renderer, Protocol):
    """The renderer of ``--detach``."""

    def use_folder(self, paths: RunPaths, job: str) -> None:
        """From now on stdout and stderr are a file in the folder of the run.

        Raises:
            LaunchError: the file can't be made.
        """

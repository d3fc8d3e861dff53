"""Launchers as batch jobs: the queue of a cluster starts them, and may start them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from launcher.job import JobSpec
from launcher.record import Record

if TYPE_CHECKING:
    from launcher.runs.run import Batch, Run

#: States of a batch job.
PENDING, RUNNING, OVER = "pending", "running", "over"


class Queued(Record):
    """A batch job in which a launcher runs, or is to run."""

    #: One of the states above.
    state: str
    #: For the user: ``Slurm's job 12 is pending: Priority``.
    text: str


class Queue(Protocol):
    """The queue of a cluster. All methods may raise `TransportError`; they block for seconds at most."""

    def submits(self) -> bool:
        """Whether ``--detach`` submits a launcher; else it starts one in the background."""

    def submit(self, job: JobSpec, settings: Any, run: Run, argv: Sequence[str]) -> str:
        """Submit a launcher with the variable `RUN_FOLDER`. Its output is added to the messages of the run.

        Args:
            job: of the launch.
            settings: of the transport.
            run: whose folder is made.
            argv: the command line.

        Returns:
            What was made, for the user.
        """

    def own(self) -> Batch | None:
        """The batch job in which this process runs; ``None``: it runs in none."""

    def times_requeued(self) -> int:
        """How often the queue has started the batch job around this process again."""

    def may_requeue(self) -> bool:
        """Whether the queue may start the batch job around this process again."""

    def is_requeued(self) -> bool:
        """Whether the queue has done so by itself, for a preemption: it is about to kill this process."""

    def requeue(self) -> None:
        """Let it start again. The queue may kill this process at once."""

    def look(self, runs: Sequence[Run]) -> Mapping[str, Queued]:
        """The batch jobs of runs, by the names of the runs."""

    def run_there(self, batch: Batch, argv: Sequence[str], quiet: bool = False) -> int:
        """Run a command line on the node of a batch job, and return its exit code.

        Args:
            batch: the batch job.
            argv: the command line.
            quiet: do not show what it prints.
        """

    def withdraw(self, run: Run) -> None:
        """End the batch job of a run."""

"""Defines the queue of a cluster, which starts launchers as batch jobs, and may start them again.

``--detach`` makes the folder of the run and submits the same command line. The launcher finds the folder by
an environment variable, and takes the run over. On other machines, commands read the folder, ask the queue
for its state, and for everything else run themselves beside the launcher (`launcher.backends.queued_runs`).
So they need no protocol of their own.
"""

from __future__ import annotations

import enum
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TextIO

from launcher.common.record import Record
from launcher.output.lines import strip_controls
from launcher.threads import start

if TYPE_CHECKING:
    from launcher.backends.backend import LaunchRequest
    from launcher.runs.run import BatchJob, Run

#: A longer line is shown in pieces.
_MAX_LINE_BYTES = 64 * 1024


class JobPhase(enum.Enum):
    """The phase of a batch job in the queue of a cluster."""

    PENDING = "pending"
    RUNNING = "running"
    OVER = "over"


class BatchJobStatus(Record):
    """The state of a batch job in which a launcher runs, or is to run."""

    phase: JobPhase
    #: The state for the user, as in ``Slurm's job 12 is pending: Priority``.
    text: str


class Parcel(Record):
    """What must be sent to a launcher that does not see the files of this machine."""

    #: The values of ``--sync``.
    folders: tuple[str, ...]
    #: The absolute paths of folders that get files when the job is over.
    results: tuple[str, ...]
    #: Returns the content of the file for ``--submitted``. Its arguments are the place of each folder on the
    #: other machine, and the options of the backend.
    pack: Callable[[Mapping[str, str], Any], bytes]


class Submission(Record):
    """The outcome of submitting a launcher."""

    #: The outcome for the user, as in ``Slurm's job 12 is submitted``.
    text: str = ""
    #: The exit code of a job that has ended meanwhile. None if it has not ended.
    code: int | None = None


class BatchQueue:
    """The queue of a cluster. Each backend with a queue overrides the methods that differ.

    All methods may raise a `TransportError`, and block for seconds at most. But if the queue does not share
    files, `submit` waits until the launcher has begun, and `inspect` may copy files.
    """

    #: Whether the launcher writes to the same folder of the run that this machine sees.
    shares_files = False

    def can_submit(self) -> bool:
        """Return whether ``--detach`` submits a launcher. Otherwise it starts one in the background."""
        return True

    def submit(
        self, options: Any, request: LaunchRequest, run: Run, words: Sequence[str], parcel: Parcel
    ) -> Submission:
        """Submit a launcher, whose output goes to the messages of the run.

        Its environment contains `RUN_FOLDER_VARIABLE`, by which it finds the folder of the run and takes the
        run over.

        Args:
            options: The options of the backend.
            request: The request of the launch, which contains the name of the run.
            run: The run, whose folder exists.
            words: The command line of launch, without its name.
            parcel: The files for the launcher, if it does not see the files of this machine.
        """
        raise NotImplementedError

    def own(self) -> BatchJob | None:
        """Return the batch job in which this process runs, or None if it runs in none."""
        return None

    def times_requeued(self) -> int:
        """Return how often the queue has restarted the batch job around this process."""
        return 0

    def may_requeue(self) -> bool:
        """Return whether the queue may restart the batch job around this process."""
        return False

    def is_requeued(self) -> bool:
        """Return whether the queue itself has requeued the batch job around this process, for a preemption.

        Then the queue will kill this process soon.
        """
        return False

    def requeue(self) -> None:
        """Put the batch job around this process into the queue again, to run once more.

        The queue may kill this process at once.
        """
        raise NotImplementedError

    def inspect(self, runs: Sequence[Run]) -> Mapping[str, BatchJobStatus]:
        """Return the states of the batch jobs of runs, by the names of the runs. This asks the queue.

        If files are not shared and a launcher has ended, its files are copied to this machine, its batch job
        is removed, and the run is left out.
        """
        raise NotImplementedError

    def command_there(self, run: Run, words: Sequence[str]) -> tuple[list[str], Mapping[str, str] | None]:
        """Return the command that runs a command of launch on the node of a batch job, without a terminal.

        Its stdout is that of the command there, byte for byte.

        Args:
            run: The run of the batch job.
            words: The words of the command. They may contain the path of the run's folder.

        Returns:
            The command line, and its environment. None means that of this process.
        """
        raise NotImplementedError

    def run_there(self, run: Run, words: Sequence[str], quiet: bool = False) -> int:
        """Run a command of launch on the node of a batch job, and return its exit code.

        Args:
            run: The run of the batch job.
            words: The words of the command. They may contain the path of the run's folder.
            quiet: Whether to hide what the command prints.
        """
        raise NotImplementedError

    def withdraw(self, run: Run) -> None:
        """Remove the batch job of a run from the queue, whether it is pending or runs."""
        raise NotImplementedError


def run_shown(
    argv: Sequence[str],
    hidden: re.Pattern[bytes],
    quiet: bool = False,
    terminal: bool = False,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run a command that runs a program elsewhere, and show its output until it exits.

    What comes from elsewhere gets to a terminal only without control sequences, unless the command itself may
    control the terminal.

    Args:
        argv: The command line.
        hidden: A pattern of lines that the command itself writes to stderr, and that are not shown.
        quiet: Whether to show nothing.
        terminal: Whether the command gets the stdin and stdout of this process, and may control the terminal.
        environ: The environment of the command. None means that of this process.

    Returns:
        The exit code of the command.
    """
    # None means the stdin or stdout of this process. Only output for a terminal goes through this process.
    stdin = None if terminal else subprocess.DEVNULL
    stdout = None if terminal or not sys.stdout.isatty() else subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=stdin, stdout=subprocess.DEVNULL if quiet else stdout, stderr=subprocess.PIPE, env=environ
    ) as command:
        assert command.stderr is not None
        # A thread copies stdout while this thread copies stderr.
        copier = threading.Thread(target=_copy_lines, args=(command.stdout, sys.stdout), daemon=True)
        try:
            if command.stdout is not None:
                start(copier)
            _copy_lines(command.stderr, None if quiet else sys.stderr, hidden)
            if command.stdout is not None:
                copier.join()
            return command.wait()
        except BaseException:  # This includes Ctrl-C.
            command.kill()
            raise


def _copy_lines(source: IO[bytes], target: TextIO | None, hidden: re.Pattern[bytes] | None = None) -> None:
    """Copy lines to a stream of this process, without control sequences and without hidden lines.

    This blocks until the source ends.

    Args:
        source: The stream from which the lines come.
        target: The stream to which they go. None to drop them.
        hidden: A pattern of lines that are dropped. None if all lines are shown.
    """
    while line := source.readline(_MAX_LINE_BYTES):
        is_hidden = hidden is not None and hidden.search(line.strip()) is not None
        if target is not None and not is_hidden:
            text = strip_controls(line.decode("utf-8", "replace"))
            target.buffer.write(text.encode("utf-8", "replace"))
            target.buffer.flush()

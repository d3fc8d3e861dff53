"""Launchers as batch jobs: the queue of a cluster starts them, and may start them again.

``--detach`` makes the folder of the run and submits the same command line, which finds the folder by an
environment variable, and takes the run over. From other machines, commands read the folder, ask the queue for
its state, and for everything else run themselves beside the launcher (`launcher.backends.queued_runs`). So
they need no protocol of their own.
"""

from __future__ import annotations

import functools
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

#: States of a batch job.
PENDING = "pending"
RUNNING = "running"
OVER = "over"
#: The most bytes of a line that are shown at once.
_MAX_LINE_BYTES = 64 * 1024


class BatchJobStatus(Record):
    """A batch job in which a launcher runs, or is to run."""

    #: One of the states above.
    state: str
    #: For the user: ``Slurm's job 12 is pending: Priority``.
    text: str


class Parcel(Record):
    """What a launcher needs that does not see the files of this machine."""

    #: The values of ``--sync``; and the absolute paths of folders that get files when the job is over.
    folders: tuple[str, ...]
    results: tuple[str, ...]
    #: Gets the place of each on the other machine, and the options of the backend there: the content of
    #: the file for ``--submitted``.
    pack: Callable[[Mapping[str, str], Any], bytes]


class Submission(Record):
    """A launcher that was submitted."""

    #: For the user: ``Slurm's job 12 is submitted``.
    text: str = ""
    #: The exit code of a job that has ended meanwhile; ``None``: it has not ended.
    code: int | None = None


class BatchQueue:
    """The queue of a cluster. A queue overrides methods that differ.

    All methods may raise `TransportError`; they block for seconds at most. Of a queue that does not share
    files, `submit` waits until the launcher has begun, `inspect` may copy files.
    """

    #: Whether the launcher writes the folder of the run that this machine sees.
    shares_files = False

    def can_submit(self) -> bool:
        """Whether ``--detach`` submits a launcher; else it starts one in the background."""
        return True

    def submit(
        self, options: Any, request: LaunchRequest, run: Run, words: Sequence[str], parcel: Parcel
    ) -> Submission:
        """Submit a launcher with the variable `RUN_FOLDER_VARIABLE`. Its output is added to the messages of
        the run.

        Args:
            options: those of the backend.
            request: its name is that of the run.
            run: whose folder is made.
            words: the command line of `request`, without its name.
            parcel: for a launcher that does not share files.
        """
        raise NotImplementedError

    def own(self) -> BatchJob | None:
        """The batch job in which this process runs; ``None``: it runs in none."""
        return None

    def times_requeued(self) -> int:
        """How often the queue has started the batch job around this process again."""
        return 0

    def may_requeue(self) -> bool:
        """Whether the queue may start the batch job around this process again."""
        return False

    def is_requeued(self) -> bool:
        """Whether the queue has requeued it by itself, for a preemption: it will kill this process soon."""
        return False

    def requeue(self) -> None:
        """Requeue the batch job around this process. The queue may kill this process at once."""
        raise NotImplementedError

    def inspect(self, runs: Sequence[Run]) -> Mapping[str, BatchJobStatus]:
        """The batch jobs of runs, by the names of the runs.

        If files are not shared, and a launcher has ended, its files are copied to here, its batch job is
        removed, and the run is left out.
        """
        raise NotImplementedError

    def run_there(self, run: Run, words: Sequence[str], quiet: bool = False) -> int:
        """Run a command of `launch` on the node of a batch job, and return its exit code.

        Args:
            run: of the batch job.
            words: the command; the path of the run's folder may be among them.
            quiet: do not show what it prints.
        """
        raise NotImplementedError

    def withdraw(self, run: Run) -> None:
        """End the batch job of a run."""
        raise NotImplementedError


def run_shown(
    argv: Sequence[str],
    hidden: re.Pattern[bytes],
    quiet: bool = False,
    terminal: bool = False,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run a command that runs a program elsewhere, and show its output; a terminal gets no control sequences.

    Args:
        argv: the command.
        hidden: finds lines that the command itself writes to stderr; they are not shown.
        quiet: show nothing.
        terminal: the command has the stdin and stdout of this process, and may control the terminal.
        environ: the variables of the command; ``None``: those of this process.

    Returns:
        Its exit code.
    """
    nothing, as_it_is = subprocess.DEVNULL, terminal or not sys.stdout.isatty()
    stdin, stdout = None if terminal else nothing, None if as_it_is else subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=stdin, stdout=nothing if quiet else stdout, stderr=subprocess.PIPE, env=environ
    ) as command:
        assert command.stderr is not None
        lines = threading.Thread(target=_show, args=(command.stdout, sys.stdout), daemon=True)
        try:
            if command.stdout is not None:
                start(lines)
            _show(command.stderr, None if quiet else sys.stderr, hidden)
            if command.stdout is not None:
                lines.join()
            return command.wait()
        except BaseException:  # Ctrl-C
            command.kill()
            raise


def _show(printed: IO[bytes], shown: TextIO | None, hidden: re.Pattern[bytes] | None = None) -> None:
    for line in iter(functools.partial(printed.readline, _MAX_LINE_BYTES), b""):
        if shown is not None and (hidden is None or not hidden.search(line.strip())):
            text = strip_controls(line.decode("utf-8", "replace"))
            shown.buffer.write(text.encode("utf-8", "replace"))
            shown.buffer.flush()

"""The report about the end of a job and of each of its tasks.

``report.json`` contains the same fields, and the Python API returns these records, so names and fields are
public and must not change. Agents do not use this module, but tasks may import it: Python 3.8.
"""

import enum
from collections import Counter
from typing import Callable, List, Mapping, Optional, Tuple

from launcher.common.cluster import TaskId
from launcher.common.record import Record
from launcher.common.text import duration, escape_controls, shortened, signal_name
from launcher.common.validation import FieldReader


class TaskState(enum.Enum):
    """The state of one attempt of a task.

    ::

        PENDING -> STARTING -> RUNNING -> ENDED -> SUCCEEDED | FAILED
                       |          |                (by itself)
                       |          +-> STOPPING --> STOPPED   (by launch)
                       +-> FAILED (could not be started)
        any of them -> LOST (its host is lost), PENDING -> CANCELLED (never started)

    In the state ENDED the main process has exited, and the agent still kills the processes that it left
    behind and reads the last output.
    """

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Whether the attempt is over, so only another attempt can follow."""
        state = TaskState
        return self in (state.SUCCEEDED, state.FAILED, state.STOPPED, state.LOST, state.CANCELLED)


class Reason(enum.Enum):
    """Why a task, or the job, ended as it did."""

    EXIT = "exit"  #: It exited by itself.
    SIGNAL = "signal"  #: A signal that launch did not send killed it.
    OUT_OF_MEMORY = "out of memory"  #: SIGKILL killed it, and the kernel reports that memory ran out.
    NOT_FOUND = "not found"  #: The program does not exist.
    NOT_RUNNABLE = "not runnable"  #: The program exists and cannot be run.
    HOST_LOST = "host lost"  #: Its host or agent is lost.
    STOPPED = "stopped"  #: launch stopped it.
    NEVER_STARTED = "never started"  #: The job was stopped before the task was started.
    TIMEOUT = "timeout"  #: The job took longer than ``--timeout``.
    STALLED = "stalled"  #: It printed nothing for the time of ``--stall``, and launch stopped it.
    INTERRUPTED = "interrupted"  #: The user or the system stopped the launch by a signal.
    LAUNCHER = "launcher"  #: launch or a host failed.


class ExitStatus(Record):
    """The exit code of a process or the signal that killed it. Both are None if they are unknown."""

    #: From 0 to 255.
    code: Optional[int] = None
    #: The number of the signal.
    signal: Optional[int] = None

    @property
    def shell(self) -> int:
        """The number that a shell shows: the code, or 128 + signal. It is 125 if both are unknown."""
        if self.code is not None:
            return self.code
        return 125 if self.signal is None else 128 + self.signal

    @property
    def text(self) -> str:
        """The status for users: ``exit code 7`` or ``killed by SIGKILL``."""
        return f"exit code {self.code}" if self.signal is None else f"killed by {signal_name(self.signal)}"

    @property
    def known(self) -> bool:
        """Whether the code or the signal is known."""
        return self.code is not None or self.signal is not None

    @property
    def ok(self) -> bool:
        """Whether the process exited with code 0."""
        return self.code == 0


#: The longest text of a failure in the ``repr`` of a report.
_MAX_TEXT_CHARACTERS = 300
#: The largest number of tasks in the table of a notebook.
_MAX_ROWS = 100
#: The version of ``report.json``. A changed or removed field raises it, and a new field does not.
REPORT_SCHEMA = 1


class Attempt(Record):
    """The end of an attempt of a task that started again afterwards."""

    #: The number of the attempt, from 1.
    attempt: int
    host: str
    state: TaskState
    reason: Optional[Reason]
    status: ExitStatus
    detail: str
    pid: Optional[int]
    #: Seconds since the epoch, or None if it never started.
    started_at: Optional[float]
    #: Seconds since the epoch, or None if its end is unknown.
    ended_at: Optional[float]


class ProgressPoint(Record):
    """How far a task was at one moment, by what it had printed."""

    #: Seconds since the epoch.
    at: float
    #: The number of its attempt.
    attempt: int
    step: float
    #: Other numbers beside the step, by name.
    metrics: Mapping[str, float] = {}


class TaskReport(Record):
    """The end of one task: its last attempt, and the earlier ones."""

    task: TaskId
    #: The name of its host as the user wrote it.
    host: str
    #: The ``host:port`` to which other tasks connected. It is empty if the task never got a port.
    address: str
    port: Optional[int]
    state: TaskState
    #: Why it ended, or None if it succeeded.
    reason: Optional[Reason]
    #: The exit status of its main process.
    status: ExitStatus
    #: How it ended, for the user, such as ``exit code 7`` or ``killed by SIGKILL``.
    detail: str = ""
    #: The number of its last attempt, from 1.
    attempt: int = 1
    #: The pid of its main process on its host, or None if it never started.
    pid: Optional[int] = None
    #: Seconds since the epoch, or None if it never started.
    started_at: Optional[float] = None
    #: Seconds since the epoch, or None if its end is unknown.
    ended_at: Optional[float] = None
    #: The largest resident size of one of its processes, in bytes.
    peak_rss: Optional[int] = None
    #: Seconds of CPU time, user and system.
    cpu_s: Optional[float] = None
    #: How many processes it left behind, which launch stopped.
    leftovers: int = 0
    #: Pids of processes that SIGKILL did not kill.
    unkillable: Tuple[int, ...] = ()
    #: Whether it only accompanied the job, so its end had no effect on the job.
    sidecar: bool = False
    #: The attempts before the last one.
    earlier: Tuple[Attempt, ...] = ()
    #: The machine under a host that is a pod. It is empty for other hosts.
    node: str = ""
    #: Its steps over time, a selection. Empty if it has printed none.
    progress: Tuple[ProgressPoint, ...] = ()

    @property
    def seconds(self) -> Optional[float]:
        """How long it ran, in seconds. It is None if it never started or its end is unknown."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)


class Failure(Record):
    """The first failure of a job, because of which the job failed."""

    reason: Reason
    #: The task that failed first. It is None if a host, the time limit or Ctrl-C was the cause.
    task: Optional[TaskId]
    #: The host of this task, or the host that failed. It is None if no host is concerned.
    host: Optional[str]
    #: Seconds since the epoch.
    at: float
    #: One sentence for the user, which names task and host.
    text: str
    #: Advice for the user. It may be empty.
    hint: str = ""
    #: For `Reason.TIMEOUT` and `Reason.STALLED` the limit as the user wrote it, such as ``2h``. Otherwise it
    #: is empty.
    limit: str = ""
    #: Where the tasks that hung were, as ``launch stacks`` shows it. Empty if it is not known.
    stacks: str = ""


class Report(Record):
    """The end of a job and of all its tasks."""

    #: The name of the run, as ``launch ps`` lists it.
    job: str
    #: The exit code of ``launch``: 0, that of the first task that failed, or that of an error
    #: (docs/errors.md).
    exit_code: int
    #: Seconds since the epoch.
    started_at: float
    #: Seconds since the epoch.
    ended_at: float
    #: The tasks in the order of the plan.
    tasks: Tuple[TaskReport, ...]
    #: The first failure, or None if nothing failed.
    failure: Optional[Failure] = None
    #: The folder with the logs of the run.
    run_dir: str = ""
    #: The version of these fields, `REPORT_SCHEMA`.
    schema: int = REPORT_SCHEMA
    #: How often tasks were started again. Tasks that were started together count once.
    restarts: int = 0
    #: The URL of TensorBoard while the job ran, or None if it had none.
    tensorboard: Optional[str] = None

    def __repr__(self) -> str:
        """Return ``<Report of RUN: exit code 7 after 12s, tasks: 1 failed, 2 stopped; ...>``."""
        counts = Counter(task.state.value for task in self.tasks)
        states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
        why = "" if self.failure is None else f"; {self.failure.text}"
        why = shortened(escape_controls(why), _MAX_TEXT_CHARACTERS)
        took = duration(self.ended_at - self.started_at)
        return f"<Report of {self.job}: exit code {self.exit_code} after {took}, tasks: {states}{why}>"

    def _repr_html_(self) -> str:
        """Return the page of the run, or a summary and a table of the first tasks, as notebooks show it."""
        import html  # noqa: PLC0415 - takes 2 ms, and only notebooks need it

        # The Python API has put a function here that makes the page. The command line has none.
        for page_of in _pages:
            page = page_of(self)
            if page:
                return page
        rows = [("task", "host", "state", "end", "time")]
        for task in self.tasks[:_MAX_ROWS]:
            rows.append((task.task, task.host, task.state.value, task.detail, duration(task.seconds)))
        if len(self.tasks) > _MAX_ROWS:
            rows.append((f"{len(self.tasks) - _MAX_ROWS} more", "", "", "", ""))
        table = ""
        for row in rows:
            cells = [f"<td>{html.escape(escape_controls(cell))}</td>" for cell in row]
            table += f"<tr>{''.join(cells)}</tr>"
        return f"<p>{html.escape(repr(self)[1:-1])}</p><table>{table}</table>"


#: What makes pages of reports for notebooks: one function at most, see `use_page`.
_pages: List[Callable[[Report], str]] = []


def use_page(page_of: Callable[[Report], str]) -> None:
    """Let notebooks show what a function returns of a report, unless it is empty. The Python API does so."""
    _pages[:] = [page_of]


def report_from_json(fields: object) -> Report:
    """Return the report that launch wrote as JSON.

    Args:
        fields: The content of ``report.json``, or the report in the last line of ``--events-fd``.

    Raises:
        ProtocolError: A field is missing or has another type, because another version of launch wrote it.
        ValueError: A state or a reason is unknown.
    """
    return Report(*FieldReader(trusted=True).read(Report, fields))

"""The report: how the job and each of its tasks ended. ``report.json`` has the same fields."""

import enum
from collections import Counter
from typing import Optional, Tuple

from launcher.common.cluster import TaskId
from launcher.common.record import Record
from launcher.common.text import duration, escape_controls, shortened, signal_name
from launcher.common.validation import FieldReader


class TaskState(enum.Enum):
    """The state of a task.

    ::

        PENDING -> STARTING -> RUNNING -> ENDED -> SUCCEEDED | FAILED
                       |          |                (by itself)
                       |          +-> STOPPING --> STOPPED   (by launch)
                       +-> FAILED (could not be started)
        any of them -> LOST (its host is lost), PENDING -> CANCELLED (never started)

    ENDED: its own process has ended; the agent ends the processes that it left behind, and reads the last
    output.
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
        """Whether nothing follows it but the next attempt."""
        state = TaskState
        return self in (state.SUCCEEDED, state.FAILED, state.STOPPED, state.LOST, state.CANCELLED)


class Reason(enum.Enum):
    """Why a task, or the job, ended as it did."""

    EXIT = "exit"  #: it exited by itself
    SIGNAL = "signal"  #: a signal ended it that launch did not send
    OUT_OF_MEMORY = "out of memory"  #: SIGKILL, and the kernel reports that memory ran out
    NOT_FOUND = "not found"  #: the program does not exist
    NOT_RUNNABLE = "not runnable"  #: the program exists and can't be run
    HOST_LOST = "host lost"  #: its host or agent is lost
    STOPPED = "stopped"  #: launch ended it
    NEVER_STARTED = "never started"  #: the job was stopped before the task was started
    TIMEOUT = "timeout"  #: the job took longer than ``--timeout``
    STALLED = "stalled"  #: it printed nothing for ``--stall``, and launch ended it
    INTERRUPTED = "interrupted"  #: the user or the system ended the launch by a signal
    LAUNCHER = "launcher"  #: launch or a host failed


class ExitStatus(Record):
    """How a process ended: ``code`` (0..255) or ``signal`` (number); both ``None`` if it is unknown."""

    code: Optional[int] = None
    signal: Optional[int] = None

    @property
    def shell(self) -> int:
        """The number that a shell shows: the code, or 128 + signal; 125 if neither is known."""
        if self.code is not None:
            return self.code
        return 125 if self.signal is None else 128 + self.signal

    @property
    def text(self) -> str:
        """``exit code 7``, ``killed by SIGKILL``."""
        return f"exit code {self.code}" if self.signal is None else f"killed by {signal_name(self.signal)}"

    @property
    def known(self) -> bool:
        """Whether the end is known."""
        return self.code is not None or self.signal is not None

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.code == 0


#: In a notebook: the longest text of a failure, in characters; the most tasks in a table.
_MAX_TEXT_CHARACTERS = 300
_MAX_ROWS = 100
#: Version of ``report.json``. A new field keeps it; a changed or removed field raises it.
REPORT_SCHEMA = 1


class Attempt(Record):
    """How an attempt of a task ended that was not the last one."""

    #: Its number, from 1.
    attempt: int
    host: str
    state: TaskState
    reason: Optional[Reason]
    status: ExitStatus
    detail: str
    pid: Optional[int]
    #: Seconds since the epoch; ``None``: it never started, or its end is unknown.
    started_at: Optional[float]
    ended_at: Optional[float]


class TaskReport(Record):
    """How one task ended: its last attempt, and the earlier ones."""

    task: TaskId
    #: The name of its host, as the user gave it.
    host: str
    #: ``host:port`` that other tasks connected to; empty if it never got a port.
    address: str
    port: Optional[int]
    state: TaskState
    #: ``None``: it succeeded.
    reason: Optional[Reason]
    #: How its main process ended.
    status: ExitStatus
    #: The end for the user: ``exit code 7``, ``killed by SIGKILL``...
    detail: str = ""
    #: The number of its last start, from 1.
    attempt: int = 1
    #: Its main process, as its host numbers it; ``None``: it never started.
    pid: Optional[int] = None
    #: Seconds since the epoch; ``None``: it never started, or its end is unknown.
    started_at: Optional[float] = None
    ended_at: Optional[float] = None
    #: The largest resident size of one of its processes, in bytes.
    peak_rss: Optional[int] = None
    #: Seconds of CPU, user and system.
    cpu_s: Optional[float] = None
    #: Number of processes that it left behind and launch ended; pids that SIGKILL did not end.
    leftovers: int = 0
    unkillable: Tuple[int, ...] = ()
    #: Its end has no effect on the job.
    sidecar: bool = False
    #: The attempts before the last one.
    earlier: Tuple[Attempt, ...] = ()
    #: The machine that its host is on, a pod of a cluster; else empty.
    node: str = ""

    @property
    def seconds(self) -> Optional[float]:
        """How long it ran, in seconds; ``None``: it never started, or its end is unknown."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)


class Failure(Record):
    """The first failure: the cause of the job's end."""

    reason: Reason
    #: The task that failed first; ``None``: a host, the time limit, or Ctrl-C.
    task: Optional[TaskId]
    #: Its host, or the host that failed; ``None``: no host did.
    host: Optional[str]
    #: Seconds since the epoch.
    at: float
    #: One sentence for the user, which names task and host.
    text: str
    #: Advice for the user; may be empty.
    hint: str = ""
    #: For `Reason.TIMEOUT` and `Reason.STALLED` the limit as the user wrote it, ``2h``; else empty.
    limit: str = ""


class Report(Record):
    """How the job ended."""

    #: The name of the run, as ``launch ps`` lists it.
    job: str
    #: Of ``launch``: 0, that of the first task that failed, or that of an error (docs/errors.md).
    exit_code: int
    #: Seconds since the epoch.
    started_at: float
    ended_at: float
    #: In the order of the plan.
    tasks: Tuple[TaskReport, ...]
    #: ``None``: nothing failed.
    failure: Optional[Failure] = None
    #: The folder with its logs.
    run_dir: str = ""
    schema: int = REPORT_SCHEMA
    #: How often tasks were started again; tasks that were started together count once.
    restarts: int = 0
    #: The URL of TensorBoard while the job ran; ``None``: there was none.
    tensorboard: Optional[str] = None

    def __repr__(self) -> str:
        """``<Report of JOB: exit code 7 after 12s, tasks: 1 failed, 2 stopped; worker/1 failed: ...>``."""
        counts = Counter(task.state.value for task in self.tasks)
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        text = "" if self.failure is None else f"; {self.failure.text}"
        why = shortened(escape_controls(text), _MAX_TEXT_CHARACTERS)
        took = duration(self.ended_at - self.started_at)
        return (
            f"<Report of {self.job}: exit code {self.exit_code} after {took}, tasks: {states or 'none'}{why}>"
        )

    def _repr_html_(self) -> str:
        """The summary and a table of the first tasks, for a notebook."""
        import html  # noqa: PLC0415 - 2 ms, for notebooks only

        rows = [("task", "host", "state", "end", "time")]
        for task in self.tasks[:_MAX_ROWS]:
            rows.append((task.task, task.host, task.state.value, task.detail, duration(task.seconds)))
        if len(self.tasks) > _MAX_ROWS:
            rows.append((f"{len(self.tasks) - _MAX_ROWS} more", "", "", "", ""))
        cells = ["".join(f"<td>{html.escape(escape_controls(cell))}</td>" for cell in row) for row in rows]
        lines = "".join(f"<tr>{line}</tr>" for line in cells)
        return f"<p>{html.escape(repr(self)[1:-1])}</p><table>{lines}</table>"


def report_from_json(fields: object) -> Report:
    """The report in the content of ``report.json``, or in the last line of ``--events-fd``.

    Raises:
        ProtocolError: a field is missing, or of another type: another version of launch wrote it.
        ValueError: a state or a reason is unknown.
    """
    return Report(*FieldReader(trusted=True).read(Report, fields))

"""The report: how the job and each of its tasks ended. ``report.json`` is this, field by field."""

from __future__ import annotations

from launcher.model.records import TYPE_CHECKING, NamedTuple
from launcher.model.status import ExitStatus, Reason, TaskState
from launcher.model.task import TaskId

if TYPE_CHECKING:
    from typing import Optional, Tuple

#: Version of ``report.json``. A new field keeps it; a changed or dropped one raises it.
REPORT_SCHEMA = 1


class TaskReport(NamedTuple):
    """How one task ended."""

    task: TaskId
    host: str
    #: What other tasks connected to, ``host:port``; empty if it never got a port.
    address: str
    port: Optional[int]
    state: TaskState
    reason: Optional[Reason]
    status: ExitStatus
    #: What to tell the user about the end: ``exit code 7``, ``killed by SIGKILL``...
    detail: str = ""
    attempt: int = 1
    pid: Optional[int] = None
    #: Seconds since the epoch; ``None``: it never started, or nobody saw its end.
    started_at: Optional[float] = None
    ended_at: Optional[float] = None
    #: Bytes; the largest resident size of one of its processes.
    peak_rss: Optional[int] = None
    #: Seconds of CPU, user and system.
    cpu_s: Optional[float] = None
    #: Processes it left behind that we ended, and pids nobody could end.
    leftovers: int = 0
    unkillable: Tuple[int, ...] = ()
    #: Its end is none of the job's.
    sidecar: bool = False

    @property
    def seconds(self) -> Optional[float]:
        """How long it ran."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)


class Failure(NamedTuple):
    """The first thing that went wrong: the cause of the job's end."""

    reason: Reason
    #: The task that failed first, or ``None`` if no task did (a host, a timeout, Ctrl-C).
    task: Optional[TaskId]
    host: Optional[str]
    at: float
    #: One sentence for the user, which names task and host.
    text: str
    #: What the user could try; may be empty.
    hint: str = ""
    #: If the time was up, the limit that was asked for, ``2h``; else empty.
    limit: str = ""


class Report(NamedTuple):
    """How the job ended."""

    job: str
    exit_code: int
    started_at: float
    ended_at: float
    tasks: Tuple[TaskReport, ...]
    #: ``None`` when all went well.
    failure: Optional[Failure] = None
    run_dir: str = ""
    schema: int = REPORT_SCHEMA

"""One task of a test's cluster: looked at, waited for, hurt."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.job import TaskId
from launcher.report import ExitStatus, TaskState
from launcher.runs.growing import GrowingFile, last_lines
from launcher.testing.progress import described, exit_status_of, state_of
from launcher.testing.trouble import ClusterError, JustEnded, WaitFailed
from launcher.testing.waiting import wait_for

if TYPE_CHECKING:
    from launcher.testing.job import Job

_T = TypeVar("_T")

#: Seconds that the kernel may take to suspend or to wake all processes of a task.
_SUSPEND = 20.0
#: Last lines in the message of a failed wait.
_LINES = 10


class Task:
    """A task of a `Job`; got from `Job.task` and `Job.tasks`.

    Args:
        job: whose it is.
        planned: its entry in the plan.
    """

    def __init__(self, job: Job, planned: Mapping[str, Any]) -> None:
        self._job = job
        #: ``worker/0``.
        self.name = TaskId(planned["task"])
        #: The name of its host, and what the other tasks connect to, ``host:port``.
        self.host: str = planned["host"]
        self.address: str = planned["address"]
        self.port: int = planned["port"]
        self._reach = job.reach(self.name, self.host)

    def __repr__(self) -> str:
        return f"<Task {self.name}: {self.described()}>"

    @property
    def role(self) -> str:
        """``worker`` of ``worker/0``."""
        return self.name.role

    @property
    def index(self) -> int:
        """``0`` of ``worker/0``."""
        return self.name.index

    # ------------------------------------------------------------------ how it is

    @property
    def pid(self) -> int | None:
        """Its main process, as its host numbers it; ``None``: it was not started (yet)."""
        for event in self._events():
            if event["event"] == "TaskStarted":
                return int(event["pid"])
        return None

    @property
    def state(self) -> TaskState:
        """How it is; when the job is over, how it ended, as the report has it."""
        report = self._job.report()
        for task in report.tasks if report else ():
            if task.task == self.name:
                return task.state
        return state_of(self._events())

    @property
    def exit_status(self) -> ExitStatus | None:
        """How its process ended; ``None``: it has not. Of a lost host nobody knows: a status of ``None``s."""
        over = self._job.exit_code is not None  # asked first: then the events are complete
        status = exit_status_of(self._events())
        return ExitStatus() if status is None and over else status

    def described(self) -> str:
        """How it is, in words: ``running``; ``failed, killed by SIGKILL``."""
        return described(self.state, self.exit_status)

    # ------------------------------------------------------------------ what it printed

    @property
    def raw(self) -> bytes:
        """What it has printed so far (stdout and stderr)."""
        return self._job.record.log(self.name)

    @property
    def log(self) -> str:
        """The same as text."""
        return self.raw.decode("utf-8", "replace")

    @property
    def lines(self) -> list[str]:
        """The same, line by line."""
        return self.log.splitlines()

    def until_prints(self, what: str | re.Pattern[str], timeout: float = 30.0) -> str:
        """Wait until it has printed something, from its start on.

        Args:
            what: a text, or a compiled pattern, that some line contains (``step 1`` is in ``step 10``).
            timeout: seconds.

        Returns:
            The line.

        Raises:
            WaitFailed: it has not in time, or has ended without.
        """
        __tracebackhide__ = True
        found = _Finder(GrowingFile(self._job.record.paths.log(self.name)), what)
        wanted = what if isinstance(what, str) else what.pattern
        return self._wait_for(found, timeout, f"a line with {wanted!r}", self._is_silent)

    # ------------------------------------------------------------------ its end

    def wait(self, timeout: float = 60.0) -> ExitStatus:
        """Wait until it is over: no process of it is left, its output is complete.

        Raises:
            WaitFailed: it is not in time.
        """
        __tracebackhide__ = True
        return self._wait_for(lambda: self.exit_status if self._is_silent() else None, timeout, "its end")

    # ------------------------------------------------------------------ hurting it

    def kill(self) -> None:
        """SIGKILL to all its processes: what happens when a machine runs out of memory.

        Its host goes on, be it a container: the launcher hears of it at once, as of any task that failed.

        Raises:
            ClusterError: it has ended, or its processes can't be signalled from here.
        """
        self._reach.signal_all(self._living(), signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to its main process.

        Raises:
            ClusterError: it has ended, or can't be signalled from here.
        """
        self._reach.signal(self._living(), number)

    def stop(self) -> None:
        """Suspend all its processes (SIGSTOP), until `resume`: a machine that hangs. Returns when they are.

        Raises:
            ClusterError: it has ended, or its processes can't be signalled from here.
            WaitFailed: some of its processes did not stop.
        """
        __tracebackhide__ = True
        self._signal_until(signal.SIGSTOP, True)

    def resume(self) -> None:
        """Let it go on after `stop` (SIGCONT). Returns when it does.

        Raises:
            ClusterError: it has ended, or its processes can't be signalled from here.
            WaitFailed: some of its processes did not wake.
        """
        __tracebackhide__ = True
        self._signal_until(signal.SIGCONT, False)

    def _signal_until(self, number: int, wanted: bool) -> None:
        """Again and again: a process that forks may have a child that was not there when we looked."""
        __tracebackhide__ = True
        pid = self._living()
        self._reach.signal_all(pid, number)

        def look() -> bool | None:
            try:
                if self._reach.suspended(pid, wanted):
                    return True
                self._reach.signal_all(pid, number)
            except JustEnded:
                return True
            return None

        self._wait_for(look, _SUSPEND, "all its processes to be suspended" if wanted else "them to go on")

    def cut_network(self) -> None:
        """Disconnect its container from the others, see `Job.cut_network`."""
        self._job.cut_network(self)

    def mend_network(self) -> None:
        """Connect it again, see `Job.mend_network`."""
        self._job.mend_network(self)

    def _living(self) -> int:
        """The pid of its main process.

        Raises:
            ClusterError: it has none that could be signalled.
        """
        pid = self.pid
        if self.exit_status is not None or pid is None:
            raise ClusterError(f"{self.name} can't be signalled: it is {self.described()}")
        return pid

    def watermark(self) -> int:
        """The number that all its processes carry; 0: there is none, or it can't be seen from here."""
        return 0 if self.pid is None else self._reach.watermark(self.pid)

    # ------------------------------------------------------------------ waiting

    def _is_silent(self) -> bool:
        """Whether nothing more can come of it."""
        kinds = {event["event"] for event in self._events()}
        return bool(kinds & {"TaskGone", "TaskNotStarted"}) or self._job.exit_code is not None

    def _wait_for(
        self,
        look: Callable[[], _T | None],
        seconds: float,
        wanted: str,
        too_late: Callable[[], bool] = lambda: False,
    ) -> _T:
        __tracebackhide__ = True

        def hopeless() -> str:
            return "and it has ended" if too_late() else ""

        def failed(reason: str) -> WaitFailed:
            said = last_lines(self._job.record.paths.root, self.name, _LINES)
            tail = ["its last lines:", *(f"    {line}" for line in said)] if said else ["it printed nothing"]
            head = f"{self.name} ({self.described()}): waited for {wanted}: {reason}"
            return WaitFailed("\n".join([head, *tail]))

        return wait_for(look, seconds, hopeless, failed)

    def _events(self) -> list[Mapping[str, Any]]:
        return [event for event in self._job.record.events() if event.get("task") == self.name]


class _Finder:
    """Looks for a line, where it has not looked before."""

    def __init__(self, file: GrowingFile, what: str | re.Pattern[str]) -> None:
        self._file = file
        self._pattern = re.compile(re.escape(what)) if isinstance(what, str) else what
        self._rest = b""

    def __call__(self) -> str | None:
        """The first line, also one without its end yet, that contains it; ``None``: none so far."""
        lines = (self._rest + self._file.more()).split(b"\n")
        self._rest = lines[-1]
        texts = (line.decode("utf-8", "replace").removesuffix("\r") for line in lines)
        return next(filter(self._pattern.search, texts), None)

"""The errors of the launcher, each with its exit code.

::

    LaunchError                     125  launch itself failed
    ├── InputError                    2  the user's input is wrong; nothing was started
    │   ├── HostfileError                in a hostfile or --hosts
    │   ├── JobError                     in a job file or on the command line
    │   └── PlacementError               the tasks do not fit the hosts
    ├── ProgramError                127  the program to run does not exist
    ├── NotRunnableError            126  the program to run exists, and cannot be run
    ├── TransportError              125  a host or its agent cannot be reached
    │   ├── HostsError                   some of several hosts; a line for each
    │   │   └── StartTimeoutError   124        ... when --timeout was over, before the job began
    │   ├── ConnectionLostError          the connection to a host broke: a new one may work
    │   │   └── RouteDownError               what leads to the host is down for a while
    │   └── HostGoneError                an agent, or its host, that will not come back
    │       ├── AllocationEndedError         ... and so have all others: their allocation is over
    │       └── HostPreemptedError           ... because a cluster took it
    ├── ProtocolError               125  a host sent a message that the protocol does not allow
    ├── JobFailed                   125  Python API: the job has failed
    │   └── TaskFailed                   this task failed first: its exit status, last lines and traceback
    ├── StorageError                125  a file at a URL cannot be read or written (in `launcher.storage`)
    └── FeedError                   125  Python API: rows cannot be sent to the tasks
        └── FeedTimeout                  a task takes no rows

All packages raise these, and `launcher.cli` turns them into messages and exit codes. The command must not
raise one for the failure of a task, which is an event and a part of the report. In the Python API it is an
exception.
"""

import copyreg
from typing import Any, Iterable, List, Optional, Sequence, Tuple

from launcher.common.record import Record


class Fault(Record):
    """One thing that is wrong in the user's input, with its place."""

    #: ``file:line``, or the name of the option. It is empty if neither is known.
    where: str
    #: The problem, with the offending text quoted.
    problem: str
    #: The input that was expected, or "did you mean ...?". It may be empty.
    expected: str = ""

    def __str__(self) -> str:
        """Return the fault for the user: ``file:line: problem; expected ...``."""
        head = f"{self.where}: {self.problem}" if self.where else self.problem
        return f"{head}; {self.expected}" if self.expected else head


class Note(Record):
    """Something about the user's input that the user should know, although it is no fault."""

    text: str


class LaunchError(Exception):
    """Base class of all errors of the launcher."""

    exit_code = 125

    def __reduce__(self) -> Tuple[Any, ...]:
        """Pickle the error with its message and its attributes, which are restored without ``__init__``.

        Errors travel from tasks to the program that runs the job. ``__init__`` of a subclass may need other
        arguments than the message.
        """
        return copyreg.__newobj__, (type(self), str(self)), self.__dict__  # type: ignore[attr-defined]


class InputError(LaunchError):
    """The user's input is wrong. The error contains all faults, and nothing was started.

    Args:
        faults: The faults, at least one.
    """

    exit_code = 2

    def __init__(self, faults: Iterable[Fault]) -> None:
        """Make the error of all faults in the input. Its message has a line for each."""
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class HostfileError(InputError):
    """A hostfile or a ``--hosts`` list is wrong."""


class JobError(InputError):
    """A job file or the command line is wrong."""


class PlacementError(InputError):
    """The tasks do not fit the hosts."""


class ProgramError(LaunchError):
    """The program to run does not exist."""

    exit_code = 127


class NotRunnableError(LaunchError):
    """The program to run exists, and cannot be run."""

    exit_code = 126


class TransportError(LaunchError):
    """A host, or the agent on it, cannot be reached."""


class HostsError(TransportError):
    """One or more hosts cannot be reached or used. The error names all of them.

    Args:
        faults: A line for each of these hosts, which begins with its name.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        """Make the error of all hosts that failed. Its message has a line for each."""
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class StartTimeoutError(HostsError):
    """The time of ``--timeout`` was over before the job began."""

    exit_code = 124


class ConnectionLostError(TransportError):
    """The connection to a host broke, or the host does not answer. A new connection may work."""


class RouteDownError(ConnectionLostError):
    """A host runs, but what leads to it, such as a container engine, is down and starts again."""


class HostGoneError(TransportError):
    """An agent, or its host (a container, a pod), is gone for good, so connecting again is of no use."""


class HostPreemptedError(HostGoneError):
    """A cluster took the host away for other work. The restart after it does not count as one."""


class AllocationEndedError(HostGoneError):
    """All hosts of the launch are gone for good, because their allocation is over."""


class ProtocolError(LaunchError):
    """A host sent a message that the protocol does not allow."""


def hint_lines(report: Any) -> List[str]:
    """Return the hints in the `launcher.Report` of a job that failed, for the end of a message.

    Without a report there are none.
    """
    failure = None if report is None else report.failure
    return [] if failure is None else [f"hint: {hint}" for hint in failure.hint.splitlines()]


class JobFailed(LaunchError):
    """The job that a Python program has started by the API has failed. The message says why.

    Args:
        text: The reason, and what to try.
        run_dir: The folder with the logs and the report of the job. It is empty if the job has none.
        launch_code: The exit code of ``launch``, or None if it still runs.
        report: The `launcher.Report`, or None if the job still runs or has no report.
    """

    def __init__(
        self, text: str, run_dir: str = "", launch_code: Optional[int] = None, report: Any = None
    ) -> None:
        """Make the error about a job that has failed."""
        self.run_dir = run_dir
        self.launch_code = launch_code
        self.report = report
        super().__init__("\n".join([text, *hint_lines(report)]))


def _shown_lines(task: str, lines: Sequence[str]) -> List[str]:
    """Return the part of a message that shows the last lines of a task. Without lines it is empty."""
    return [f"last lines of {task}:", *(f"    {line}" for line in lines)] if lines else []


class TaskFailed(JobFailed):
    """A job of the API has failed, and this task failed before all others.

    Args:
        text: The reason.
        task: The name of the task, such as ``worker/0``.
        host: The host on which it ran. It is empty if that is unknown.
        code: The exit code of its process. It is None if a signal killed the process, it still runs, or its
            host is lost.
        signal: The number of the signal that killed its process, or None.
        traceback: Python's traceback of an exception in its function. It is empty if there was none.
        last_lines: The last lines of its output, without line ends.
        run_dir: The folder with the logs and the report of the job. It is empty if the job has none.
        report: The `launcher.Report`, or None if the job still runs or has no report.
    """

    def __init__(  # noqa: PLR0913 - public
        self,
        text: str,
        task: str,
        host: str = "",
        code: Optional[int] = None,
        signal: Optional[int] = None,
        traceback: str = "",
        last_lines: Sequence[str] = (),
        run_dir: str = "",
        report: Any = None,
    ) -> None:
        """Make the error about a job whose first failure is this task's."""
        self.task = task
        self.host = host
        self.code = code
        self.signal = signal
        self.traceback = traceback
        self.last_lines = tuple(last_lines)
        shown = [traceback.rstrip()] if traceback else _shown_lines(task, last_lines)
        code_of_job = None if report is None else report.exit_code
        super().__init__("\n".join([text, *shown]), run_dir, code_of_job, report)


class FeedError(LaunchError):
    """Rows cannot be sent to the tasks, or their results cannot be received. The message says why."""


class FeedTimeout(FeedError):
    """A task has taken no rows for too long, although rows wait for it.

    Args:
        task: The name of the task, or of several: ``worker/0, worker/1``.
        seconds: How long it has taken none.
        last_lines: The last lines of its output, without line ends.
    """

    def __init__(self, task: str, seconds: float, last_lines: Sequence[str] = ()) -> None:
        """Make the error about tasks that have taken no rows."""
        self.task = task
        self.seconds = seconds
        self.last_lines = tuple(last_lines)
        verb = "have" if "," in task else "has"
        text = f"{task} {verb} taken no rows for {seconds:g}s, though rows wait (see feed_timeout=)"
        super().__init__("\n".join([text, *_shown_lines(task, last_lines)]))

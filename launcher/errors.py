"""Everything that can go wrong, and the exit code of each.

::

    LaunchError                     125  launch itself failed
    ├── InputError                    2  what the user gave is wrong; nothing was started
    │   ├── HostfileError                in a hostfile or --hosts
    │   ├── JobError                     in a job file or on the command line
    │   └── PlacementError               the tasks do not fit the hosts
    ├── ProgramError                127  the program to run is not there
    ├── NotRunnableError            126  the program to run is there, and can't be run
    ├── TransportError              125  a host or its agent can't be reached
    │   ├── HostsError                   some of several hosts; a line for each
    │   │   └── OutOfTime         124        ... when --timeout was over, before the job began
    │   └── ConnectionLost               the connection to a host broke: a new one may work
    ├── ProtocolError               125  a host sent what the protocol does not allow
    ├── JobFailed                   125  of the Python API: the job has failed
    │   └── TaskFailed                   because this task did: its exit status, last lines and traceback
    └── FeedError                   125  of the Python API: rows can't be sent to the tasks
        └── FeedTimeout                  a task takes none of them

A task's failure is not an error of `launch`: it is an event, and goes to the report. For a program
that drives a job through the Python API it is an exception.
"""

from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence, Tuple, Type


class Fault(NamedTuple):
    """One thing wrong with some input."""

    #: ``file:line``, or the option it came from; empty if neither is known.
    where: str
    #: What is wrong, with the offending text quoted.
    what: str
    #: What was expected, or "did you mean ...?"; may be empty.
    expected: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}; {self.expected}" if self.expected else head


class LaunchError(Exception):
    """Root of all errors of ours."""

    exit_code = 125

    def __reduce__(self) -> Tuple[Any, ...]:
        """For pickle: exceptions go from tasks to the program that drives them."""
        return _restored, (type(self), str(self), self.__dict__)


def _restored(kind: "Type[LaunchError]", text: str, fields: Dict[str, Any]) -> "LaunchError":
    error = kind.__new__(kind, text)
    error.__dict__.update(fields)
    return error


class InputError(LaunchError):
    """What the user gave is wrong: all faults at once.

    Args:
        faults: at least one.
    """

    exit_code = 2

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class HostfileError(InputError):
    """A hostfile or a ``--hosts`` list is wrong."""


class JobError(InputError):
    """A job file or the command line is wrong."""


class PlacementError(InputError):
    """The tasks do not fit the hosts."""


class ProgramError(LaunchError):
    """The program to run is not there."""

    exit_code = 127


class NotRunnableError(LaunchError):
    """The program to run is there, and can't be run."""

    exit_code = 126


class TransportError(LaunchError):
    """A host, or the agent on it, can't be reached."""


class HostsError(TransportError):
    """Some of the hosts can't be reached: all of them at once.

    Args:
        faults: one line for each, beginning with its name; at least one.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class OutOfTime(HostsError):
    """``--timeout`` was over before the job began."""

    exit_code = 124


class ConnectionLost(TransportError):
    """The connection to a host broke, or is silent. A new connection may work."""


class ProtocolError(LaunchError):
    """A host sent what the protocol does not allow."""


class JobFailed(LaunchError):
    """The job that a program drives has failed; the message says why.

    Args:
        text: what happened, and what to try.
        run_dir: the folder with its logs and its report; empty if it has none.
        launch_code: what ``launch`` ended with; ``None``: it was not over yet.
        report: the `launcher.Report`; ``None``: the job was not over yet, or there is none.
    """

    def __init__(
        self, text: str, run_dir: str = "", launch_code: Optional[int] = None, report: Any = None
    ) -> None:
        self.run_dir = run_dir
        self.launch_code = launch_code
        self.report = report
        super().__init__(text)


class TaskFailed(JobFailed):
    """A task has failed, the first of its job to do so.

    Args:
        text: what happened.
        task: ``worker/0``.
        host: where it ran; empty if that is not known.
        code, signal: how its process ended, one of both; none: it runs still, or its host was lost.
        traceback: Python's, of what its function raised; empty if it raised nothing.
        last_lines: of what it has printed.
        run_dir, report: see `JobFailed`.
    """

    def __init__(
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
        self.task = task
        self.host = host
        self.code = code
        self.signal = signal
        self.traceback = traceback
        self.last_lines = tuple(last_lines)
        shown = [traceback.rstrip()] if traceback else []
        if last_lines and not traceback:
            shown = [f"last lines of {task}:", *(f"    {line}" for line in last_lines)]
        code_of_job = None if report is None else report.exit_code
        super().__init__("\n".join([text, *shown]), run_dir, code_of_job, report)


class FeedError(LaunchError):
    """Rows can't be sent to the tasks, or results back; the message gives the reason."""


class FeedTimeout(FeedError):
    """A task has taken no rows for a long time, though there are some.

    Args:
        task: ``worker/0``; or several, ``worker/0, worker/1``.
        seconds: how long.
        last_lines: of what it has printed.
    """

    def __init__(self, task: str, seconds: float, last_lines: Sequence[str] = ()) -> None:
        self.task = task
        self.seconds = seconds
        self.last_lines = tuple(last_lines)
        verb = "have" if "," in task else "has"
        text = f"{task} {verb} taken no rows for {seconds:g} s, some wait (feed_timeout= allows longer)"
        shown = [f"last lines of {task}:", *(f"    {line}" for line in last_lines)] if last_lines else []
        super().__init__("\n".join([text, *shown]))

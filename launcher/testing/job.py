"""One launch that a test has started, and its tasks: looked at, waited for, killed and suspended.

Tests get a `Job` from the fixture ``cluster``. All waits have a limit.
"""

from __future__ import annotations

import json
import math
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

from launcher.api.driver import Driver
from launcher.backends.docker.container import container_name, network_name
from launcher.backends.docker.engine import Engine, explain
from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.report import ExitStatus, Report, TaskState
from launcher.job import RunPaths
from launcher.output.lines import attempt_mark
from launcher.output.logs import content, last_lines, shown_lines
from launcher.runs.run import json_of

_T = TypeVar("_T")

#: Seconds between two looks at what a test waits for.
_POLL_SECONDS = 0.01
#: Seconds for all processes of a task to be suspended or resumed; for an agent to answer.
_SUSPEND_TIMEOUT_SECONDS = 20.0
_ANSWER_TIMEOUT_SECONDS = 10.0
#: Seconds between two Ctrl-C that mean "at once": more than `launcher.stop_requests` wants, if one is late.
_STOP_PAUSE_SECONDS = 0.5
#: Last lines in the message of a failed wait; tasks whose last lines the report of a failed test shows.
_MAX_LAST_LINES = 10
_MAX_TASKS_WITH_LINES = 32
#: A task's line in the output of the launcher: ``node1 worker/0 | ``.
_TASK_LINE = re.compile(r"(\S+ )?\S+/\d+ +\| ")


class WaitFailed(AssertionError):
    """An awaited condition did not hold in time, or cannot hold any more."""


class ClusterError(LaunchError):
    """A test asks for something impossible; the message says why."""


class CannotStart(ClusterError):
    """The launch ended before one of its tasks was started.

    Args:
        exit_code: That of ``launch``: 2 for bad input, 126 or 127 for a program that cannot be run...
        output: All that it printed.
    """

    def __init__(self, exit_code: int, output: str) -> None:
        super().__init__(f"the cluster did not start, launch exited with {exit_code}:\n{output.rstrip()}")
        self.exit_code = exit_code
        self.output = output


class _Waits(ABC):
    """A job, or one of its tasks, with waits for a condition."""

    @abstractmethod
    def _ended(self) -> str:
        """That it has ended, so that no condition of it can come to hold, or an empty text if it has not."""

    @abstractmethod
    def _message(self, text: str) -> str:
        """Return a text about it, with its name and its last lines."""

    def _wait_for(self, look: Callable[[], _T | None], seconds: float, condition: str) -> _T:
        """Call ``look`` again and again until it returns something other than ``None``.

        Raises:
            WaitFailed: The time is up, or it has ended.
        """
        __tracebackhide__ = True
        deadline = time.monotonic() + seconds
        while True:
            late = f"not within {seconds:g}s" if time.monotonic() > deadline else ""
            reason = self._ended() or late  # before the last look: what came until then counts
            found = look()
            if found is not None:
                return found
            if reason:
                raise WaitFailed(self._message(f"waited for {condition}: {reason}"))
            time.sleep(_POLL_SECONDS)


class Job(_Waits):
    """A cluster that runs, or has run; made by `launcher.testing.Cluster.start`.

    Args:
        driver: Its launch.
        folder: Has the file ``output`` and the run's folder ``run``.
        environ: Of the launch, if the tasks run in containers; ``None``: they do not.
        bound: Seconds of `wait` by default.
        left_running: The test may leave it running.
    """

    def __init__(
        self,
        driver: Driver,
        folder: Path,
        environ: Mapping[str, str] | None,
        bound: float,
        left_running: bool,
    ) -> None:
        self.driver = driver
        driver.on_event = self._handle_event
        self._events: list[Mapping[str, Any]] = []
        #: The last event about the state of each task.
        self._moved: dict[str, Mapping[str, Any]] = {}
        self._output = folder / "output"
        self._bound = bound
        #: The run's folder: ``plan.json``, ``events.jsonl``, ``report.json``, ``logs/``.
        self.run_dir = folder / "run"
        self.paths = RunPaths(str(self.run_dir))
        #: The content of ``plan.json`` (docs/report.md).
        self.plan: Mapping[str, Any] = {}
        #: The ClusterSpec: ``host:port`` of each task, by role.
        self.addresses: Mapping[str, Sequence[str]] = {}
        self.environ = environ
        self.left_running = left_running
        #: Its tasks in the order of the plan.
        self.tasks: tuple[Task, ...] = ()
        #: The attempt of each task when `Task.kill` or `Task.signal` was last called.
        self.attempts: dict[str, int] = {}
        #: When `stop` was last called (monotonic).
        self._stopped_at = -math.inf

    def __repr__(self) -> str:
        return f"<Job {self.name}: {'running' if self.running else f'exited with {self.exit_code}'}>"

    def begin(self, seconds: float) -> None:
        """Wait until all its tasks are started, or will not be.

        Args:
            seconds: The longest time to wait.

        Raises:
            CannotStart: It ended before one of its tasks was started.
            WaitFailed: It takes longer.
        """
        __tracebackhide__ = True
        self._wait_for(self._has_begun, seconds, "the start of all tasks")
        if self.exit_code is not None and not any(task.pid for task in self.tasks):
            error = "" if self.report() else f"launch: {self.driver.error()}"
            raise CannotStart(self.exit_code, self.output + error)

    def _has_begun(self) -> bool | None:
        over = not self.running
        if not self.tasks and (plan := json_of(self.paths.plan)) is not None:
            self.plan, self.addresses = plan, plan["cluster"]
            self.tasks = tuple(Task(self, planned) for planned in plan["tasks"])
        started = [task.pid is not None or task.attempt > 1 for task in self.tasks]
        all_known = all(map(or_, started, (task.state.is_over for task in self.tasks)))
        return over or (any(started) and all_known) or None  # without any it ends

    # ------------------------------------------------------------------ description

    @property
    def name(self) -> str:
        """The run's name, as ``launch ps`` lists it."""
        return self.driver.job

    def task(self, name: str) -> Task:
        """Return one task of the job.

        Args:
            name: The name of the task, ``worker/0``.

        Raises:
            KeyError: There is none.
        """
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(f"no task {name!r}; there are {', '.join(task.name for task in self.tasks)}")

    # ------------------------------------------------------------------ state

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """The events so far: the lines of ``events.jsonl`` (docs/report.md)."""
        return list(self._events)

    @property
    def output(self) -> str:
        """The output of ``launch`` so far, stdout and stderr."""
        return self._output.read_text("utf-8", "replace")

    @property
    def launcher_pid(self) -> int:
        """The process of ``launch``."""
        return self.driver.process.pid

    @property
    def running(self) -> bool:
        """Whether ``launch`` runs."""
        return not self.driver.over.is_set()

    @property
    def exit_code(self) -> int | None:
        """The exit code of ``launch`` (128 + n: signal n ended it), or None if it runs."""
        return None if self.running else self.driver.exit_code

    def report(self) -> Report | None:
        """Return the report of the job, or None if it runs, or its launcher was killed."""
        return None if self.running else self.driver.report

    # ------------------------------------------------------------------ waiting and ending

    def wait(self, timeout: float | None = None) -> Report:
        """Wait for its end.

        Args:
            timeout: Seconds; default: a minute, or more where its ``timeout`` and ``grace`` allow more.

        Returns:
            How it and each of its tasks ended.

        Raises:
            WaitFailed: It has not ended in time, or without a report (its launcher was killed).
        """
        __tracebackhide__ = True
        return self._wait_for(self.report, self._bound if timeout is None else timeout, "its end")

    def until(self, condition: Callable[[], _T], what: str = "a condition", timeout: float = 30.0) -> _T:
        """Wait until a condition of the test holds.

        Args:
            condition: Is called again and again, until it returns something true.
            what: Names it in the message.
            timeout: Seconds.

        Returns:
            The value that the condition returned.

        Raises:
            WaitFailed: It does not hold in time, or when the job ends.
        """
        __tracebackhide__ = True
        return self._wait_for(lambda: condition() or None, timeout, what)

    def stop(self) -> None:
        """Ctrl-C: the job ends in order; a second time: at once. Use `wait` to wait for that."""
        time.sleep(max(0.0, self._stopped_at + _STOP_PAUSE_SECONDS - time.monotonic()))
        self._stopped_at = time.monotonic()
        self.driver.signal(signal.SIGINT)

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "TaskMoved":
            self._moved[event["task"]] = event
        self._events.append(event)

    def _ended(self) -> str:
        return "" if self.running else f"and launch has exited with {self.exit_code}"

    def _message(self, text: str) -> str:
        return f"job {self.name}: {text}\n{self.tails(5)}"

    def tails(self, lines: int = 20) -> str:
        """Return the last lines of the launcher and of all tasks, for the report of a failed test.

        Args:
            lines: How many of each.
        """
        own = (line for line in self.output.split("\n") if not _TASK_LINE.match(line))
        parts = {"launch": shown_lines("\n".join(own), lines)}
        for task in self.tasks[:_MAX_TASKS_WITH_LINES]:
            parts[f"{task.name} ({task.described()})"] = task.last_lines(lines) or ["(nothing)"]
        text = []
        for name, found in parts.items():
            text += [f"{name}:", *(f"    {line}" for line in found)]
        if len(self.tasks) > _MAX_TASKS_WITH_LINES:
            text.append(f"... and {len(self.tasks) - _MAX_TASKS_WITH_LINES} more tasks")
        if self.tasks:
            text.append(f"all of it: {self.paths.root}")
        return "\n".join(text)


class Task(_Waits):
    """A task of a `Job`; got from `Job.task` and `Job.tasks`.

    Args:
        job: Its job.
        planned: Its entry in the plan.

    Attributes:
        name: ``worker/0``.
        role: ``worker``.
        index: its number in the role, from 0.
        host: the name of its host.
        address: where the other tasks connect, ``host:port``.
        port: the port of that.
    """

    def __init__(self, job: Job, planned: Mapping[str, Any]) -> None:
        self._job = job
        self.name = TaskId(planned["task"])
        self.role, self.index = self.name.role, self.name.index
        self.host: str = planned["host"]
        self.address: str = planned["address"]
        self.port: int = planned["port"]
        #: The arguments of ``docker network connect``, while its container is disconnected.
        self._cut: list[str] = []

    def __repr__(self) -> str:
        return f"<Task {self.name}: {self.described()}>"

    # ------------------------------------------------------------------ state: that of its last attempt

    @property
    def attempt(self) -> int:
        """The number of its last start, from 1."""
        return int(self._moved["attempt"]) if self._moved else 1

    @property
    def pid(self) -> int | None:
        """Its main process, as its host numbers it, or None if it was not started (yet)."""
        return self._moved.get("pid")

    @property
    def state(self) -> TaskState:
        """Its state."""
        return TaskState(self._moved["state"]) if self._moved else TaskState.PENDING

    @property
    def exit_status(self) -> ExitStatus | None:
        """The end of its main process, or None if it runs. A status of ``None``s: its host was lost."""
        over = not self._job.running or self.state.is_over  # before its status, which is complete then
        status = ExitStatus(**self._moved["status"]) if self._moved else ExitStatus()
        return status if status.known or over else None

    def described(self) -> str:
        """Its state as text: ``running``; ``failed, killed by SIGKILL``."""
        status = self.exit_status
        if status is None or not status.known:
            return self.state.value
        return f"{self.state.value}, {status.text}"

    # ------------------------------------------------------------------ output

    @property
    def raw(self) -> bytes:
        """Its output so far, stdout and stderr, that of all attempts."""
        return content(self._job.paths.log(self.name))

    @property
    def log(self) -> str:
        """The same as text."""
        return self.raw.decode("utf-8", "replace")

    @property
    def lines(self) -> list[str]:
        """The same, line by line."""
        return self.log.splitlines()

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines that it has printed, without control characters.

        Args:
            count: How many.
        """
        return last_lines(self._job.paths.root, self.name, count)

    def until_prints(self, text: str | re.Pattern[str], timeout: float = 30.0) -> str:
        """Wait until its last attempt has printed a line, from its start on.

        Args:
            text: A text, or a compiled pattern, that some line contains (``step 1`` is in ``step 10``).
            timeout: Seconds.

        Returns:
            The line.

        Raises:
            WaitFailed: It has not in time, or has ended without.
        """
        __tracebackhide__ = True
        pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
        shown = text if isinstance(text, str) else text.pattern

        def look() -> str | None:
            return next(filter(pattern.search, self._lines_of_attempt()), None)

        return self._wait_for(look, timeout, f"a line with {shown!r}")

    def _lines_of_attempt(self) -> list[str]:
        last = self.attempt  # the log may already have more
        own = self.raw.rpartition(attempt_mark(last))[2].partition(attempt_mark(last + 1))[0]
        return own.decode("utf-8", "replace").splitlines()

    # ------------------------------------------------------------------ waiting, signals

    def wait(self, timeout: float = 60.0) -> ExitStatus:
        """Wait until it is over: all its processes have ended, its output is complete.

        Args:
            timeout: Seconds.

        Returns:
            How its main process ended.

        Raises:
            WaitFailed: It is not over in time.
        """
        __tracebackhide__ = True
        return self._wait_for(lambda: self.exit_status if self._is_over() else None, timeout, "its end")

    def kill(self) -> None:
        """SIGKILL to all its processes, as when a machine runs out of memory.

        Its host goes on, also a container: the launcher knows of it at once, as of any task that fails.

        Raises:
            ClusterError: It has ended.
            WaitFailed: Its agent does not answer within 10 s.
        """
        self._note_attempts()
        self._signal(signal.SIGKILL, to_all=True)

    def signal(self, number: int) -> None:
        """Send a signal to its main process.

        Args:
            number: Of the signal, as in `signal`.

        Raises:
            ClusterError: It has ended.
            WaitFailed: Its agent does not answer within 10 s.
        """
        self._note_attempts()
        self._signal(number, to_all=False)

    def _note_attempts(self) -> None:
        self._job.attempts = {task.name: task.attempt for task in self._job.tasks}

    def wait_restarted(self, timeout: float = 60.0) -> int:
        """Wait until it runs again: an attempt that started after the last `kill` or `signal` in its job.

        It need not be the task that was killed: others may start again with it.

        Args:
            timeout: Seconds.

        Returns:
            The number of the attempt.

        Raises:
            WaitFailed: It does not run again in time, or the job has ended.
        """
        __tracebackhide__ = True
        before, own = self._job.attempts.get(self.name, 1), (self.name, "running")

        def look() -> int:
            moves = (event for event in self._job.events if event["event"] == "TaskMoved")
            runs = (event["attempt"] for event in moves if (event["task"], event["state"]) == own)
            return max((attempt for attempt in runs if attempt > before), default=0)

        return self._job.until(look, f"a new attempt of {self.name}", timeout)

    def stop(self) -> None:
        """Suspend all its processes (SIGSTOP) until `resume`, like a machine that hangs.

        Raises:
            ClusterError: It has ended.
            WaitFailed: Its agent does not answer within 10 s, or some of its processes do not stop within
                20 s.
        """
        __tracebackhide__ = True
        # Again and again: a process that forks may have a child that was not there before. The parent of a
        # vfork waits in state D until its child runs its own program; its SIGSTOP is pending.
        self._signal_until(signal.SIGSTOP, lambda state: state in "TtDZX", "be suspended")

    def resume(self) -> None:
        """Let it go on after `stop` (SIGCONT). Returns when it does.

        Raises:
            ClusterError: It has ended.
            WaitFailed: Its agent does not answer within 10 s, or some of its processes do not go on within
                20 s.
        """
        __tracebackhide__ = True
        self._signal_until(signal.SIGCONT, lambda state: state not in "Tt", "go on")

    def cut_network(self) -> None:
        """Disconnect its container from the job's network: nothing comes in or goes out.

        The job goes on: what the task prints still comes, and it can be stopped. Its connections are silent
        until `mend_network`. Other tasks in the same container are cut off, too.

        Raises:
            ClusterError: It does not run in a container, or has ended.
        """
        container, network = self._container(), network_name(self._job.name)
        described = self._docker("inspect", "--type", "container", container)
        joined = json.loads(described)[0]["NetworkSettings"]["Networks"].get(network)
        if joined is not None:
            aliases = [text for alias in joined.get("Aliases") or () for text in ("--alias", alias)]
            self._cut = ["--ip", joined["IPAddress"], *aliases, network, container]
            self._docker("network", "disconnect", network, container)
        elif not self._cut:
            raise ClusterError(f"the container {container} is not on a network of the job's own")

    def mend_network(self) -> None:
        """Connect it again after `cut_network`, with the same address, so that its connections go on.

        Raises:
            ClusterError: It does not run in a container, or has ended.
        """
        self._container()
        if self._cut:
            self._docker("network", "connect", *self._cut)
            self._cut = []

    def _container(self) -> str:
        if self._job.environ is None:
            text = "does not run in a container: only the network of those can be cut"
            raise ClusterError(f"{self.name} {text} (start(..., backend='docker:IMAGE'))")
        return container_name(self._job.name, self.host)

    def _docker(self, *arguments: str) -> str:
        result = Engine(environ=self._job.environ).docker(*arguments)
        if result.code:
            raise ClusterError(f"{self.name}: its network can't be changed: {explain(result.fault)}")
        return result.out

    def _signal_until(self, number: int, is_done: Callable[[str], bool], condition: str) -> None:
        __tracebackhide__ = True

        def look() -> bool | None:
            return all(map(is_done, self._signal(number, to_all=True))) or None

        self._wait_for(look, _SUSPEND_TIMEOUT_SECONDS, f"all its processes to {condition}")

    def _signal(self, number: int, to_all: bool) -> str:
        """Let its agent send a signal; the state of each of its processes after that."""
        __tracebackhide__ = True
        if self.state is TaskState.STARTING:  # its first line may be read before launch says that it runs
            self._wait_for(
                lambda: self.state is not TaskState.STARTING or None, _ANSWER_TIMEOUT_SECONDS, "its start"
            )
        if self.exit_status is not None or self.pid is None:
            raise ClusterError(f"{self.name} can't be signalled: it is {self.described()}")
        known = len(self._signals_sent())
        self._job.driver.command({"task": self.name, "signal": int(number), "all": to_all})

        def look() -> str | None:
            answers = self._signals_sent()[known:]
            # No answer comes about a task that has ended meanwhile, even if it starts again.
            return str(answers[0]["states"]) if answers else "" if self.exit_status is not None else None

        return self._wait_for(look, _ANSWER_TIMEOUT_SECONDS, f"an answer from the agent of {self.host}")

    def _is_over(self) -> bool:
        """Return whether it has ended, and does not start again; with restarts a failed task may do so."""
        return not self._job.running or (self.state.is_over and not self._moved["restarting"])

    def _ended(self) -> str:
        return "and it has ended" if self._is_over() else ""

    def _message(self, text: str) -> str:
        lines = self.last_lines(_MAX_LAST_LINES)
        head = f"{self.name} ({self.described()}): {text}"
        tail = "its last lines:" if lines else "it printed nothing"
        return "\n".join([head, tail, *(f"    {line}" for line in lines)])

    @property
    def _moved(self) -> Mapping[str, Any]:
        """The last event about its state, or an empty text if there is none."""
        return self._job._moved.get(self.name, {})

    def _signals_sent(self) -> list[Mapping[str, Any]]:
        wanted = ("SignalSent", self.name)
        return [each for each in self._job.events if (each["event"], each.get("task")) == wanted]

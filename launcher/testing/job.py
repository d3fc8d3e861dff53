"""``Job`` and ``Task``: one launch that a test has started, to be watched, waited for, killed and suspended.

Tests receive a `Job` from ``cluster.start``. No wait may be without a limit, because a test that hangs says
nothing.
"""

from __future__ import annotations

import json
import math
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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

#: How often a condition that a test waits for is checked.
_POLL_SECONDS = 0.01
#: How long all processes of a task may take to be suspended or resumed.
_SUSPEND_TIMEOUT_SECONDS = 20.0
#: How long an agent may take to answer.
_ANSWER_TIMEOUT_SECONDS = 10.0
#: The pause before a second Ctrl-C. `launcher.stop_requests` ignores one that comes too soon, and the first
#: may be late.
_STOP_PAUSE_SECONDS = 0.5
#: How many last lines of a task the message of a failed wait contains.
_MAX_LAST_LINES = 10
#: How many tasks show their last lines in the report of a failed test.
_MAX_TASKS_WITH_LINES = 32
#: The start of a task's line in the output of the launcher, such as ``node1 worker/0 | ``.
_TASK_LINE = re.compile(r"(\S+ )?\S+/\d+ +\| ")


class WaitFailed(AssertionError):
    """A condition that a test waits for did not hold in time, or can no longer hold."""


class ClusterError(LaunchError):
    """A test asks for something impossible. The message says why."""


class CannotStart(ClusterError):
    """The launch exited before one of its tasks was started.

    Args:
        exit_code: The exit code of ``launch``, such as 2 for bad input, and 126 or 127 for a program that
            cannot be run.
        output: Everything that the launch has printed.
    """

    def __init__(self, exit_code: int, output: str) -> None:
        super().__init__(f"the cluster did not start, launch exited with {exit_code}:\n{output.rstrip()}")
        self.exit_code = exit_code
        self.output = output


class _Waits(ABC):
    """The waits that a job and a task have in common."""

    @abstractmethod
    def _ended(self) -> str:
        """Return why no condition can come to hold any longer, or an empty text while it still can."""

    @abstractmethod
    def _message(self, text: str) -> str:
        """Return a text with the name and the last lines of the job or task, for an error."""

    def _wait_for(self, poll: Callable[[], _T | None], seconds: float, condition: str) -> _T:
        """Call a function repeatedly until it returns something other than None, and return that.

        Args:
            poll: The function. It is called once more after the end, because its value may have come just
                before.
            seconds: The time limit.
            condition: What is awaited, for the message.

        Raises:
            WaitFailed: The time is up, or the job or task has ended.
        """
        __tracebackhide__ = True
        deadline = time.monotonic() + seconds
        while True:
            late = f"not within {seconds:g}s" if time.monotonic() > deadline else ""
            # This is read before the last poll, so that the poll finds everything that came until then.
            reason = self._ended() or late
            value = poll()
            if value is not None:
                return value
            if reason:
                raise WaitFailed(self._message(f"waited for {condition}: {reason}"))
            time.sleep(_POLL_SECONDS)


class Job(_Waits):
    """A cluster that runs, or has run. ``cluster.start`` returns it.

    ::

        job = cluster.start(["train.py"], workers=2)
        job.task("worker/0").kill()
        assert job.wait().exit_code == 137

    Args:
        driver: The launch of the job.
        folder: The folder with the file ``output`` and the run's folder ``run``.
        environ: The environment of the launch if its tasks run in containers, otherwise None.
        bound: How many seconds `wait` waits by default.
        left_running: Whether the test may leave the job running.
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
        #: All events of the launcher so far, in order.
        self._events: list[Mapping[str, Any]] = []
        #: The last event about the state of each task, by the name of the task.
        self._moved: dict[str, Mapping[str, Any]] = {}
        #: The file to which the launcher prints.
        self._output = folder / "output"
        self._bound = bound
        #: The path of the run's folder, with ``plan.json``, ``events.jsonl``, ``report.json`` and ``logs/``.
        self.run_dir = folder / "run"
        self.paths = RunPaths(str(self.run_dir))
        #: The content of ``plan.json`` (docs/report.md).
        self.plan: Mapping[str, Any] = {}
        #: The ClusterSpec: for each role a list with the address ``host:port`` of each task.
        self.addresses: Mapping[str, Sequence[str]] = {}
        self.environ = environ
        self.left_running = left_running
        #: All tasks of the job, in the order of the plan.
        self.tasks: tuple[Task, ...] = ()
        #: The number of the attempt that each task had when `Task.kill` or `Task.signal` was last called.
        self.attempts: dict[str, int] = {}
        #: When `stop` was last called, by `time.monotonic`.
        self._stopped_at = -math.inf

    def __repr__(self) -> str:
        return f"<Job {self.name}: {'running' if self.running else f'exited with {self.exit_code}'}>"

    def begin(self, seconds: float) -> None:
        """Wait until each task has started, or is known not to start. ``cluster.start`` calls this.

        Args:
            seconds: The time limit.

        Raises:
            CannotStart: The launch exited before one of its tasks was started.
            WaitFailed: The tasks have not started in time.
        """
        __tracebackhide__ = True
        self._wait_for(self._poll_start, seconds, "the start of all tasks")
        if self.exit_code is not None and not any(task.pid for task in self.tasks):
            # Without a report the launcher has told the driver why it failed, and has not printed it.
            error = "" if self.report() else f"launch: {self.driver.error()}"
            raise CannotStart(self.exit_code, self.output + error)

    def _poll_start(self) -> bool | None:
        """Return True if all tasks have started or the job has ended, otherwise None.

        The plan is read as soon as the launcher has written it, and the attributes about tasks are set.
        """
        has_ended = not self.running
        if not self.tasks and (plan := json_of(self.paths.plan)) is not None:
            self.plan, self.addresses = plan, plan["cluster"]
            self.tasks = tuple(Task(self, planned) for planned in plan["tasks"])
        # A task that starts again has no pid for a moment, but its later attempt shows that it has started.
        started = [task for task in self.tasks if task.pid is not None or task.attempt > 1]
        all_known = all(task in started or task.state.is_over for task in self.tasks)
        # If no task can start, the job ends soon, and that is awaited.
        return has_ended or (bool(started) and all_known) or None

    # ------------------------------------------------------------------ description

    @property
    def name(self) -> str:
        """The name of the run, as ``launch ps`` lists it."""
        return self.driver.job

    def task(self, name: str) -> Task:
        """Return one task of the job.

        Args:
            name: The name of the task, such as ``worker/0``.

        Raises:
            KeyError: There is no such task. The message lists the tasks.
        """
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(f"no task {name!r}; there are {', '.join(task.name for task in self.tasks)}")

    # ------------------------------------------------------------------ state

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """The events so far: a dict for each line of ``events.jsonl`` (docs/report.md)."""
        return list(self._events)

    @property
    def output(self) -> str:
        """The text that ``launch`` has printed so far, on stdout and stderr."""
        return self._output.read_text("utf-8", "replace")

    @property
    def launcher_pid(self) -> int:
        """The process ID of ``launch``."""
        return self.driver.process.pid

    @property
    def running(self) -> bool:
        """Whether ``launch`` still runs."""
        return not self.driver.over.is_set()

    @property
    def exit_code(self) -> int | None:
        """The exit code of ``launch``, 128 + n if signal n killed it. None while it runs."""
        return None if self.running else self.driver.exit_code

    def report(self) -> Report | None:
        """Return how the job and each of its tasks ended.

        Returns:
            The report. None while the job runs, and if its launcher was killed.
        """
        return None if self.running else self.driver.report

    # ------------------------------------------------------------------ waiting and ending

    def wait(self, timeout: float | None = None) -> Report:
        """Wait until the job has ended.

        Args:
            timeout: The time limit in seconds. By default it is a minute, and more by the job's ``timeout``
                and ``grace``.

        Returns:
            How the job and each of its tasks ended.

        Raises:
            WaitFailed: The job has not ended in time, or its launcher was killed, so there is no report.
        """
        __tracebackhide__ = True
        return self._wait_for(self.report, self._bound if timeout is None else timeout, "its end")

    def until(self, condition: Callable[[], _T], what: str = "a condition", timeout: float = 30.0) -> _T:
        """Wait until a condition of the test holds.

        ::

            job.until(lambda: len(checkpoints()) >= 2, "two checkpoints")

        Args:
            condition: A function without arguments. It is called repeatedly until it returns something true.
            what: The name of the condition, for the message of a failure.
            timeout: The time limit in seconds.

        Returns:
            The value that the condition has returned.

        Raises:
            WaitFailed: The condition does not hold in time, or when the job ends.
        """
        __tracebackhide__ = True
        # None means that the wait goes on, and so shall any other false value.
        return self._wait_for(lambda: condition() or None, timeout, what)

    def stop(self) -> None:
        """Send the launch a Ctrl-C: the tasks have time to exit. A second call kills them.

        The method returns before the job has ended. Use `wait` for that.
        """
        time.sleep(max(0.0, self._stopped_at + _STOP_PAUSE_SECONDS - time.monotonic()))
        self._stopped_at = time.monotonic()
        self.driver.signal(signal.SIGINT)

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        """Keep an event of the launcher, and the last one about the state of each task."""
        if event["event"] == "TaskMoved":
            self._moved[event["task"]] = event
        self._events.append(event)

    def _ended(self) -> str:
        """Return that the launcher has exited, or an empty text while it runs."""
        return "" if self.running else f"and launch has exited with {self.exit_code}"

    def _message(self, text: str) -> str:
        """Return a text with the name of the job and the last lines of all tasks, for an error."""
        return f"job {self.name}: {text}\n{self.tails(5)}"

    def tails(self, lines: int = 20) -> str:
        """Return the last lines of the launcher and of all tasks, for the report of a failed test.

        Args:
            lines: How many lines of each are shown at most.
        """
        # The launcher prints the lines of tasks, too, which follow below.
        of_launcher = (line for line in self.output.split("\n") if not _TASK_LINE.match(line))
        parts = {"launch": shown_lines("\n".join(of_launcher), lines)}
        for task in self.tasks[:_MAX_TASKS_WITH_LINES]:
            parts[f"{task.name} ({task.described()})"] = task.last_lines(lines) or ["(nothing)"]
        text = []
        for title, last in parts.items():
            text += [f"{title}:", *(f"    {line}" for line in last)]
        if len(self.tasks) > _MAX_TASKS_WITH_LINES:
            text.append(f"... and {len(self.tasks) - _MAX_TASKS_WITH_LINES} more tasks")
        if self.tasks:
            text.append(f"all of it: {self.paths.root}")
        return "\n".join(text)


class Task(_Waits):
    """A task of a `Job`. `Job.task` and `Job.tasks` return it.

    State and exit status are those of the last attempt of the task.

    Args:
        job: The job of the task.
        planned: The entry of the task in ``plan.json``.

    Attributes:
        name: The name of the task, such as ``worker/0``.
        role: The role of the task, such as ``worker``.
        index: The number of the task in its role, from 0.
        host: The name of its host.
        address: The address where other tasks connect, ``host:port``.
        port: The port of the address, an int.
    """

    def __init__(self, job: Job, planned: Mapping[str, Any]) -> None:
        self._job = job
        self.name = TaskId(planned["task"])
        self.role, self.index = self.name.role, self.name.index
        self.host: str = planned["host"]
        self.address: str = planned["address"]
        self.port: int = planned["port"]
        #: The arguments of ``docker network connect`` that connect its container again. They are empty while
        #: the container is connected.
        self._reconnect_arguments: list[str] = []

    def __repr__(self) -> str:
        return f"<Task {self.name}: {self.described()}>"

    # ------------------------------------------------------------------ state of the last attempt

    @property
    def attempt(self) -> int:
        """The number of the last start of the task, from 1."""
        return int(self._moved["attempt"]) if self._moved else 1

    @property
    def pid(self) -> int | None:
        """The process ID of the main process on its host. None if the task was not started yet."""
        return self._moved.get("pid")

    @property
    def state(self) -> TaskState:
        """The state of the task, `TaskState.PENDING` before its first event."""
        return TaskState(self._moved["state"]) if self._moved else TaskState.PENDING

    @property
    def exit_status(self) -> ExitStatus | None:
        """How the main process ended. None while it runs.

        If the host was lost, the status is not known, and all its fields are None.
        """
        # This is read before the status: once the task has ended, the status is complete.
        has_ended = not self._job.running or self.state.is_over
        status = ExitStatus(**self._moved["status"]) if self._moved else ExitStatus()
        return status if status.known or has_ended else None

    def described(self) -> str:
        """Return the state of the task as a text, such as ``running`` or ``failed, killed by SIGKILL``."""
        status = self.exit_status
        if status is None or not status.known:
            return self.state.value
        return f"{self.state.value}, {status.text}"

    # ------------------------------------------------------------------ output

    @property
    def raw(self) -> bytes:
        """The bytes that all attempts of the task have printed so far, on stdout and stderr."""
        return content(self._job.paths.log(self.name))

    @property
    def log(self) -> str:
        """The text that all attempts of the task have printed so far, on stdout and stderr."""
        return self.raw.decode("utf-8", "replace")

    @property
    def lines(self) -> list[str]:
        """The lines that all attempts of the task have printed so far."""
        return self.log.splitlines()

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines that the task has printed, without control characters.

        Args:
            count: How many lines are returned at most.
        """
        return last_lines(self._job.paths.root, self.name, count)

    def until_prints(self, text: str | re.Pattern[str], timeout: float = 30.0) -> str:
        """Wait until the last attempt of the task has printed a certain line, and return the line.

        Lines that it printed before the call count.

        ::

            job.task("worker/0").until_prints(re.compile("step [0-9]+00$"))

        Args:
            text: A text or a compiled pattern that some line contains. The text ``step 1`` is also in ``step
                10``.
            timeout: The time limit in seconds.

        Raises:
            WaitFailed: The task has not printed such a line in time, or has ended without it.
        """
        __tracebackhide__ = True
        pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
        shown = text if isinstance(text, str) else text.pattern

        def first_match() -> str | None:
            """Return the first line that matches, or None if there is none yet."""
            return next(filter(pattern.search, self._lines_of_attempt()), None)

        return self._wait_for(first_match, timeout, f"a line with {shown!r}")

    def _lines_of_attempt(self) -> list[str]:
        """Return the lines that the last attempt has printed so far.

        In the log a line of launch, the `attempt_mark`, precedes each attempt but the first.
        """
        last = self.attempt  # The log may already contain a later attempt.
        printed = self.raw.rpartition(attempt_mark(last))[2].partition(attempt_mark(last + 1))[0]
        return printed.decode("utf-8", "replace").splitlines()

    # ------------------------------------------------------------------ waiting, signals

    def wait(self, timeout: float = 60.0) -> ExitStatus:
        """Wait until the task is over: all its processes have exited, and its output is complete.

        Args:
            timeout: The time limit in seconds.

        Returns:
            How its main process ended.

        Raises:
            WaitFailed: The task is not over in time.
        """
        __tracebackhide__ = True
        return self._wait_for(lambda: self.exit_status if self._is_over() else None, timeout, "its end")

    def kill(self) -> None:
        """Send SIGKILL to all processes of the task, as a kernel without memory does.

        The host of the task stays up, also if it is a container. The launcher notices the failure at once, as
        it does if any task fails.

        Raises:
            ClusterError: The task has ended.
            WaitFailed: The agent of the task does not answer within 10 s.
        """
        self._note_attempts()
        self._send_signal(signal.SIGKILL, to_all=True)

    def signal(self, number: int) -> None:
        """Send a signal to the main process of the task.

        Args:
            number: The number of the signal, such as ``signal.SIGUSR1``.

        Raises:
            ClusterError: The task has ended.
            WaitFailed: The agent of the task does not answer within 10 s.
        """
        self._note_attempts()
        self._send_signal(number, to_all=False)

    def _note_attempts(self) -> None:
        """Note the attempt of each task of the job before a signal, for `wait_restarted`."""
        self._job.attempts = {task.name: task.attempt for task in self._job.tasks}

    def wait_restarted(self, timeout: float = 60.0) -> int:
        """Wait until the task runs again, after the last `kill` or `signal` of any task of the job.

        Use it for other tasks than the killed one as well, because all may start again together.

        Args:
            timeout: The time limit in seconds.

        Returns:
            The number of the new attempt.

        Raises:
            WaitFailed: The task does not run again in time, or the job has ended.
        """
        __tracebackhide__ = True
        # The attempt before the last `kill` or `signal` (`_note_attempts`), or 1 if there was none.
        old_attempt = self._job.attempts.get(self.name, 1)

        def new_attempt() -> int:
            """Return the number of the last attempt after the old one that runs or ran. 0 without any."""
            moves = [event for event in self._job.events if event["event"] == "TaskMoved"]
            of_task = [event for event in moves if event["task"] == self.name]
            attempts = [event["attempt"] for event in of_task if event["state"] == "running"]
            return max((attempt for attempt in attempts if attempt > old_attempt), default=0)

        return self._job.until(new_attempt, f"a new attempt of {self.name}", timeout)

    def stop(self) -> None:
        """Suspend all processes of the task (SIGSTOP) until `resume`, as if its machine hung.

        Raises:
            ClusterError: The task has ended.
            WaitFailed: The agent of the task does not answer within 10 s, or some of its processes do not
                stop within 20 s.
        """
        __tracebackhide__ = True
        # The signal is sent until no process runs: one that forks may have a child that was not there before.
        # The parent of a vfork waits in state D until its child runs its own program, and its SIGSTOP is
        # pending.
        self._signal_until(signal.SIGSTOP, lambda state: state in "TtDZX", "be suspended")

    def resume(self) -> None:
        """Let the processes of the task run on after `stop` (SIGCONT), and return when they do.

        Raises:
            ClusterError: The task has ended.
            WaitFailed: The agent of the task does not answer within 10 s, or some of its processes do not run
                on within 20 s.
        """
        __tracebackhide__ = True
        self._signal_until(signal.SIGCONT, lambda state: state not in "Tt", "go on")

    def cut_network(self) -> None:
        """Disconnect the container of the task from the network of the job, until `mend_network`.

        The connections of the task become silent. The launcher does not notice that: it still shows what the
        task prints, and can stop the task. Other tasks in the same container are cut off, too.

        Raises:
            ClusterError: The task does not run in a container, or has ended.
        """
        container, network = self._container(), network_name(self._job.name)
        inspected = self._docker("inspect", "--type", "container", container)
        connection = json.loads(inspected)[0]["NetworkSettings"]["Networks"].get(network)
        if connection is not None:
            arguments = ["--ip", connection["IPAddress"]]
            for alias in connection.get("Aliases") or ():
                arguments += ["--alias", alias]
            self._reconnect_arguments = [*arguments, network, container]
            self._docker("network", "disconnect", network, container)
        elif not self._reconnect_arguments:  # Otherwise it is disconnected already.
            raise ClusterError(f"the container {container} is not on a network of the job's own")

    def mend_network(self) -> None:
        """Connect the container again after `cut_network`. It keeps its address, so connections work on.

        Raises:
            ClusterError: The task does not run in a container, or has ended.
        """
        self._container()  # It raises the error about a task without a container.
        if self._reconnect_arguments:
            self._docker("network", "connect", *self._reconnect_arguments)
            self._reconnect_arguments = []

    def _container(self) -> str:
        """Return the name of the task's container.

        Raises:
            ClusterError: The task does not run in a container.
        """
        if self._job.environ is None:
            text = "does not run in a container: only the network of those can be cut"
            raise ClusterError(f"{self.name} {text} (start(..., backend='docker:IMAGE'))")
        return container_name(self._job.name, self.host)

    def _docker(self, *arguments: str) -> str:
        """Run ``docker`` with these arguments, and return what it prints.

        Raises:
            ClusterError: The command has failed.
        """
        result = Engine(environ=self._job.environ).docker(*arguments)
        if result.code:
            raise ClusterError(f"{self.name}: its network cannot be changed: {explain(result.fault)}")
        return result.out

    def _signal_until(self, number: int, is_done: Callable[[str], bool], condition: str) -> None:
        """Send a signal to all processes of the task repeatedly, until the state of each is the wanted one.

        Args:
            number: The number of the signal.
            is_done: Returns whether a process in this state (a letter of ``/proc/PID/stat``) is done.
            condition: What the processes are to do, for the message.
        """
        __tracebackhide__ = True

        def all_done() -> bool | None:
            """Send the signal, and return True if all processes are done, otherwise None.

            A task that has ended has no processes left, so all of them are done.
            """
            return all(map(is_done, self._send_signal(number, to_all=True))) or None

        self._wait_for(all_done, _SUSPEND_TIMEOUT_SECONDS, f"all its processes to {condition}")

    def _send_signal(self, number: int, to_all: bool) -> str:
        """Let the agent of the task send a signal, and wait for its answer.

        Args:
            number: The number of the signal.
            to_all: Whether all processes of the task receive it, or only the main one.

        Returns:
            The state of each process afterwards, a letter of ``/proc/PID/stat``. The text is empty if the
            task has ended meanwhile.

        Raises:
            ClusterError: The task has ended.
            WaitFailed: The agent does not answer.
        """
        __tracebackhide__ = True
        # A test may have read the first line of the task before launch says that the task runs.
        seconds = _ANSWER_TIMEOUT_SECONDS
        if self.state is TaskState.STARTING:
            self._wait_for(lambda: self.state is not TaskState.STARTING or None, seconds, "its start")
        if self.exit_status is not None or self.pid is None:
            raise ClusterError(f"{self.name} cannot be signalled: it is {self.described()}")
        earlier_answers = len(self._answers())
        self._job.driver.command({"task": self.name, "signal": int(number), "all": to_all})

        def states() -> str | None:
            """Return the states in the agent's answer, or None if it has not come yet."""
            if answers := self._answers()[earlier_answers:]:
                return str(answers[0]["states"])
            # No answer comes about a task that has ended meanwhile, even if it starts again.
            return "" if self.exit_status is not None else None

        return self._wait_for(states, seconds, f"an answer from the agent of {self.host}")

    def _is_over(self) -> bool:
        """Return whether the task has ended and does not start again, as a failed task may with restarts."""
        return not self._job.running or (self.state.is_over and not self._moved["restarting"])

    def _ended(self) -> str:
        """Return that the task has ended, or an empty text while it runs or may start again."""
        return "and it has ended" if self._is_over() else ""

    def _message(self, text: str) -> str:
        """Return a text with the name, the state and the last lines of the task, for an error."""
        lines = self.last_lines(_MAX_LAST_LINES)
        head = f"{self.name} ({self.described()}): {text}"
        tail = "its last lines:" if lines else "it printed nothing"
        return "\n".join([head, tail, *(f"    {line}" for line in lines)])

    @property
    def _moved(self) -> Mapping[str, Any]:
        """The last event about the state of the task, or an empty mapping if there is none."""
        return self._job._moved.get(self.name, {})

    def _answers(self) -> list[Mapping[str, Any]]:
        """Return the answers of the agent to signals for this task, which are events of the launcher."""
        answers = [event for event in self._job.events if event["event"] == "SignalSent"]
        return [answer for answer in answers if answer["task"] == self.name]

"""One launch that a test has started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from launcher.job import TaskId
from launcher.report import Report
from launcher.runs.growing import shown_lines
from launcher.testing.containers import Containers
from launcher.testing.launching import LauncherProcess
from launcher.testing.reach import Here, InContainer, Reach
from launcher.testing.record import RunRecord
from launcher.testing.tails import tails
from launcher.testing.task import Task
from launcher.testing.trouble import CannotStart, ClusterError, WaitFailed
from launcher.testing.waiting import wait_for

_T = TypeVar("_T")

#: What is written down when not all tasks will be started any more.
_TURNS = {"TaskNotStarted", "TaskSignalled", "StopAsked", "TimeUp", "AgentLost"}


class Job:
    """A cluster that runs, or has run; made by `launcher.testing.Cluster.start`.

    Args:
        process: its launcher.
        record: its folder.
        containers: where its tasks run; ``None``: on this machine, or on hosts.
        bound: seconds that `wait` waits if it is not told how long.
        left_running: it may be left running by the test.
    """

    def __init__(
        self,
        process: LauncherProcess,
        record: RunRecord,
        containers: Containers | None,
        bound: float,
        left_running: bool,
    ) -> None:
        self._process = process
        self._bound = bound
        self._plan: Mapping[str, Any] = {}
        self._report: Report | None = None
        self.record = record
        self.containers = containers
        self.left_running = left_running
        #: Its tasks in the order of the plan.
        self.tasks: tuple[Task, ...] = ()

    def __repr__(self) -> str:
        return f"<Job {self.name}: {'running' if self.running else f'ended with {self.exit_code}'}>"

    def begin(self, seconds: float) -> None:
        """Wait until all its tasks are started, or will not be.

        Raises:
            CannotStart: it ended before there was a plan, or without one task that could be started.
            WaitFailed: it takes longer.
        """
        __tracebackhide__ = True
        try:
            self._plan = self._wait_for(self.record.plan, seconds, "its plan", self._is_over)
        except WaitFailed:
            if self.exit_code is None:
                raise
            raise CannotStart(self.exit_code, self.output) from None
        self.tasks = tuple(Task(self, planned) for planned in self._plan["tasks"])
        self._wait_for(self._has_begun, seconds, "the start of all tasks", self._is_over)
        if self._can_not_start():
            self._wait_for(self._has_ended, seconds, "its end, as tasks could not be started", self._is_over)
        if self.exit_code is not None and self._can_not_start():
            raise CannotStart(self.exit_code, self.output)

    def _can_not_start(self) -> bool:
        """Whether tasks could not be started, and none was: where only the hosts can tell, after the plan."""
        kinds = {event["event"] for event in self.record.events()}
        return "TaskNotStarted" in kinds and "TaskStarted" not in kinds

    def _has_ended(self) -> bool | None:
        return self.exit_code is not None or not self._can_not_start() or None

    def _has_begun(self) -> bool | None:
        events = [event["event"] for event in self.record.events()]
        all_there = events.count("TaskStarted") == len(self.tasks)
        return all_there or bool(_TURNS.intersection(events)) or self.exit_code is not None or None

    # ------------------------------------------------------------------ what it is

    @property
    def name(self) -> str:
        """The run's name, as ``launch ps`` lists it."""
        return str(self._plan.get("job", ""))

    @property
    def run_dir(self) -> Path:
        """The run's folder: ``plan.json``, ``events.jsonl``, ``report.json``, ``logs/``."""
        return Path(self.record.paths.root)

    @property
    def plan(self) -> Mapping[str, Any]:
        """What is in ``plan.json`` (docs/report.md)."""
        return self._plan

    @property
    def addresses(self) -> Mapping[str, Sequence[str]]:
        """The ClusterSpec: ``host:port`` of each task, by role."""
        found: Mapping[str, Sequence[str]] = self._plan["cluster"]
        return found

    def task(self, name: str) -> Task:
        """The task of this name, ``worker/0``.

        Raises:
            KeyError: there is none.
        """
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(f"no task {name!r}; there are {', '.join(task.name for task in self.tasks)}")

    # ------------------------------------------------------------------ how it is

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """What has happened so far: the lines of ``events.jsonl`` (docs/report.md)."""
        return list(self.record.events())

    @property
    def output(self) -> str:
        """What ``launch`` has printed so far, stdout and stderr."""
        return self._process.output

    @property
    def launcher_pid(self) -> int:
        """The process of ``launch``."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether ``launch`` runs."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """What ``launch`` exited with (128 + n: signal n ended it); ``None``: it runs."""
        return self._process.exit_code

    def report(self) -> Report | None:
        """How it ended; ``None``: it has not, or nobody wrote it down."""
        if self._report is None and self.exit_code is not None:
            self._report = self.record.report()
        return self._report

    # ------------------------------------------------------------------ waiting and ending

    def wait(self, timeout: float | None = None) -> Report:
        """Wait for its end.

        Args:
            timeout: seconds; default: as long as its ``timeout`` and ``grace`` say, else a minute.

        Returns:
            How it and each of its tasks ended.

        Raises:
            WaitFailed: it has not ended in time, or without a report (it was killed).
        """
        __tracebackhide__ = True
        return self._wait_for(
            self.report, self._bound if timeout is None else timeout, "its end", self._is_over
        )

    def until(self, condition: Callable[[], _T], what: str = "a condition", timeout: float = 30.0) -> _T:
        """Wait until a condition of the test holds.

        Args:
            condition: called again and again.
            what: what it is, for the message.
            timeout: seconds.

        Returns:
            What it returned.

        Raises:
            WaitFailed: it does not in time, or does not and the job has ended.
        """
        __tracebackhide__ = True
        return self._wait_for(lambda: condition() or None, timeout, what, self._is_over)

    def stop(self) -> None:
        """Ctrl-C: ask it to end, orderly; a second time: at once. `wait` tells how it went."""
        self._process.send(signal.SIGINT)

    def cut_network(self, task: Task | str) -> None:
        """Disconnect the container of a task from the job's network: nothing comes in or goes out.

        The job goes on: what the task prints still comes, and it can be stopped. Its connections are silent,
        until `mend_network`. If other tasks are in the same container, they are cut off too.

        Raises:
            ClusterError: it does not run in a container, or has ended.
        """
        host, containers = self._container(task)
        containers.cut(self.name, host)

    def mend_network(self, task: Task | str) -> None:
        """Connect it again, after `cut_network`: with the same address, so that its connections go on.

        Raises:
            ClusterError: it does not run in a container, or has ended.
        """
        host, containers = self._container(task)
        containers.mend(self.name, host)

    def _container(self, task: Task | str) -> tuple[str, Containers]:
        found = self.task(task) if isinstance(task, str) else task
        if self.containers is None:
            what = "does not run in a container: only the network of those can be cut"
            raise ClusterError(f"{found.name} {what} (start(..., backend='docker:IMAGE'))")
        return found.host, self.containers

    def reach(self, task: TaskId, host: str) -> Reach:
        """What reaches the processes of a task."""
        if self.containers is None:
            return Here(task, self.name, host, self.launcher_pid)
        return InContainer(task, self.name, host, self.containers)

    def end(self) -> None:
        """See to it that it is over, at once; what the end of the test does."""
        self._process.end()

    def remove_containers(self) -> list[str]:
        """Remove containers and network of a launch that could not do it itself: it was killed.

        Returns:
            What should have ended with it, in words.
        """
        if self.containers is None:
            return []
        killed = self._process.was_killed and self.report() is None
        try:
            return self.containers.remove_what_is_left(self._process.identity) if killed else []
        finally:
            self.containers.close()

    def _is_over(self) -> str:
        code = self.exit_code
        return "" if code is None else f"and launch has ended with {code}"

    def _wait_for(
        self, look: Callable[[], _T | None], seconds: float, wanted: str, hopeless: Callable[[], str]
    ) -> _T:
        __tracebackhide__ = True

        def failed(reason: str) -> WaitFailed:
            name = f"job {self.name}".strip()
            return WaitFailed(f"{name}: waited for {wanted}: {reason}\n{self.tails(5)}")

        return wait_for(look, seconds, hopeless, failed)

    # ------------------------------------------------------------------ for the report of a failed test

    def tails(self, lines: int = 20) -> str:
        """The last lines of the launcher and of all tasks."""
        if not self.tasks:
            return "\n".join(["launch:", *(f"    {line}" for line in shown_lines(self.output, lines))])
        states = [(task.name, task.described()) for task in self.tasks]
        return tails(self.record, states, self.output, lines)

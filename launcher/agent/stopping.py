"""The state of a task in the agent, its processes, and how tasks are stopped: all together, step by step.

The agent is a child subreaper and inherits every orphan below it, so all that a task ever started is a
descendant of its main process or of the agent. The task of an orphan is found by its tag
(`launcher.agent.processes`), which it can't lose by accident, else by its session. An orphan without either
belongs to the only task; where there are several, it belongs to none, and ends when the agent closes.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

from launcher.agent import processes
from launcher.agent.processes import Process
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence

SIGKILL = 9
_MAX_UNKILLABLE_REPORTED = 1000
#: How often tasks that are being killed are polled: they may start new processes meanwhile.
POLL_SECONDS = 0.01
#: How often tasks that are asked to end are polled, to find processes that stopped themselves. Every end is
#: noticed without that, as every orphan is a child of the agent.
SLOW_POLL_SECONDS = 0.25

#: Processes by their task. Those of no task have None as key.
Orphans = Dict[Optional[TaskId], List[Process]]


class TaskProcesses:
    """Follows main processes, and finds the other processes of their tasks."""

    def __init__(self) -> None:
        #: Children that the agent started and has not reaped.
        self.own: Set[int] = set()
        #: Tasks by the pids of their main processes (the sessions) and by their tags, which are larger.
        self._tasks: Dict[int, TaskId] = {}
        self._known: Dict[Tuple[int, int], Optional[TaskId]] = {}

    def add(self, task: TaskId, pid: int, tag: int) -> None:
        """Note the main process of a task.

        Args:
            task: The name of the task.
            pid: The main process.
            tag: The tag that all that it starts carries; 0 if it has none.
        """
        self.own.add(pid)
        self._tasks[pid] = task
        if tag:
            self._tasks[tag] = task

    def expect(self, task: TaskId, tag: int) -> None:
        """Note that a process with this tag, which the agent may inherit soon, belongs to a task."""
        self._tasks[tag] = task

    def forget(self, task: TaskId) -> None:
        """Forget a task that is gone."""
        self._tasks = {key: other for key, other in self._tasks.items() if other != task}
        if not self._tasks:
            self._known.clear()

    def orphans(self) -> Orphans:
        """Return the living orphans that the agent has inherited."""
        found: Orphans = {}
        for pid in processes.children_of(os.getpid()):
            process = None if pid in self.own else processes.read_process(pid)
            if process is not None and not process.has_ended:
                found.setdefault(self._owner(process), []).append(process)
        return found

    def may_be_more(self) -> bool:
        """Return whether `orphans` may have missed a process.

        It can only miss an orphan that was inherited meanwhile. Then its parent has ended and was not
        reaped yet.
        """
        return bool(processes.ended_child())

    def members(self, task: RunningTask, orphans: Orphans) -> List[Process]:
        """Return every live process of a task: its main process, its orphans, and their descendants.

        Args:
            task: The task.
            orphans: What `orphans` has returned.
        """
        roots = list(orphans.get(task.id, ()))
        process = None if task.main is None else processes.read_process(task.main)
        if process is not None:
            roots.insert(0, process)
        below = [child for root in roots for child in processes.descendants_of(root.pid)]
        return [process for process in (*roots, *below) if not process.has_ended]

    def _owner(self, process: Process) -> Optional[TaskId]:
        key = (process.pid, process.start)
        if key not in self._known:
            self._known[key] = self._find_owner(process)
        return self._known[key]

    def _find_owner(self, process: Process) -> Optional[TaskId]:
        owner = self._tasks.get(processes.tag_of(process.pid)) or self._tasks.get(process.session)
        tasks = set(self._tasks.values())
        return tasks.pop() if owner is None and len(tasks) == 1 else owner


class StopProgress:
    """How far a task is in its stop sequence: the signal of this step, and when the next step begins.

    Args:
        steps: The steps, each a signal and seconds until the next one.
        now: The time (monotonic).
    """

    def __init__(self, steps: Sequence[Tuple[int, float]], now: float) -> None:
        self._begin(steps, now)

    def _begin(self, steps: Sequence[Tuple[int, float]], now: float) -> None:
        #: The signal of the present step.
        (self.signal, seconds), *self._ahead = steps
        self._until = now + seconds
        #: Whether it was sent and reported.
        self.was_sent = False
        #: The process group that the signal went to.
        self.group: Optional[int] = None

    def advance(self, now: float) -> bool:
        """Go to the next step if its time has come. Returns False if no step is left."""
        if now >= self._until:
            if not self._ahead:
                return False
            self._begin(self._ahead, now)
        return True

    def next_poll(self, now: float) -> float:
        """Return when to poll the task again, which is not after the end of the step."""
        due = min(self._until, now + (POLL_SECONDS if self.signal == SIGKILL else SLOW_POLL_SECONDS))
        return due if due > now else now + POLL_SECONDS


class RunningTask:
    """A task that was started and is not gone.

    Args:
        task: The name of the task.
        attempt: Which start of the task this is.
        pid: The main process, which leads its session and group.
        output: The reading end of what it prints.
        steps: The stop sequence for what it leaves behind.
    """

    def __init__(self, task: TaskId, attempt: int, pid: int, output: int, steps: StopSequence) -> None:
        self.id = task
        self.attempt = attempt
        self.pid = pid
        self.output: Optional[int] = output
        self.steps = steps
        #: Whether the main process was reaped.
        self.has_exited = False
        #: Whether a signal of ours went to it before it was reaped.
        self.was_signalled = False
        #: The most resident bytes of one of its other processes, when the stop began.
        self.peak = 0
        #: Whether no process of the task is left.
        self.is_empty = False
        #: Processes that it left behind and the agent ended.
        self.leftovers: Set[int] = set()
        self.unkillable: Tuple[int, ...] = ()

    @property
    def main(self) -> Optional[int]:
        """The pid of the main process until it is reaped. Then the pid may belong to another process."""
        return None if self.has_exited else self.pid


#: Called with a task, a signal, and how many of its processes were sent the signal.
OnSignalled = Callable[[RunningTask, int, int], None]
_Found = Tuple[RunningTask, StopProgress, List[Process]]


class Stopping:
    """The tasks that are being stopped.

    A signal goes once to each process that exists when its step begins. One that starts later, say to save a
    checkpoint on SIGTERM, is left alone until the next step; SIGKILL goes to all.

    Args:
        task_processes: Finds the processes of a task.
        on_signalled: Called once for each step and task.
    """

    def __init__(self, task_processes: TaskProcesses, *, on_signalled: OnSignalled) -> None:
        self._task_processes = task_processes
        self._on_signalled = on_signalled
        self._stops: Dict[RunningTask, StopProgress] = {}
        self._next = 0.0

    def __bool__(self) -> bool:
        return bool(self._stops)

    def __contains__(self, task: object) -> bool:
        return task in self._stops

    def begin(self, task: RunningTask, steps: StopSequence, now: float) -> None:
        """Stop a task by these steps, from the first one, in place of any other sequence."""
        self._stops[task] = StopProgress(steps, now)
        self._next = now

    def next_due(self) -> Optional[float]:
        """Return when `poll` is due (monotonic), or None if no task is being stopped."""
        return self._next if self._stops else None

    def poll(self, now: float) -> List[RunningTask]:
        """Advance the sequences, send the signals that are due, and find tasks that have ended.

        Returns:
            The tasks that have no process left, or only processes that cannot be killed.
        """
        if not self._stops:
            return []
        done: List[RunningTask] = []
        exhausted = {task for task, stop in self._stops.items() if not stop.advance(now)}
        orphans = self._task_processes.orphans()
        found = [
            (task, stop, self._task_processes.members(task, orphans)) for task, stop in self._stops.items()
        ]
        unsure = self._task_processes.may_be_more()
        _measure(found)
        self._signal_groups(found)
        for task, stop, members in found:
            if task in exhausted and (members or not task.has_exited):
                # Not even SIGKILL helped: it sleeps uninterruptibly; or it is dead, but a debugger holds it.
                unkillable = [process.pid for process in members[:_MAX_UNKILLABLE_REPORTED]]
                task.unkillable = tuple(unkillable or [task.pid])
                task.has_exited = True
                done.append(task)
            elif members or not task.has_exited or unsure:
                self._send(task, stop, members)
            else:
                done.append(task)
        for task in done:
            del self._stops[task]
        self._next = min((stop.next_poll(now) for stop in self._stops.values()), default=now)
        return done

    def _signal_groups(self, found: List[_Found]) -> None:
        """Send signals to the groups of the main processes first: that takes one system call a task."""
        for task, stop, _ in found:
            # Each process that gets SIGABRT must be kept from leaving a core first.
            if task.main is not None and not stop.was_sent and stop.signal != signal.SIGABRT:
                with suppress(OSError):  # it runs as another user by now
                    os.killpg(task.main, stop.signal)
                    stop.group, task.was_signalled = task.main, True

    def _send(self, task: RunningTask, stop: StopProgress, members: List[Process]) -> None:
        due = [] if stop.was_sent and stop.signal != SIGKILL else members
        if stop.signal == SIGKILL:
            processes.kill_groups(due)
        for process in due:
            if stop.was_sent or process.group != stop.group:
                self._send_one(task, process, stop.signal)
        for process in members:
            if process.state == "T":  # stopped: no signal but SIGKILL would reach it
                processes.send(process, signal.SIGCONT)
        if task.has_exited:
            task.leftovers.update(process.pid for process in due)
        if not stop.was_sent and (members or task.was_signalled):
            stop.was_sent = True
            self._on_signalled(task, stop.signal, len(members))

    def _send_one(self, task: RunningTask, process: Process, number: int) -> None:
        if number == signal.SIGABRT:
            _leave_no_core(process.pid)
        if processes.send(process, number) and process.pid == task.main:
            task.was_signalled = True


def _measure(found: List[_Found]) -> None:
    """Measure the memory of processes that a main process has started, before their first signal.

    The kernel adds the memory of a process to that of its parent only if the parent waits for its end. The
    shell of ``sh -c 'cd data; python train.py'`` does not, if both get SIGTERM.
    """
    for task, stop, members in found:
        if not stop.was_sent and task.main is not None:
            peaks = (processes.peak_resident(process.pid) for process in members if process.pid != task.main)
            task.peak = max(task.peak, *peaks, 0)


def _leave_no_core(pid: int) -> None:
    """SIGABRT is sent for the stacks it makes Python print, not for a core of 500 MB."""
    with suppress(OSError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        # 1, not 0: a core that is piped to a program is only left out at exactly 1 (core(5)).
        resource.prlimit(pid, resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))

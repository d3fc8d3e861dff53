"""The state of a task in the agent, its processes, and how tasks are stopped: all together, step by step.

The agent calls `TaskProcesses` and `Stopping`. It is a child subreaper and inherits every orphan below it, so
everything that a task ever started is a descendant of its main process or of the agent. The task of an orphan
is found by its process tag (`launcher.agent.processes`), which it cannot lose by accident, or else by its
session. An orphan that has lost both belongs to the only task of the agent. If there are several tasks, it
belongs to none of them, and is killed when the agent closes.
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
#: Tasks that are being killed are polled this often, because they may start new processes meanwhile.
POLL_SECONDS = 0.01
#: Tasks that were asked to exit are polled this often, to continue processes that are stopped (state T). An
#: exit is noticed without polling, because every orphan is a child of the agent.
SLOW_POLL_SECONDS = 0.25

#: Processes by the tasks to which they belong. The key of those that belong to no task is None.
Orphans = Dict[Optional[TaskId], List[Process]]


class TaskProcesses:
    """Knows the main processes of the tasks, and finds all other processes that belong to a task."""

    def __init__(self) -> None:
        """Record the processes of no task at first."""
        #: The pids of the children that the agent has started and not reaped.
        self.own_children: Set[int] = set()
        #: The tasks by the pids of their main processes, which are also the ids of their sessions, and by
        #: their process tags. A tag is larger than any pid.
        self._tasks: Dict[int, TaskId] = {}
        #: The tasks that were found for orphans, by the pids and start times of these.
        self._owners: Dict[Tuple[int, int], Optional[TaskId]] = {}

    def add(self, task: TaskId, pid: int, tag: int) -> None:
        """Note the main process of a task.

        Args:
            task: The name of the task.
            pid: The pid of its main process.
            tag: The process tag, a number that its processes inherit as one of their limits. 0 if they carry
                none.
        """
        self.own_children.add(pid)
        self._tasks[pid] = task
        # The process cannot be found by its tag if this user may not set one.
        if tag:
            self._tasks[tag] = task

    def expect(self, task: TaskId, tag: int) -> None:
        """Note that processes with this tag belong to a task, before its main process is known.

        A fork server forks the task. The agent may inherit its process before it has been told the pid.
        """
        self._tasks[tag] = task

    def forget(self, task: TaskId) -> None:
        """Forget a task that is gone. When no task is left, forget to which task each orphan belonged."""
        self._tasks = {key: other for key, other in self._tasks.items() if other != task}
        if not self._tasks:
            self._owners.clear()

    def orphans(self) -> Orphans:
        """Return the living processes that the agent has inherited, by the task to which they belong.

        An orphan is a child of the agent that the agent has not started itself: its parent has ended, and
        the agent is a child subreaper.

        Returns:
            The orphans of each task. The key None stands for those of which the task is not known.
        """
        by_task: Orphans = {}
        for pid in processes.children_of(os.getpid()):
            process = None if pid in self.own_children else processes.read_process(pid)
            if process is not None and not process.has_ended:
                by_task.setdefault(self._owner(process), []).append(process)
        return by_task

    def may_be_more(self) -> bool:
        """Return whether `orphans`, which was called just before, may have missed a process.

        It can only miss an orphan that the agent inherited during the call. Then the parent of the orphan has
        ended, and was not reaped yet.
        """
        return bool(processes.ended_child())

    def members(self, task: RunningTask, orphans: Orphans) -> List[Process]:
        """Return every living process of a task: its main process, its orphans, and their descendants.

        Args:
            task: The task.
            orphans: The orphans of all tasks, from `orphans`.
        """
        roots = list(orphans.get(task.id, ()))
        process = None if task.main is None else processes.read_process(task.main)
        if process is not None:
            roots.insert(0, process)
        below = [child for root in roots for child in processes.descendants_of(root.pid)]
        return [process for process in (*roots, *below) if not process.has_ended]

    def _owner(self, process: Process) -> Optional[TaskId]:
        """Return the task to which an orphan belongs, which never changes."""
        # The pid alone could belong to another process later.
        key = (process.pid, process.start)
        if key not in self._owners:
            self._owners[key] = self._find_owner(process)
        return self._owners[key]

    def _find_owner(self, process: Process) -> Optional[TaskId]:
        """Return the task to which an orphan belongs, or None if that cannot be known.

        An orphan is a child of the agent whose own parent has ended. Its process tag or its session, which it
        has inherited from the main process of the task, tells the task.
        """
        # The id of a session is the pid of the main process that has started it.
        owner = self._tasks.get(processes.tag_of(process.pid)) or self._tasks.get(process.session)
        tasks = set(self._tasks.values())
        # With a single task, an orphan that has lost both its tag and its session can be nobody else's.
        return tasks.pop() if owner is None and len(tasks) == 1 else owner


class StopProgress:
    """How far a task is in its stop sequence: the signal of the present step, and when the next one starts.

    Args:
        steps: The steps of the sequence, each a signal and the seconds until the next step.
        now: The time (monotonic).
    """

    def __init__(self, steps: Sequence[Tuple[int, float]], now: float) -> None:
        """Start the first step of a stop sequence."""
        self._begin_sequence(steps, now)

    def _begin_sequence(self, steps: Sequence[Tuple[int, float]], now: float) -> None:
        """Start the first of these steps. The others follow when `advance` is called in time.

        Args:
            steps: Signals, each with the seconds until the next one is due.
            now: The time (monotonic).
        """
        #: The signal of the present step.
        (self.signal, seconds), *self._next_steps = steps
        #: When the next step is due (monotonic).
        self._until = now + seconds
        #: Whether the signal was sent and reported.
        self.was_sent = False
        #: The process group that the signal of this step was sent to as a whole. None means that its
        #: processes are signalled one by one.
        self.group: Optional[int] = None

    def advance(self, now: float) -> bool:
        """Go to the next step if the time of the present one is over.

        Args:
            now: The time (monotonic).

        Returns:
            False if the time of the last step is over, otherwise True.
        """
        if now >= self._until:
            if not self._next_steps:
                return False
            self._begin_sequence(self._next_steps, now)
        return True

    def next_poll(self, now: float) -> float:
        """Return when to poll the task again (monotonic), which is not later than the end of the step."""
        due = min(self._until, now + (POLL_SECONDS if self.signal == SIGKILL else SLOW_POLL_SECONDS))
        # If the step is over already, the next poll advances to the next one.
        return due if due > now else now + POLL_SECONDS


class RunningTask:
    """A task that was started and is not gone. The parts of the agent keep what they know of it here.

    Args:
        task: The name of the task.
        attempt: The number of this start of the task.
        pid: The pid of the main process, which leads its session and its process group.
        output: The descriptor from which the output of the task is read.
        steps: The stop sequence for processes that the main process leaves behind when it exits.
    """

    def __init__(self, task: TaskId, attempt: int, pid: int, output: int, steps: StopSequence) -> None:
        """Record a task that was just started."""
        #: The name of the task.
        self.id = task
        self.attempt = attempt
        self.pid = pid
        #: The descriptor from which the output is read, or None after it was closed.
        self.output: Optional[int] = output
        self.steps = steps
        #: The GPUs that launch has assigned to it, as in ``CUDA_VISIBLE_DEVICES``. Empty if there are none.
        self.gpus = ""
        #: Whether the main process was reaped.
        self.has_exited = False
        #: Whether the agent has sent a signal to the main process.
        self.was_signalled = False
        #: How many bytes the largest other process had in physical memory at most, until the stop started.
        self.peak = 0
        #: Whether no process of the task is left.
        self.is_empty = False
        #: The pids of the processes that the main process has left behind, and that the agent has stopped.
        self.leftovers: Set[int] = set()
        #: The pids of the processes that not even SIGKILL has ended.
        self.unkillable: Tuple[int, ...] = ()

    @property
    def main(self) -> Optional[int]:
        """The pid of the main process, or None after it was reaped, when another process may have the pid."""
        return None if self.has_exited else self.pid


#: Called with a task, a signal, and the number of its processes that were sent the signal.
OnSignalled = Callable[[RunningTask, int, int], None]
#: A task that is being stopped, how far it is, and its living processes.
_StopStatus = Tuple[RunningTask, StopProgress, List[Process]]


class Stopping:
    """Stops tasks by their stop sequences.

    The signal of a step is sent once to each process that exists when the step starts. A process that starts
    later, say to save a checkpoint on SIGTERM, is left alone until the next step. SIGKILL is sent to all.

    Args:
        task_processes: Finds the processes of a task.
        on_signalled: Called once for each step of each task.
    """

    def __init__(self, task_processes: TaskProcesses, *, on_signalled: OnSignalled) -> None:
        """Prepare to stop tasks, of which none is being stopped at first."""
        self._task_processes = task_processes
        self._on_signalled = on_signalled
        #: The tasks that are being stopped, and how far each of them is.
        self._stops: Dict[RunningTask, StopProgress] = {}
        #: When to poll them again (monotonic). It means nothing while no task is being stopped.
        self._next_poll = 0.0

    def __bool__(self) -> bool:
        """Return whether any task is being stopped."""
        return bool(self._stops)

    def __contains__(self, task: object) -> bool:
        """Return whether a task is being stopped."""
        return task in self._stops

    def begin(self, task: RunningTask, steps: StopSequence, now: float) -> None:
        """Start to stop a task by a stop sequence, which replaces the one that may be under way.

        Args:
            task: The task.
            steps: The sequence.
            now: The time (monotonic).
        """
        self._stops[task] = StopProgress(steps, now)
        self._next_poll = now

    def next_due(self) -> Optional[float]:
        """Return when `poll` is due (monotonic), or None if no task is being stopped."""
        return self._next_poll if self._stops else None

    def poll(self, now: float) -> List[RunningTask]:
        """Advance the stop sequences, send the signals that are due, and find tasks that have ended.

        For each task that is being stopped:

        - Its last step, SIGKILL, is over, and processes are left: they cannot be killed. It is done with.
        - Processes are left, or some may have been missed: they are sent the signal of the present step.
        - No process is left: it is done with.

        Args:
            now: The time (monotonic).

        Returns:
            The tasks that have no process left, or only processes that cannot be killed. They are no longer
            being stopped.
        """
        if not self._stops:
            return []
        done: List[RunningTask] = []
        # The time of their last step is over. The others are in their present step now.
        exhausted = {task for task, stop in self._stops.items() if not stop.advance(now)}
        # Orphans are processes of tasks whose parents have exited. `members` adds those of each task.
        orphans = self._task_processes.orphans()
        statuses = [
            (task, stop, self._task_processes.members(task, orphans)) for task, stop in self._stops.items()
        ]
        # An orphan that the agent has inherited while they were listed may be missing.
        may_be_incomplete = self._task_processes.may_be_more()
        # Memory is measured before the first signal, because the processes free it when they end. The result
        # is kept in the tasks, for the report of their end.
        _measure(statuses)
        # Process groups of new steps come first, by one system call each. `_send` signals the others.
        self._signal_groups(statuses)
        for task, stop, members in statuses:
            if task in exhausted and (members or not task.has_exited):
                # Not even SIGKILL has helped. The process sleeps uninterruptibly, or a debugger keeps it from
                # being reaped.
                unkillable = [process.pid for process in members[:_MAX_UNKILLABLE_REPORTED]]
                task.unkillable = tuple(unkillable or [task.pid])
                # Nobody waits for the main process any longer. If it ends later, that is not reported.
                task.has_exited = True
                done.append(task)
            # The usual case. `_send` sends nothing to processes that have had the signal of this step.
            elif members or not task.has_exited or may_be_incomplete:
                self._send(task, stop, members)
            else:
                done.append(task)
        for task in done:
            del self._stops[task]
        self._next_poll = min((stop.next_poll(now) for stop in self._stops.values()), default=now)
        return done

    def _signal_groups(self, statuses: List[_StopStatus]) -> None:
        """Send the signals of new steps to the process groups of the main processes.

        This takes one system call for each task. The other processes are signalled one by one afterwards.

        Args:
            statuses: The tasks that are being stopped. Their `StopProgress` notes which group was signalled.
        """
        for task, stop, _ in statuses:
            # SIGABRT is sent to one process after another, because each must be kept from dumping core
            # before.
            if task.main is not None and not stop.was_sent and stop.signal != signal.SIGABRT:
                # The process may run as another user by now.
                with suppress(OSError):
                    os.killpg(task.main, stop.signal)
                    stop.group, task.was_signalled = task.main, True

    def _send(self, task: RunningTask, stop: StopProgress, members: List[Process]) -> None:
        """Send the signal of a task's step to those of its processes that have not been sent it.

        In the first poll of a step (``stop.was_sent`` is false) these are all of its processes. Later they
        are none, so a process which was started meanwhile, say to save a checkpoint, is left alone.
        SIGKILL is sent to all in every poll, because the processes may start new ones.

        Args:
            task: The task.
            stop: How far it is in its stop sequence.
            members: Its living processes.
        """
        due = [] if stop.was_sent and stop.signal != SIGKILL else members
        # A process that forks again and again can be killed only with its process group.
        if stop.signal == SIGKILL:
            processes.kill_groups(due)
        for process in due:
            # In the first poll of a step, this group was just signalled as a whole.
            if stop.was_sent or process.group != stop.group:
                self._send_one(task, process, stop.signal)
        # This comes last, so that a stopped process has its signal before it continues.
        for process in members:
            # Of all signals, a process that is stopped ("T") reacts to SIGKILL only.
            if process.state == "T":
                processes.send(process, signal.SIGCONT)
        # The main process has exited, so these are what it has left behind, which is reported at the end.
        if task.has_exited:
            task.leftovers.update(process.pid for process in due)
        # A step without any process to signal is not reported, unless the main process has got its signal.
        if not stop.was_sent and (members or task.was_signalled):
            stop.was_sent = True
            self._on_signalled(task, stop.signal, len(members))

    def _send_one(self, task: RunningTask, process: Process, number: int) -> None:
        """Send a signal to one process of a task, and note whether it is the main process."""
        if number == signal.SIGABRT:
            _leave_no_core(process.pid)
        if processes.send(process, number) and process.pid == task.main:
            task.was_signalled = True


def _measure(statuses: List[_StopStatus]) -> None:
    """Record the largest memory of the processes that main processes have started, before their first signal.

    The kernel reports the memory of a process to its parent only if the parent waits for it. The shell of
    ``sh -c 'cd data; python train.py'`` does not wait if both are sent SIGTERM.

    Args:
        statuses: The tasks that are being stopped, with their living processes. The memory is recorded in
            ``RunningTask.peak``.
    """
    for task, stop, members in statuses:
        if not stop.was_sent and task.main is not None:
            peaks = (processes.peak_resident(process.pid) for process in members if process.pid != task.main)
            task.peak = max(task.peak, *peaks, 0)


def _leave_no_core(pid: int) -> None:
    """Keep a process that will be sent SIGABRT from dumping core.

    The signal makes Python print its stacks. Nobody wants a core of 500 MB with them.
    """
    with suppress(OSError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        # A core that is piped to a program is left out only if the limit is 1, not 0 (core(5)). A negative
        # hard limit means that there is none.
        resource.prlimit(pid, resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))

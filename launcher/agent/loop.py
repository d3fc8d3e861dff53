"""The agent's loop: orders, ended processes and output come in; nothing in it ever waits for one of them.

It is one thread: what is read about a process stays true until this thread reaps it, so a signal
never goes to a pid that became somebody else's.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import time
from typing import Callable, Dict, List, Optional, Sequence

from launcher import wire
from launcher.agent import kernel
from launcher.agent.ending import Endings
from launcher.agent.family import Family
from launcher.agent.gpus import GpuProbe
from launcher.agent.hostfacts import host_facts
from launcher.agent.limits import FileLimit
from launcher.agent.oom import OomWatch
from launcher.agent.pipe import HIGH_WATER, LOW_WATER, Pipe
from launcher.agent.ports import PortKeeper
from launcher.agent.spawn import OUR_FAULT, CannotStart, spawn
from launcher.agent.task import SIGKILL, Task
from launcher.model import facts, orders
from launcher.model.task import TASK_MARK, TaskId

#: How tasks are ended whose launcher is gone: nobody reads their logs any more, so it is short.
ABANDONED: orders.Ladder = ((signal.SIGTERM, 1.0), (SIGKILL, 5.0))
#: Seconds that output may stay open after the last process of a task is over.
DRAIN = 1.0
#: Seconds for the last facts to be taken when the agent closes.
FAREWELL = 5.0
_CHUNK = 256 * 1024
#: Reads that empty a pipe (64 KiB) and see its end at once.
_LAST_READS = 3


class Agent:
    """The agent of ``host``.

    Args:
        host: the host's name in the plan.
        reading, writing: file descriptors of the link.
        guardian: file descriptor that is at its end when the guardian is gone.
    """

    def __init__(self, host: str, reading: int, writing: int, guardian: int) -> None:
        kernel.become_subreaper("launch-agent")
        self._host = host
        self._reading = reading
        self._guardian = guardian
        self._decoder = wire.Decoder(host)
        self._pipe = Pipe(writing)
        self._selector = selectors.DefaultSelector()
        self._ports = PortKeeper()
        self._family = Family()
        self._endings = Endings(self._family, self._tell_signal)
        self._tasks: Dict[TaskId, Task] = {}
        self._by_pid: Dict[int, Task] = {}
        self._oom = OomWatch()
        self._limit = FileLimit()
        self._gpus = GpuProbe()
        self._paused = False
        self._writing = False
        self._closing = False
        self._abandoned = False
        self._orders: Dict[type, Callable[..., None]] = {
            orders.HoldPorts: self._hold_ports,
            orders.StartTask: self._start,
            orders.StopTasks: self._stop,
            orders.CloseAgent: self._close,
        }

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Serve until told to close, or until the launcher is gone; nothing is left then."""
        self._listen()
        self._pipe.fact(facts.AgentReady(self._host, time.time(), os.getpid(), host_facts()))
        while not (self._closing and not self._tasks):
            for key, _ in self._selector.select(self._seconds_to_wait()):
                key.data()
            self._on_time()
            self._watch_pipe()
        self._end_strays()
        self._say_goodbye()

    def _listen(self) -> None:
        """Listen to the link, to ended children, to SIGTERM and to the guardian."""
        waking, woken = os.pipe()
        for fd in (waking, woken):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, _nothing)
        self._wake = waking
        os.set_blocking(self._reading, False)
        self._watch(waking, self._on_signal)
        self._watch(self._reading, self._on_orders)
        self._watch(self._guardian, self._on_guardian)
        if self._gpus.output is not None and self._gpus.pid is not None:
            self._family.ignore(self._gpus.pid)
            self._watch(self._gpus.output, self._on_gpus)

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _seconds_to_wait(self) -> Optional[float]:
        now = time.monotonic()
        times = [task.drain_until for task in self._tasks.values() if task.drain_until is not None]
        if self._gpus.output is not None:
            times.append(self._gpus.until)
        ending = self._endings.next_look(now)
        if ending is not None:
            times.append(ending)
        return max(0.0, min(times) - now) if times else None

    def _on_time(self) -> None:
        now = time.monotonic()
        ending = self._endings.next_look(now)
        if ending is not None and ending <= now:
            self._look_at_endings()
        for task in list(self._tasks.values()):
            if task.drain_until is not None and task.drain_until <= now:
                self._drain_is_over(task, now)
        if self._gpus.output is not None and self._gpus.until <= now:
            self._gpus_are_over()

    def _watch_pipe(self) -> None:
        """Ask to be woken when the link takes bytes again; pause the tasks' output while too many wait."""
        wanted = self._pipe.pending > 0
        if wanted and not self._writing:
            self._selector.register(self._pipe.fd, selectors.EVENT_WRITE, self._pipe.flush)
        elif self._writing and not wanted:
            self._selector.unregister(self._pipe.fd)
        self._writing = wanted
        if not self._paused and self._pipe.pending > HIGH_WATER:
            self._pause(True)
        elif self._paused and self._pipe.pending < LOW_WATER:
            self._pause(False)
        if self._pipe.broken:
            self._abandon()

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        for task in self._tasks.values():
            if task.output is not None and paused:
                self._selector.unregister(task.output)
            elif task.output is not None:
                self._listen_to(task, task.output)

    # ------------------------------------------------------------------ the link

    def _on_orders(self) -> None:
        try:
            data = os.read(self._reading, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(self._reading)
            self._abandon()
            return
        for order in self._decoder.feed(data):
            self._orders[type(order)](order)

    def _abandon(self) -> None:
        """The launcher is gone, or we are to go: end everything, then ourselves."""
        if not self._abandoned:
            self._abandoned = self._closing = True
            self._end(list(self._tasks.values()), ABANDONED)

    def _on_guardian(self) -> None:
        self._selector.unregister(self._guardian)
        self._abandon()

    def _hold_ports(self, order: orders.HoldPorts) -> None:
        self._limit.make_room(len(order.tasks))
        try:
            ports = {task: self._ports.hold(task) for task in order.tasks}
        except OSError as error:
            self._pipe.fact(facts.PortsRefused(self._host, time.time(), error.strerror or str(error)))
            return
        self._pipe.fact(facts.PortsHeld(self._host, time.time(), ports))

    def _close(self, _: orders.CloseAgent) -> None:
        self._closing = True
        self._end(list(self._tasks.values()), ABANDONED)

    # ------------------------------------------------------------------ starting

    def _start(self, order: orders.StartTask) -> None:
        try:
            started = spawn(order.argv, order.env, order.workdir)
        except CannotStart as fault:
            self._not_started(order, fault.code, fault.why)
            return
        except (OSError, ValueError) as fault:
            self._not_started(order, OUR_FAULT, str(fault))
            return
        self._limit.restore(started.pid)
        task = Task(order.task, order.attempt, started.pid, started.output, order.ladder)
        self._tasks[task.id] = self._by_pid[task.pid] = task
        self._family.add(task.id, task.pid, order.env.get(TASK_MARK, task.id))
        if not self._paused:
            self._listen_to(task, started.output)
        self._pipe.fact(facts.TaskStarted(self._host, time.time(), task.id, task.attempt, task.pid))
        if self._abandoned:
            self._end([task], ABANDONED)

    def _not_started(self, order: orders.StartTask, code: int, why: str) -> None:
        self._ports.release(order.task)
        now = time.time()
        self._pipe.fact(facts.TaskNotStarted(self._host, now, order.task, order.attempt, code, why))

    def _listen_to(self, task: Task, output: int) -> None:
        self._watch(output, lambda: self._on_output(task))

    # ------------------------------------------------------------------ output

    def _on_output(self, task: Task) -> None:
        if task.output is None:
            return
        try:
            data = os.read(task.output, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._pipe.output(task.id, task.attempt, data)
            if self._pipe.pending > HIGH_WATER:
                self._watch_pipe()
        else:
            self._close_output(task)

    def _close_output(self, task: Task) -> None:
        if task.output is not None:
            if not self._paused:
                self._selector.unregister(task.output)
            os.close(task.output)
            task.output = None
        self._gone_if_done(task)

    def _drain_is_over(self, task: Task, now: float) -> None:
        if self._paused:  # what it printed has not been read yet: that is our doing
            task.drain_until = now + DRAIN
        else:
            self._close_output(task)

    # ------------------------------------------------------------------ ended processes

    def _on_signal(self) -> None:
        if signal.SIGTERM in _drain(self._wake):
            self._abandon()
        self._look_at_ended()

    def _look_at_ended(self) -> None:
        exited = self._reap()
        if not (exited or self._endings):
            return
        orphans = self._family.orphans()
        for task in exited:
            if task.ending is None and orphans.get(task.id):
                self._end_leftovers(task)
        self._look_at_endings(exited)

    def _reap(self) -> List[Task]:
        """Take the status of every ended child: main processes are told, adopted ones just vanish."""
        exited = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return exited
            if pid == 0:
                return exited
            task = self._by_pid.pop(pid, None)
            if task is not None:
                self._on_exit(task, status, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
                exited.append(task)

    def _on_exit(self, task: Task, status: int, peak: int, cpu: float) -> None:
        task.exited = True
        self._family.main_ended(task.pid)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        suspect = number == SIGKILL and not task.signalled
        oom = self._oom.evidence(task.pid) if suspect else ""
        now = time.time()
        self._pipe.fact(
            facts.TaskExited(self._host, now, task.id, task.attempt, code, number, peak, cpu, oom)
        )

    def _end_leftovers(self, task: Task) -> None:
        self._endings.begin(task, task.ladder, time.monotonic())

    def _look_at_endings(self, exited: Sequence[Task] = ()) -> None:
        self._endings.step(time.monotonic())
        for task in {id(task): task for task in (*exited, *self._endings.done())}.values():
            if task.exited and task.ending is None:
                self._processes_are_over(task)

    def _processes_are_over(self, task: Task) -> None:
        task.empty = True
        task.drain_until = time.monotonic() + DRAIN
        for _ in range(_LAST_READS):
            if task.output is not None and not self._paused:
                self._on_output(task)
        self._gone_if_done(task)

    def _gone_if_done(self, task: Task) -> None:
        if not task.empty or task.output is not None or task.id not in self._tasks:
            return
        del self._tasks[task.id]
        self._family.forget(task.id)
        self._ports.release(task.id)
        now = time.time()
        left = len(task.leftovers)
        self._pipe.fact(facts.TaskGone(self._host, now, task.id, task.attempt, left, task.unkillable))

    # ------------------------------------------------------------------ stopping

    def _stop(self, order: orders.StopTasks) -> None:
        self._end([self._tasks[task] for task in order.tasks if task in self._tasks], order.ladder)

    def _end(self, tasks: List[Task], ladder: orders.Ladder) -> None:
        self._look_at_ended()  # so that no signal is said to have ended what was over before
        now = time.monotonic()
        for task in tasks:
            if not task.empty:
                self._endings.begin(task, ladder, now)
        self._look_at_endings()

    def _tell_signal(self, task: Task, number: int, count: int) -> None:
        now = time.time()
        self._pipe.fact(facts.TaskSignalled(self._host, now, task.id, task.attempt, number, count))

    def _end_strays(self) -> None:
        """Kill what belongs to no task: it cleared its environment and left its session."""
        self._ports.release_all()
        until = time.monotonic() + ABANDONED[-1][1]
        while time.monotonic() < until:
            left = [process for process in kernel.descendants_of(os.getpid()) if not process.ended]
            if not left:
                return
            for process in left:
                kernel.send(process, SIGKILL)
            self._reap()
            time.sleep(0.002)

    def _say_goodbye(self) -> None:
        self._pipe.fact(facts.AgentClosed(self._host, time.time()))
        until = time.monotonic() + FAREWELL
        while self._pipe.pending and time.monotonic() < until:
            select.select([], [self._pipe.fd], [], 0.05)
            self._pipe.flush()

    # ------------------------------------------------------------------ GPUs

    def _on_gpus(self) -> None:
        if self._gpus.read():
            self._gpus_are_over()

    def _gpus_are_over(self) -> None:
        if self._gpus.output is not None:
            self._selector.unregister(self._gpus.output)
        gpus = self._gpus.close()
        if gpus:
            self._pipe.fact(facts.HostGpus(self._host, time.time(), gpus))


def _nothing(*_: object) -> None:
    """A signal handler: the wake-up pipe does the work."""


def _drain(fd: int) -> bytes:
    """The numbers of the signals that woke us."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""

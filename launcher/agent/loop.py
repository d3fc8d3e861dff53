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
from typing import TYPE_CHECKING

from launcher import events, wire
from launcher.agent.deaths import Deaths
from launcher.agent.ending import Endings
from launcher.agent.family import Family
from launcher.agent.gpus import ask_for_gpus, read_gpus
from launcher.agent.hostfacts import host_facts
from launcher.agent.inquiry import Inquiries
from launcher.agent.limits import Limits
from launcher.agent.old_spawn import CannotStart, Spawner
from launcher.agent.oom import OomWatch
from launcher.agent.outputs import Outputs
from launcher.agent.pipe import Pipe
from launcher.agent.ports import PortKeeper
from launcher.agent.ports import explain_refusal as refusal
from launcher.agent.task import SIGKILL, Task
from launcher.job import TaskId
from launcher.processes import kernel

if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Sequence

#: How tasks are ended whose launcher is gone: nobody reads their logs any more, so it is short.
ABANDONED: events.Ladder = ((signal.SIGTERM, 1.0), (SIGKILL, 5.0))
#: Seconds for the last facts to be taken when the agent closes.
FAREWELL = 5.0


class Agent:
    """The agent of ``host``.

    Args:
        host: the host's name in the plan.
        number: what tells its watermarks from those of other agents.
        reading, writing: file descriptors of the link.
        guardian: file descriptor that is at its end when the guardian is gone.
    """

    def __init__(self, host: str, number: int, reading: int, writing: int, guardian: int) -> None:
        kernel.become_subreaper("launch-agent")
        kernel.keep_reserve()
        self._host = host
        self._reading = reading
        self._guardian = guardian
        self._decoder = wire.Decoder(host)
        self._pipe = Pipe(writing)
        self._selector = selectors.DefaultSelector()
        self._outputs = Outputs(self._selector, self._pipe, self._gone_if_done)
        self._limits = Limits(number)
        self._ports = PortKeeper(self._limits.keep)
        self._family = Family()
        self._endings = Endings(self._family, self._tell_signal)
        self._tasks: Dict[TaskId, Task] = {}
        self._by_pid: Dict[int, Task] = {}
        self._oom = OomWatch()
        self._deaths = Deaths(self._limits.keep)
        self._spawner = Spawner(self._limits)
        self._inquiries = Inquiries(self._selector, self._family.ignore)
        self._writing = False
        self._closing = False
        self._cut_short = False
        self._orders: Dict[type, Callable[..., None]] = {
            events.HoldPorts: self._hold_ports,
            events.TryPeers: self._try_peers,
            events.StartTask: self._start,
            events.StopTasks: self._stop,
            events.HoldOutput: lambda order: self._pipe.hold(order.on),
            events.CloseAgent: lambda _: self._end_all(),
        }

    # ------------------------------------------------------------------ the loop

    def run(self) -> int:
        """Serve until told to close, or until the launcher is gone; nothing is left then.

        Returns:
            Exit code: 0 if that is what ended it, and nothing else did.
        """
        self._listen()
        self._pipe.fact(events.AgentReady(self._host, time.time(), os.getpid(), host_facts()))
        while not (self._closing and not self._tasks):
            ready = self._selector.select(self._seconds_to_wait())
            for key, _ in sorted(ready, key=lambda event: event[0].fd not in self._urgent):
                key.data()
            self._on_time()
            self._watch_pipe()
        self._end_strays()
        self._say_goodbye()
        return 1 if self._cut_short else 0

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
        self._watch(self._deaths.fileno(), self._look_at_ended)
        self._watch(self._reading, self._on_orders)
        self._watch(self._guardian, self._on_guardian)
        #: Served before what tasks print: they may print much.
        self._urgent = frozenset(self._selector.get_map())
        self._inquiries.begin(ask_for_gpus(self._spawner), self._tell_gpus)

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _seconds_to_wait(self) -> Optional[float]:
        times = [self._endings.next_look(), self._outputs.next_end(), self._inquiries.next_end()]
        due = [at for at in times if at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _on_time(self) -> None:
        now = time.monotonic()
        look = self._endings.next_look()
        if look is not None and look <= now:
            self._look_at_endings()
        self._inquiries.on_time(now)
        self._outputs.on_time(now)

    def _watch_pipe(self) -> None:
        """Ask to be woken when the link takes bytes again, while some wait."""
        wanted = self._pipe.waiting
        if wanted and not self._writing:
            self._selector.register(self._pipe.fd, selectors.EVENT_WRITE, self._pipe.flush)
            self._writing = True
        elif not wanted:
            self._stop_writing()
        self._outputs.heed_the_link()
        if self._pipe.broken:
            self._end_all()

    def _stop_writing(self) -> None:
        if self._writing:
            self._selector.unregister(self._pipe.fd)
            self._writing = False

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
            self._outputs.hurry()
            self._pipe.hold(False)
            self._end_all()
            return
        for order in self._decoder.feed(data):
            self._orders[type(order)](order)

    def _end_all(self) -> None:
        """We are to close, or the launcher is gone: end everything, then ourselves."""
        if not self._closing:
            self._closing = True
            self._end(list(self._tasks.values()), ABANDONED)

    def _cut(self, why: str) -> None:
        """Somebody else ends us: the launcher must see the end of the link, and no task's end as its own."""
        if not self._cut_short:
            self._cut_short = True
            try:
                os.write(2, f"{why}\n".encode())
            except OSError:  # whoever read it is gone too
                pass
            self._stop_writing()
            self._pipe.hang_up()
            self._end_all()

    def _on_guardian(self) -> None:
        self._selector.unregister(self._guardian)
        self._cut("its guardian is gone")

    def _hold_ports(self, order: events.HoldPorts) -> None:
        self._limits.make_room(len(order.tasks))
        try:
            ports = {task: self._ports.hold(task) for task in order.tasks}
        except OSError as error:
            for task in order.tasks:
                self._ports.release(task)
            self._pipe.fact(events.PortsRefused(self._host, time.time(), refusal(error)))
            return
        self._pipe.fact(events.PortsHeld(self._host, time.time(), ports))

    # ------------------------------------------------------------------ starting

    def _start(self, order: events.StartTask) -> None:
        try:
            what = (order.argv, order.env, order.workdir, order.venv, order.script)
            started = self._spawner.spawn(*what)
        except CannotStart as fault:
            self._not_started(order, fault.code, fault.why)
            return
        task = Task(order.task, order.attempt, started.pid, started.output, order.ladder)
        self._tasks[task.id] = self._by_pid[task.pid] = task
        self._family.add(task.id, task.pid, started.watermark)
        if self._limits.roomy:
            self._deaths.watch(task.pid)
        self._outputs.add(task)
        self._pipe.fact(events.TaskStarted(self._host, time.time(), task.id, task.attempt, task.pid))
        if self._closing:
            self._end([task], ABANDONED)

    def _not_started(self, order: events.StartTask, code: int, why: str) -> None:
        self._ports.release(order.task)
        now = time.time()
        self._pipe.fact(events.TaskNotStarted(self._host, now, order.task, order.attempt, code, why))

    # ------------------------------------------------------------------ ended processes

    def _on_signal(self) -> None:
        if signal.SIGTERM in _drain(self._wake):
            self._cut("it was sent SIGTERM")
        self._look_at_ended()

    def _look_at_ended(self) -> None:
        exited = self._reap()
        if not (exited or self._endings):
            return
        orphans = self._family.orphans()
        unsure = self._family.may_be_more()
        for task in exited:
            if task.ending is None and (unsure or orphans.get(task.id)):
                self._endings.begin(task, task.ladder, time.monotonic())
        self._look_at_endings(exited)

    def _reap(self) -> List[Task]:
        """Take the status of every ended child: main processes are told, adopted ones just vanish."""
        exited: List[Task] = []
        while True:
            somebody, tasks = kernel.ended_child(), self._deaths.in_order()
            if not (somebody or tasks):
                return exited
            for pid in tasks or (somebody,):
                self._reap_one(pid, exited)

    def _reap_one(self, pid: int, exited: List[Task]) -> None:
        self._deaths.forget(pid)
        got, status, usage = os.wait4(pid, os.WNOHANG)
        if not got:  # a debugger has it: we are told when he lets go
            return
        self._family.child_ended(pid)
        self._inquiries.reaped(pid)
        task = self._by_pid.pop(pid, None)
        if task is not None and not task.exited:
            self._on_exit(task, status, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
            exited.append(task)

    def _on_exit(self, task: Task, status: int, peak: int, cpu: float) -> None:
        task.exited = True
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        suspect = number == SIGKILL and not task.signalled
        oom = self._oom.evidence(task.pid) if suspect else ""
        now = time.time()
        self._pipe.fact(
            events.TaskExited(self._host, now, task.id, task.attempt, code, number, peak, cpu, oom)
        )

    def _look_at_endings(self, exited: Sequence[Task] = ()) -> None:
        self._endings.step(time.monotonic())
        for task in {id(task): task for task in (*exited, *self._endings.done())}.values():
            if task.exited and task.ending is None:
                self._processes_are_over(task)

    def _processes_are_over(self, task: Task) -> None:
        task.empty = True
        self._outputs.read_rest(task)
        self._gone_if_done(task)

    def _gone_if_done(self, task: Task) -> None:
        if not task.empty or task.output is not None or self._tasks.get(task.id) is not task:
            return
        del self._tasks[task.id]
        self._family.forget(task.id)
        self._ports.release(task.id)
        now = time.time()
        left = len(task.leftovers)
        gone = events.TaskGone(self._host, now, task.id, task.attempt, left, task.unkillable)
        self._pipe.fact_after_output(gone)

    # ------------------------------------------------------------------ stopping

    def _stop(self, order: events.StopTasks) -> None:
        self._end([self._tasks[task] for task in order.tasks if task in self._tasks], order.ladder)

    def _end(self, tasks: List[Task], ladder: events.Ladder) -> None:
        self._look_at_ended()  # so that no signal is said to have ended what was over before
        now = time.monotonic()
        for task in tasks:
            if not task.empty:
                self._endings.begin(task, ladder, now)
            elif ladder[0][0] == SIGKILL:
                self._outputs.let_go(task)
        self._look_at_endings()

    def _tell_signal(self, task: Task, number: int, count: int) -> None:
        now = time.time()
        self._pipe.fact(events.TaskSignalled(self._host, now, task.id, task.attempt, number, count))

    def _end_strays(self) -> None:
        """Kill what belongs to no task: it left its session and washed off its watermark."""
        self._ports.release_all()
        kernel.kill_descendants(ABANDONED[-1][1], self._reap)

    def _say_goodbye(self) -> None:
        self._pipe.hold(False)
        self._pipe.fact_after_output(events.AgentClosed(self._host, time.time()))
        until = time.monotonic() + FAREWELL
        while self._pipe.pending and time.monotonic() < until:
            select.select([], [self._pipe.fd], [], 0.05)
            self._pipe.flush()

    # ------------------------------------------------------------------ finding out

    def _tell_gpus(self, said: bytes) -> None:
        gpus = read_gpus(said)
        if gpus:
            self._pipe.fact(events.HostGpus(self._host, time.time(), gpus))

    def _try_peers(self, order: events.TryPeers) -> None:
        from launcher.agent.old_peers import read_peers, try_peers

        def tell(said: bytes) -> None:
            unreachable = read_peers(said, order.addresses)
            self._pipe.fact(events.PeersTried(self._host, time.time(), unreachable))

        try:
            self._inquiries.begin(try_peers(order.addresses), tell)
        except OSError as error:
            why = f"no process to try it with: {error.strerror}"
            self._pipe.fact(events.PeersTried(self._host, time.time(), dict.fromkeys(order.addresses, why)))


def _nothing(*_: object) -> None:
    """A signal handler: the wake-up pipe does the work."""


def _drain(fd: int) -> bytes:
    """The numbers of the signals that woke us."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""

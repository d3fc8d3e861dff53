"""The watchdog: the agent's parent, which outlives the agent and kills the processes that it leaves.

When the agent was killed, the watchdog adopts the processes that the agent leaves, and kills them. It also
kills an agent that is late: one that is stopped or stuck does not end its tasks. An agent without a lease is
late some time after the other end of our stdin, or the process that started the agent, is gone. An agent with
a lease renews a deadline in memory that both share. While all is well, the watchdog does nothing.

If launcher, agent and watchdog are killed in the same moment, the next launch on the machine kills what they
left (`launcher.agent.sweep`). PR_SET_PDEATHSIG in the tasks would kill only their main processes. It also
needs fork and exec instead of posix_spawn: 5 ms of CPU for each task instead of 1 ms.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Callable, Dict, Mapping, NoReturn, Optional

from launcher.agent import processes

#: Seconds after which the watchdog gives up on processes that can't be killed.
KILL_TIMEOUT_SECONDS = 5.0
#: Seconds an agent has to end everything, and itself, once its launcher is gone: its tasks get one of them.
ALONE_TIMEOUT_SECONDS = 1.5
#: Seconds that an agent with sockets has to end its tasks and itself.
END_TIMEOUT_SECONDS = 15.0
#: Seconds between two looks whether an agent that was killed has ended.
_POLL_SECONDS = 0.1
#: Seconds an agent may be late, and those it gets once more then: the machine may have slept.
_MAX_LATE_SECONDS = 1.0
_SECOND_CHANCE_SECONDS = 1.0
#: Seconds for an agent to start, even on a busy machine. It runs no tasks until it has started.
_START_TIMEOUT_SECONDS = 60.0
#: Seconds from the deadline of an agent that does not answer until no process of its tasks is left.
MISSED_DEADLINE_SECONDS = _MAX_LATE_SECONDS + _SECOND_CHANCE_SECONDS + KILL_TIMEOUT_SECONDS
_MAX_POLL_SECONDS = 5.0
_MOMENT = struct.Struct("d")


class Deadline:
    """The time by which the agent renews it, in memory that agent and watchdog share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _MOMENT.size)
        #: When the agent was late at the first look, and when that look was.
        self._seen, self._seen_at = -1.0, 0.0
        self.renew(time.monotonic() + _START_TIMEOUT_SECONDS)

    def renew(self, until: float) -> None:
        """Set the time (monotonic); called by the agent."""
        _MOMENT.pack_into(self._memory, 0, until)

    def is_over(self, now: float) -> bool:
        """Return whether the agent is late, in two looks `_SECOND_CHANCE_SECONDS` apart (monotonic).

        The watchdog calls it.
        """
        late_at = self._late_at()
        if now < late_at:
            return False
        if self._seen != late_at:
            self._seen, self._seen_at = late_at, now
        return now >= self._seen_at + _SECOND_CHANCE_SECONDS

    def next_poll(self, now: float) -> float:
        """Return when to look again (monotonic)."""
        late_at = self._late_at()
        return now + _SECOND_CHANCE_SECONDS if now >= late_at else min(late_at, now + _MAX_POLL_SECONDS)

    def _late_at(self) -> float:
        until: float = _MOMENT.unpack_from(self._memory, 0)[0]
        return until + _MAX_LATE_SECONDS


#: Is the agent, with a descriptor that reaches end-of-file when the watchdog exits. Returns its exit code.
RunAgent = Callable[[int], int]


def watch(
    agent: RunAgent, deadline: Optional[Deadline] = None, peer: Optional[socket.socket] = None
) -> NoReturn:
    """Run an agent in a child, kill the processes that it leaves, and exit.

    Args:
        agent: Runs in the child.
        deadline: What an agent with a lease renews. Without it the end of our stdin is that of the launcher.
        peer: In the main process of a pod, a socket that only the agent keeps open.
    """
    processes.leave_to_launcher()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is an agent, and it listens
    processes.become_subreaper("launch-watchdog")  # before the fork, so that ctypes is imported once
    reading, writing = os.pipe()
    watchdog = processes.read_process(os.getpid())
    pid = processes.fork()
    if pid == 0:
        os.close(writing)
        _run(agent, reading, watchdog)
    os.close(reading)
    launcher: Dict[int, int] = {}  # descriptors that show when it is gone
    if deadline is None:
        launcher[os.dup(0)] = 0  # the pipe: POLLHUP is reported anyway
        with suppress(OSError, AttributeError):  # Python 3.8; or the parent is outside of our container
            launcher[os.pidfd_open(os.getppid())] = select.POLLIN
    processes.nothing_on(0, 1)
    if peer is not None:
        peer.close()
    _pass_on_sigterm(pid)
    status = _await(pid, launcher, deadline)
    left = processes.kill_descendants(KILL_TIMEOUT_SECONDS, _reap)
    os._exit(0 if status == 0 and not left else 1)


def _run(agent: RunAgent, pipe: int, watchdog: Optional[processes.Process]) -> NoReturn:
    code: Optional[int] = None
    try:
        code = agent(pipe)
    finally:
        if code is None:
            sys.excepthook(*sys.exc_info())
        if watchdog is not None:
            processes.send(watchdog, signal.SIGCONT)  # if it is stopped, it would not see the agent's end
        os._exit(1 if code is None else code)


def _pass_on_sigterm(agent: int) -> None:
    """Pass SIGTERM on to the agent, which stops its tasks or leaves that to the launcher.

    Without a handler it would kill the watchdog, and with it all tasks, or do nothing in the first process of
    a container (``docker stop``).
    """

    def passed_on(*_: object) -> None:
        with suppress(OSError):  # it has ended
            os.kill(agent, signal.SIGTERM)

    signal.signal(signal.SIGTERM, passed_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _await(agent: int, launcher: Mapping[int, int], deadline: Optional[Deadline]) -> int:
    """Wait for the agent's end; its status. Adopted orphans are reaped on the way.

    Args:
        agent: Its pid.
        launcher: Descriptors that show when it is gone, and for what to poll them.
        deadline: See `watch`.
    """
    waking = processes.wake_on(signal.SIGCHLD)
    poll = select.poll()
    poll.register(waking, select.POLLIN)
    for fd, event in launcher.items():
        poll.register(fd, event)
    kill_at: Optional[float] = None
    give_up: Optional[float] = None
    while (status := _reap(agent)) is None:
        now = time.monotonic()
        if kill_at is None and deadline is not None and deadline.is_over(now):
            kill_at = now
        if kill_at is not None and now >= kill_at:
            if give_up is not None and (_has_ended(agent) or now >= give_up):
                return signal.SIGKILL  # a debugger keeps it from us; it is among those to be killed
            os.kill(agent, signal.SIGKILL)  # not reaped: the pid is still the agent's
            give_up = give_up or now + KILL_TIMEOUT_SECONDS
            kill_at = now + _POLL_SECONDS
        due = kill_at if kill_at is not None else deadline.next_poll(now) if deadline else None
        came = [fd for fd, _ in poll.poll(None if due is None else max(0.0, due - now) * 1000 + 1)]
        if kill_at is None and any(fd in came for fd in launcher):
            for fd in launcher:
                poll.unregister(fd)
            kill_at = time.monotonic() + ALONE_TIMEOUT_SECONDS
        if waking in came:
            os.read(waking, 4096)
    return status


def _has_ended(agent: int) -> bool:
    found = processes.read_process(agent)
    return found is None or found.has_ended


def _reap(agent: int = 0) -> Optional[int]:
    """Reap all children that have ended; the status of the agent, if it is one of them."""
    found: Optional[int] = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return found
            if pid == agent:
                found = status
    except ChildProcessError:
        return found

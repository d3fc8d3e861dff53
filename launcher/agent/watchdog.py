"""The watchdog: the parent of the agent, which outlives it and kills the processes that it leaves behind.

`launcher.agent.main` calls `watch`. When the agent was killed, the watchdog inherits its processes, and kills
them. It also kills an agent that is late, because an agent that is stopped or stuck does not stop its tasks.
An agent without a lease is late some time after the other end of our stdin was closed, or the process that
started the agent exited. An agent with a lease renews a deadline in memory that both share. The watchdog must
not do anything else while all is well, so that nothing in it can fail.

If launcher, agent and watchdog are killed in the same moment, the next launch on the machine kills what they
left behind (`launcher.agent.sweep`). PR_SET_PDEATHSIG in the tasks is no alternative, because it would kill
only their main processes. It also needs fork and exec instead of posix_spawn, which costs 5 ms of CPU time
for each task instead of 1 ms.
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

#: The watchdog gives up on processes that it could not kill in this time.
KILL_TIMEOUT_SECONDS = 5.0
#: How long an agent without a lease may take to stop its tasks and itself when its launcher is gone. Its
#: tasks get one second of this after SIGTERM.
ALONE_TIMEOUT_SECONDS = 1.5
#: How long an agent with a lease may take to stop its tasks and itself.
END_TIMEOUT_SECONDS = 15.0
_POLL_SECONDS = 0.1
_MAX_LATE_SECONDS = 1.0
# The machine may have slept. So an agent that is late gets this time to renew its deadline.
_SECOND_CHANCE_SECONDS = 1.0
# How long an agent may take to start on a busy machine. It runs no tasks until it has started.
_START_TIMEOUT_SECONDS = 60.0
#: If an agent does not renew its deadline, no process of its tasks is left this long after the deadline.
MISSED_DEADLINE_SECONDS = _MAX_LATE_SECONDS + _SECOND_CHANCE_SECONDS + KILL_TIMEOUT_SECONDS
_MAX_POLL_SECONDS = 5.0
_MOMENT = struct.Struct("d")


class Deadline:
    """A time in memory that agent and watchdog share. The agent sets it to a later one before it passes."""

    def __init__(self) -> None:
        """Make a deadline in memory that stays shared after a fork. It leaves the agent the time to start."""
        #: Contains nothing but the deadline (monotonic).
        self._memory = mmap.mmap(-1, _MOMENT.size)
        #: Used by the watchdog only: the last deadline that it found missed, and when it found that first.
        self._missed, self._missed_at = -1.0, 0.0
        self.renew(time.monotonic() + _START_TIMEOUT_SECONDS)

    def renew(self, until: float) -> None:
        """Set a new deadline (monotonic). The agent calls this."""
        _MOMENT.pack_into(self._memory, 0, until)

    def is_over(self, now: float) -> bool:
        """Return whether the agent has missed its deadline for good. The watchdog calls this.

        The agent must have missed it in two calls at least `_SECOND_CHANCE_SECONDS` apart, without renewing
        it between them.

        Args:
            now: The time (monotonic).
        """
        late_at = self._late_at()
        if now < late_at:
            return False
        # The machine may have slept, so the agent gets a second chance to renew this deadline.
        if self._missed != late_at:
            self._missed, self._missed_at = late_at, now
        return now >= self._missed_at + _SECOND_CHANCE_SECONDS

    def next_poll(self, now: float) -> float:
        """Return when the watchdog should call `is_over` again (monotonic)."""
        late_at = self._late_at()
        # An agent that is late has a second chance to renew the deadline, until the returned time.
        return now + _SECOND_CHANCE_SECONDS if now >= late_at else min(late_at, now + _MAX_POLL_SECONDS)

    def _late_at(self) -> float:
        """Return when the agent counts as late, a moment after its deadline."""
        until: float = _MOMENT.unpack_from(self._memory, 0)[0]
        return until + _MAX_LATE_SECONDS


#: Runs the agent, and returns its exit code. It is called with a descriptor that reaches end-of-file when the
#: watchdog exits.
RunAgent = Callable[[int], int]


def watch(
    agent: RunAgent, deadline: Optional[Deadline] = None, peer: Optional[socket.socket] = None
) -> NoReturn:
    """Be the watchdog: run an agent in a child, kill the processes that it leaves behind, and exit.

    So no process of a task survives, even if the agent is killed. This process exits with 0 if the agent did
    so and no process is left, otherwise with 1.

    Args:
        agent: Called in the child.
        deadline: The deadline that an agent with a lease renews. (A lease is a time for which tasks outlive a
            silent launcher.) Without it, the end of our stdin means that the launcher is gone.
        peer: In the main process of a pod, a socket that only the agent keeps open.
    """
    # Only the launcher reacts to Ctrl-C and the like. The agent inherits this.
    processes.leave_to_launcher()
    # SIGTERM waits until there is an agent that handles it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # This comes before the fork, so that ctypes is imported only once.
    processes.become_subreaper("launch-watchdog")
    # Only the watchdog keeps the writing end, so that the agent notices when the watchdog exits.
    reading, writing = os.pipe()
    # The agent needs this to let the watchdog continue if a user has suspended it by SIGSTOP.
    watchdog = processes.read_process(os.getpid())
    pid = processes.fork()
    if pid == 0:
        os.close(writing)
        _run(agent, reading, watchdog)
    os.close(reading)
    # Descriptors that show that the launcher is gone, with the events to poll them for.
    launcher: Dict[int, int] = {}
    if deadline is None:
        # The pipe needs no events, because poll(2) always reports POLLHUP.
        launcher[os.dup(0)] = 0
        # Python 3.8 has no pidfds, and the parent may be outside of our container.
        with suppress(OSError, AttributeError):
            launcher[os.pidfd_open(os.getppid())] = select.POLLIN
    # Only the agent keeps the streams to the launcher open. If we watch stdin, it was duplicated above.
    processes.nothing_on(0, 1)
    if peer is not None:
        peer.close()
    # The pid is known now, so a SIGTERM that has waited can be delivered.
    _pass_on_sigterm(pid)
    status = _await(pid, launcher, deadline)
    # The processes that the agent has left behind are descendants of this one now.
    is_any_left = processes.kill_descendants(KILL_TIMEOUT_SECONDS, _reap)
    os._exit(0 if status == 0 and not is_any_left else 1)


def _run(agent: RunAgent, pipe: int, watchdog: Optional[processes.Process]) -> NoReturn:
    """Run the agent in this child of the watchdog, and exit with its code.

    Args:
        agent: Runs the agent when it is called with ``pipe``, and returns its exit code.
        pipe: A descriptor that reaches end-of-file when the watchdog exits.
        watchdog: The process of the watchdog.
    """
    code: Optional[int] = None
    try:
        code = agent(pipe)
    finally:
        # Without a code, the agent has raised an exception.
        if code is None:
            sys.excepthook(*sys.exc_info())
        # A watchdog that is stopped would not notice the end of the agent.
        if watchdog is not None:
            processes.send(watchdog, signal.SIGCONT)
        os._exit(1 if code is None else code)


def _pass_on_sigterm(agent: int) -> None:
    """Pass SIGTERM on to the agent, which stops its tasks or leaves that to the launcher.

    Without a handler SIGTERM would kill the watchdog, and then all tasks. To the first process of a container
    it would do nothing at all (``docker stop``).

    Args:
        agent: The pid of the agent.
    """

    def passed_on(*_: object) -> None:
        """Send the agent SIGTERM, when this process was sent it."""
        # The agent may have ended.
        with suppress(OSError):
            os.kill(agent, signal.SIGTERM)

    signal.signal(signal.SIGTERM, passed_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _await(agent: int, launcher: Mapping[int, int], deadline: Optional[Deadline]) -> int:
    """Wait until the agent has ended, and kill it if it is late. Inherited orphans are reaped meanwhile.

    - With a lease (a time for which the tasks outlive a silent launcher), the agent renews a deadline in
      memory that it shares with us. It is killed when it has missed that, because it hangs or is stopped.
    - Without a lease, it is killed some time after the launcher is gone, if it has not exited by then.

    Args:
        agent: The pid of the agent.
        launcher: Descriptors that show that the launcher is gone, with the events to poll them for. It is
            empty if there is a deadline.
        deadline: The deadline that the agent renews, or None if it has no lease.

    Returns:
        The wait status of the agent, or SIGKILL if it cannot be reaped.
    """
    waking = processes.wake_on(signal.SIGCHLD)
    poll = select.poll()
    poll.register(waking, select.POLLIN)
    for fd, event in launcher.items():
        poll.register(fd, event)
    # When to kill the agent next, and when to stop trying. Both are None while all is well. The second one
    # is set by the first kill.
    kill_at: Optional[float] = None
    give_up_at: Optional[float] = None
    while (status := _reap(agent)) is None:
        now = time.monotonic()
        # An agent with a lease that misses its deadline hangs, or is suspended.
        if kill_at is None and deadline is not None and deadline.is_over(now):
            kill_at = now
        if kill_at is not None and now >= kill_at:
            if give_up_at is not None and (_has_ended(agent) or now >= give_up_at):
                # A debugger keeps the agent from being reaped, or nothing can kill it.
                return signal.SIGKILL
            # The agent was not reaped, so no other process can have its pid.
            os.kill(agent, signal.SIGKILL)
            give_up_at = give_up_at or now + KILL_TIMEOUT_SECONDS
            # Until it is reaped, it is killed again from time to time.
            kill_at = now + _POLL_SECONDS
        # Without a time, only a signal or the end of the launcher wakes us.
        wake_at = kill_at
        if wake_at is None and deadline is not None:
            wake_at = deadline.next_poll(now)
        # Poll counts in whole milliseconds, and must not wake before the time.
        ready = [fd for fd, _ in poll.poll(None if wake_at is None else max(0.0, wake_at - now) * 1000 + 1)]
        if kill_at is None and any(fd in ready for fd in launcher):
            # The launcher is gone. An agent without a lease notices it, too, and has this time to stop. The
            # descriptors stay readable, and would end every later poll at once.
            for fd in launcher:
                poll.unregister(fd)
            kill_at = time.monotonic() + ALONE_TIMEOUT_SECONDS
        # Each SIGCHLD has left a byte here. `_reap` at the head of the loop looks for the ended children.
        if waking in ready:
            os.read(waking, 4096)
    return status


def _has_ended(agent: int) -> bool:
    """Return whether the process with this pid is gone, or a zombie that was not reaped yet."""
    process = processes.read_process(agent)
    return process is None or process.has_ended


def _reap(agent: int = 0) -> Optional[int]:
    """Reap all children that have ended.

    Args:
        agent: The pid of the agent, or 0 if it was reaped before.

    Returns:
        The wait status of the agent if it is one of these children, otherwise None.
    """
    agent_status: Optional[int] = None
    # The error means that this process has no child left.
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            # All others are orphans, whose status nobody needs.
            if pid == agent:
                agent_status = status
    return agent_status

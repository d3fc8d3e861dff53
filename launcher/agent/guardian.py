"""The guardian: the agent's parent, whose only work is to outlive it.

It adopts what an agent leaves that was killed, and ends it. It never reads the link (an end of the
agent must be an end of the link), but sees when nobody holds its other end any more, or when who started it
is gone: an agent that is stopped or stuck then, and so does not end what it started, is killed. On another
machine it also sees that a porter is stopped or stuck when its lease is over. While all is well it does
nothing.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

from launcher.processes import kernel

if TYPE_CHECKING:
    from typing import Callable, NoReturn, Optional

    from launcher.agent.lease import Lease

#: Seconds to keep killing before giving up on what can't be killed.
PATIENCE = 5.0
#: Seconds an agent has to end everything, and itself, once its launcher is gone: it gives tasks one of them.
ALONE = 1.5
#: Seconds between two looks whether an agent that was killed has ended.
_LOOK = 0.1


def guard(agent: Callable[[int], int], lease: Optional[Lease] = None) -> NoReturn:
    """Run ``agent`` in a child, end what it leaves, and exit; does not return.

    Args:
        agent: gets a file descriptor that is at its end when the guardian is gone; returns an exit code.
        lease: held by the porter, our parent; ``None``: there is none.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        _run(agent, reading)
    os.close(reading)
    kernel.become_subreaper("launch-guardian")
    launcher = _leave_link()
    parent = _handle_of_parent()
    if os.getpid() == 1:
        _pass_on_sigterm(pid)
    status = _await(pid, launcher, parent, lease)
    left = kernel.kill_descendants(PATIENCE, _reap)
    os._exit(0 if status == 0 and not left else 1)


def _run(agent: Callable[[int], int], guardian_pipe: int) -> NoReturn:
    code: Optional[int] = None
    try:
        code = agent(guardian_pipe)
    finally:
        if code is None:
            sys.excepthook(*sys.exc_info())
        os._exit(1 if code is None else code)


def _pass_on_sigterm(agent: int) -> None:
    """The first process of a container is not ended by the default: there ``docker stop`` means the agent."""

    def passed_on(*_: object) -> None:
        try:
            os.kill(agent, signal.SIGTERM)
        except OSError:  # it has ended
            return

    signal.signal(signal.SIGTERM, passed_on)


def _leave_link() -> int:
    """Let go of the link; what comes back is only good for seeing that its other end is gone."""
    launcher = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)
    return launcher


def _handle_of_parent() -> int:
    """Readable when whoever started us is gone; -1 where that can't be seen."""
    parent = os.getppid()
    if parent == 0 or not hasattr(os, "pidfd_open"):  # outside of our container; Python 3.8
        return -1
    try:
        return os.pidfd_open(parent)
    except OSError:  # gone already: then the link tells it
        return -1


def _await(agent: int, launcher: int, parent: int, lease: Optional[Lease]) -> int:
    """Wait for the agent's end; its status. Adopted orphans are reaped on the way."""
    waking, woken = os.pipe()
    for fd in (waking, woken):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    poll = select.poll()
    poll.register(waking, select.POLLIN)
    poll.register(launcher, 0)  # POLLHUP is told anyway
    if parent >= 0:
        poll.register(parent, select.POLLIN)
    until: Optional[float] = None
    give_up: Optional[float] = None
    look_at: Optional[float] = None if lease is None else 0.0
    while True:
        status = _reap(agent)
        if status is not None:
            return status
        if until is not None and time.monotonic() >= until:
            if give_up is not None and (_has_ended(agent) or time.monotonic() >= give_up):
                return 1  # who traces it keeps it from us, and is among those to be ended
            os.kill(agent, signal.SIGKILL)  # not reaped: it is nobody else
            give_up = give_up or time.monotonic() + PATIENCE
            until = time.monotonic() + _LOOK
        if lease is not None and look_at is not None and time.monotonic() >= look_at:
            look_at = lease.look(time.monotonic())
        came = poll.poll(_milliseconds(until, look_at))
        if until is None and any(fd in (launcher, parent) for fd, _ in came):
            poll.unregister(launcher)
            if parent >= 0:
                poll.unregister(parent)
            until = time.monotonic() + ALONE
        if any(fd == waking for fd, _ in came):
            os.read(waking, 4096)


def _has_ended(agent: int) -> bool:
    found = kernel.look_at(agent)
    return found is None or found.ended


def _milliseconds(*dues: Optional[float]) -> Optional[float]:
    """Until the first of them; ``None``: for ever."""
    due = min((due for due in dues if due is not None), default=None)
    return None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1


def _nothing(*_: object) -> None:
    """A signal handler: the wake-up pipe does the work."""


def _reap(agent: int = 0) -> Optional[int]:
    """Reap all who have ended; the status of the agent, if it is one of them."""
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

"""The guardian: the agent's parent, whose only work is to outlive it.

It adopts what an agent leaves that was killed, and ends it. It never reads the link (an end of the
agent must be an end of the link), and does nothing while all is well.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from launcher.agent import kernel
from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Callable, NoReturn, Optional

#: Seconds to keep killing before giving up on what can't be killed.
PATIENCE = 5.0


def guard(agent: Callable[[int], int]) -> NoReturn:
    """Run ``agent`` in a child, end what it leaves, and exit; does not return.

    Args:
        agent: gets a file descriptor that is at its end when the guardian is gone; returns an exit code.
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
    _leave_link()
    status = _await(pid)
    left = _end_everything()
    os._exit(0 if status == 0 and not left else 1)


def _run(agent: Callable[[int], int], guardian_pipe: int) -> NoReturn:
    code: Optional[int] = None
    try:
        code = agent(guardian_pipe)
    finally:
        if code is None:
            sys.excepthook(*sys.exc_info())
        os._exit(1 if code is None else code)


def _leave_link() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)


def _await(agent: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == agent:
            return status


def _end_everything() -> bool:
    """Kill all descendants until there are none; whether some are left."""
    deadline = time.monotonic() + PATIENCE
    _reap()
    while kernel.has_children() and time.monotonic() < deadline:
        for process in kernel.descendants_of(os.getpid()):
            kernel.send(process, signal.SIGKILL)
        time.sleep(0.002)
        _reap()
    return kernel.has_children()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return

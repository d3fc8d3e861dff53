"""Becoming a process of nobody's: what happens to the login session it came from does not touch it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Callable

_STANDARD = (0, 1, 2)


def leave_behind(serve: Callable[[], None]) -> None:
    """Run ``serve`` in a process that is not our child, in a session of its own, and return at once.

    Raises:
        OSError: there can be no further process.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code = 1
    try:
        os.setsid()
        if os.fork() == 0:  # not the leader of its session: no terminal can become its own
            serve()
        code = 0
    finally:
        os._exit(code)


def let_go() -> None:
    """Let go of the session's stdin, stdout and stderr, and of its signals."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in _STANDARD:
        os.dup2(nothing, fd)
    os.close(nothing)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)

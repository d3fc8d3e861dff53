"""This machine, from a process as small as ``launch``: the agent is a fork of it.

A fork has what it needs imported already, so the agent is up in 10 ms instead of 45: half the time of a
short job. It is only for a process with a single thread (a fork takes no other along) and little memory; a
program that uses the Python API is neither, and takes the local transport.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from launcher.errors import TransportError
from launcher.model.records import TYPE_CHECKING
from launcher.transport.local import LocalTransport

if TYPE_CHECKING:
    from typing import NoReturn

#: Started by name: nobody imports the agent.
_AGENT = "launcher.agent.__main__"


class ForkTransport(LocalTransport):
    """Starts agents as forks of this process."""

    def _start(self, host: str, number: int, streams: Sequence[int]) -> int:
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            raise TransportError(f"{host}: a process of {threads} threads can't be forked into an agent")
        pid = os.fork()
        if pid == 0:
            _become_agent(host, number, streams)
        return pid


def _become_agent(host: str, number: int, streams: Sequence[int]) -> NoReturn:
    """In the child: nothing of the launcher's own may run any more, whatever happens."""
    try:
        os.setsid()
        for fd, stream in enumerate(streams):
            os.dup2(stream, fd)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        _forget_signals()
        importlib.import_module(_AGENT).main(host, str(number))
    finally:  # an agent does not return: something went wrong, and stderr is the link's
        try:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)


def _forget_signals() -> None:
    """The launcher's handlers write to a descriptor that is something else here."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())

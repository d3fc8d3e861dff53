"""This machine: the agent is a fork of the launcher.

A fork has what it needs imported already, so the agent is up in 10 ms instead of 45: half the time of a
short job. That is for a process with a single thread (a fork takes no other along) and little memory, as
``launch`` is; the Python API, whose program is neither, has a ``launch`` of its own.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.errors import TransportError
from launcher.job import Host
from launcher.model.watermark import agent_number
from launcher.transport.locallink import LocalLink

if TYPE_CHECKING:
    from typing import NoReturn

#: Started by name: nobody imports the agent.
_AGENT = "launcher.agent.__main__"


class LocalTransport:
    """Starts agents as forks of this process."""

    def open(self, host: Host) -> LocalLink:
        """Start the agent of ``host``; see `Transport.open`."""
        number = agent_number(int.from_bytes(os.urandom(8), "little"))
        fds: list[int] = []
        try:
            for _ in range(3):
                fds.extend(os.pipe())
            orders_out, orders_in, facts_out, facts_in, errors_out, errors_in = fds
            pid = _fork(host.name, number, (orders_out, facts_in, errors_in))
        except (OSError, RuntimeError) as error:
            for fd in fds:
                os.close(fd)
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            raise TransportError(f"{host.name}: the agent can't be started: {why}") from error
        for fd in (orders_out, facts_in, errors_in):
            os.close(fd)
        return LocalLink(pid, number, facts_out, orders_in, errors_out)


def _fork(host: str, number: int, streams: Sequence[int]) -> int:
    """The pid of a new agent whose stdin, stdout and stderr are ``streams``.

    Raises:
        OSError: the system has no process for it.
        RuntimeError: this process can't be forked.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"a process of {threads} threads can't be forked into an agent")
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

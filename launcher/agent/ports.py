"""Holding ports: from before the ClusterSpec is made until they are released.

A socket that is bound but does not listen keeps the kernel from handing its port to anyone. It is
bound plainly, so the kernel picks one that nobody has, and only then given SO_REUSEADDR: a server
that sets it too (TensorFlow's gRPC does) can bind beside it, a plain ``bind`` of some other program
is refused. Dual stack where there is IPv6, so the port is kept in both worlds.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Callable, Dict

from launcher.job import TaskId

_ADVICE = {
    errno.EMFILE: "`ulimit -n` there says how many there may be",
    errno.EADDRINUSE: "none is free: `sysctl net.ipv4.ip_local_port_range` there says which there are",
}


class PortKeeper:
    """The ports of the tasks of this host.

    Args:
        keep: where to keep a descriptor; see `launcher.agent.spawn.Limits.keep`.
    """

    def __init__(self, keep: Callable[[int], int] = lambda fd: fd) -> None:
        self._keep = keep
        self._held: Dict[TaskId, int] = {}

    def hold(self, task: TaskId) -> int:
        """Take a port for ``task`` and keep it; the same one if it has a port already.

        Raises:
            OSError: no port is free.
        """
        if task in self._held:
            with socket.socket(fileno=os.dup(self._held[task])) as held:
                return int(held.getsockname()[1])
        holder = in_both_worlds(lambda made, address: made.bind((address, 0)))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port: int = holder.getsockname()[1]
        self._held[task] = self._keep(holder.detach())
        return port

    def release(self, task: TaskId) -> None:
        """Let the port of ``task`` go; nothing if it holds none."""
        holder = self._held.pop(task, None)
        if holder is not None:
            os.close(holder)

    def release_all(self) -> None:
        """Let every port go."""
        for task in list(self._held):
            self.release(task)


def explain_refusal(error: OSError) -> str:
    """Why there is no port, and what could be done."""
    why = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"{why} ({advice})" if advice else why


def in_both_worlds(ready: Callable[[socket.socket, str], None]) -> socket.socket:
    """A TCP socket for IPv6 and IPv4, or for IPv4 alone where the other is not to be had.

    Args:
        ready: binds it to this address, which is all of the machine's.

    Raises:
        OSError: it can't be bound.
    """
    try:
        return _made(socket.AF_INET6, "::", ready)
    except OSError:  # a kernel without IPv6; or it is switched off, and "::" can't be bound
        return _made(socket.AF_INET, "0.0.0.0", ready)


def _made(family: int, address: str, ready: Callable[[socket.socket, str], None]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        ready(made, address)
    except OSError:
        made.close()
        raise
    return made

"""Holding ports: from before the ClusterSpec is made until the task is gone.

A socket that is bound but does not listen keeps the kernel from handing its port to anyone. It is
bound plainly, so the kernel picks one that nobody has, and only then given SO_REUSEADDR: a server
that sets it too (TensorFlow's gRPC does) can bind beside it, a plain ``bind`` of some other program
is refused. Dual stack where there is IPv6, so the port is kept in both worlds.
"""

from __future__ import annotations

import socket

from launcher.model.records import TYPE_CHECKING
from launcher.model.task import TaskId

if TYPE_CHECKING:
    from typing import Dict


class PortKeeper:
    """The ports of the tasks of this host."""

    def __init__(self) -> None:
        self._held: Dict[TaskId, socket.socket] = {}

    def hold(self, task: TaskId) -> int:
        """Take a port for ``task`` and keep it.

        Raises:
            OSError: there is none to have.
        """
        holder = _bind()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held[task] = holder
        port: int = holder.getsockname()[1]
        return port

    def release(self, task: TaskId) -> None:
        """Let the port of ``task`` go; nothing if it holds none."""
        holder = self._held.pop(task, None)
        if holder is not None:
            holder.close()

    def release_all(self) -> None:
        """Let every port go."""
        for task in list(self._held):
            self.release(task)


def _bind() -> socket.socket:
    try:
        holder = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:  # a kernel without IPv6
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0")
    try:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("::", 0))
    except OSError:  # IPv6 is switched off: "::" can't be bound
        holder.close()
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0")
    return holder


def _bound(holder: socket.socket, address: str) -> socket.socket:
    try:
        holder.bind((address, 0))
    except OSError:
        holder.close()
        raise
    return holder

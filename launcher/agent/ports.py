"""Ports of tasks: holding them, and trying those of other hosts.

They are held from before the ClusterSpec is made until they are released.
A socket that is bound but does not listen keeps the kernel from handing its port to anyone. It is
bound plainly, so the kernel picks a free one, and only then given SO_REUSEADDR: a server
that sets it too (TensorFlow's gRPC does) can bind beside it, a plain ``bind`` of some other program
is refused. Dual stack where there is IPv6, so the port is kept in both worlds.

Before any task starts a child of the agent connects to the ports of the other hosts (looking up a name may
block). Nothing listens on held ports, so a refused connection is the good answer: the route is open.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from typing import Callable, Dict, Iterable, Mapping, Sequence

from launcher.task_id import TaskId

_ADVICE = {
    errno.EMFILE: "`ulimit -n` there says how many there may be",
    errno.EADDRINUSE: "none is free: `sysctl net.ipv4.ip_local_port_range` there says which there are",
}


class PortKeeper:
    """The ports of the tasks of this host."""

    def __init__(self) -> None:
        self._held: Dict[TaskId, socket.socket] = {}

    def hold(self, task: TaskId) -> int:
        """Bind a port for ``task`` and keep it; the same port if the task has one already.

        Raises:
            OSError: no port is free.
        """
        if task not in self._held:
            holder = in_both_worlds(lambda made, address: made.bind((address, 0)))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held[task] = holder
        return int(self._held[task].getsockname()[1])

    def release(self, tasks: Iterable[TaskId]) -> None:
        """Release the ports of these tasks."""
        for task in tasks:
            if task in self._held:
                self._held.pop(task).close()

    def release_all(self) -> None:
        """Release every port."""
        self.release(list(self._held))


def explain_refusal(error: OSError) -> str:
    """Why no port can be had, and what the user can do."""
    why = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"{why} ({advice})" if advice else why


def in_both_worlds(ready: Callable[[socket.socket, str], None]) -> socket.socket:
    """A TCP socket for IPv6 and IPv4, or for IPv4 alone on a host without IPv6.

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


# ---------------------------------------------------------------------- reaching tasks of other hosts

#: Seconds for one connection, and for the child as a whole.
CONNECT, SECONDS = 3.0, 6.0
#: Addresses tried at the same time.
_AT_ONCE = 256
_OPEN = (0, errno.ECONNREFUSED)
_REASONS = {
    errno.EAGAIN: "no answer: a firewall may drop what is sent there",
    errno.ENETUNREACH: "no route from this host",
    errno.EHOSTUNREACH: "no route from this host",
}


def print_unreachable(addresses: Sequence[str]) -> None:
    """In a child: print as JSON which addresses (``host:port``) can't be reached, and why."""
    reasons: Dict[str, str] = {}

    def look(address: str) -> None:
        reasons[address] = _why_unreachable(address)

    for start in range(0, len(addresses), _AT_ONCE):
        threads = [threading.Thread(target=look, args=[it]) for it in addresses[start : start + _AT_ONCE]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    answer = {address: reason for address, reason in reasons.items() if reason}
    os.write(1, json.dumps(answer).encode("ascii"))


def read_unreachable(answer: bytes, addresses: Sequence[str]) -> Mapping[str, str]:
    """The addresses that can't be reached, and why, from what the child printed."""
    try:
        found = json.loads(answer)
    except ValueError:  # it was killed: its time was up
        return dict.fromkeys(addresses, f"no answer in {SECONDS:.0f} s")
    return {str(address): str(why) for address, why in found.items()}


def _why_unreachable(address: str) -> str:
    """Why ``host:port`` (IPv6 in brackets) can't be reached; empty: it can.

    A name may have several addresses: one that can be reached is enough, as for gRPC.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), 0, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return "its name is unknown here"
    code = errno.EADDRNOTAVAIL
    for family, kind, _, _, where in found:
        try:
            with socket.socket(family, kind) as connecting:
                connecting.settimeout(CONNECT / len(found))
                code = connecting.connect_ex(where)
        except OSError as error:  # no IPv6 here
            code = error.errno or errno.EAFNOSUPPORT
        if code in _OPEN:
            return ""
    return _REASONS.get(code) or os.strerror(code)

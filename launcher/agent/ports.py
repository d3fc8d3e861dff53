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
import selectors
import socket
import time
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

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


# ---------------------------------------------------------------------- can tasks of other hosts be reached?

#: Seconds for all connections, and for the child as a whole.
CONNECT, SECONDS = 3.0, 6.0
_OPEN = (0, errno.ECONNREFUSED)


def print_unreachable(addresses: Sequence[str]) -> None:
    """In a child: print those that can't be reached as JSON."""
    os.write(1, json.dumps(unreachable(addresses)).encode("ascii"))


def read_unreachable(answer: bytes, addresses: Sequence[str]) -> Mapping[str, str]:
    """The addresses that can't be reached, and why, from what the child printed."""
    try:
        found = json.loads(answer)
    except ValueError:  # it was killed: its time was up
        return dict.fromkeys(addresses, f"no answer in {SECONDS:.0f} s")
    return {str(address): str(why) for address, why in found.items()}


def unreachable(addresses: Sequence[str], seconds: float = CONNECT) -> Dict[str, str]:
    """Connect to all at once; the addresses (``host:port``, IPv6 in brackets) that can't be reached, and why.

    A name may have several addresses: one that can be reached is enough, as for gRPC.
    """
    reasons: Dict[str, str] = {}
    reached = set()
    selector = selectors.DefaultSelector()
    for address in addresses:
        try:
            for family, where in _resolved(address):
                code, connecting = _begin(family, where)
                if connecting is not None:
                    selector.register(connecting, selectors.EVENT_WRITE, address)
                elif code in _OPEN:
                    reached.add(address)
                else:
                    reasons[address] = _explain(code)
        except (socket.gaierror, UnicodeError):
            reasons[address] = "its name is unknown here"
    until = time.monotonic() + seconds
    while selector.get_map():
        left = until - time.monotonic()
        ready = selector.select(max(0.0, left))
        if not ready and left <= 0.0:  # after a last look: this process may have been suspended
            break
        for key, _ in ready:
            selector.unregister(key.fileobj)
            code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[union-attr]
            key.fileobj.close()  # type: ignore[union-attr]
            if code in _OPEN:
                reached.add(key.data)
            else:
                reasons[key.data] = _explain(code)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
        reasons.setdefault(key.data, "no answer: a firewall may drop what is sent there")
    return {address: why for address, why in reasons.items() if address not in reached}


def _resolved(address: str) -> List[Tuple[int, object]]:
    """The families and socket addresses of ``host:port``."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), 0, socket.SOCK_STREAM)
    return list(dict.fromkeys((family, where) for family, _, _, _, where in found))


def _begin(family: int, where: object) -> Tuple[int, "socket.socket | None"]:
    """The result of connecting, and the socket if that is not known yet."""
    try:
        connecting = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:  # no IPv6 here
        return error.errno or errno.EAFNOSUPPORT, None
    connecting.setblocking(False)
    code = connecting.connect_ex(where)  # type: ignore[arg-type]
    if code == errno.EINPROGRESS:
        return code, connecting
    connecting.close()
    return code, None


def _explain(code: int) -> str:
    if code in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return "there is no way to it"
    return os.strerror(code)

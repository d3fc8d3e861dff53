"""Ports of tasks: holding them, and connecting to those of other hosts.

A port is held from before the ClusterSpec is made until it is released, by a socket that is bound and does
not listen. The socket has SO_REUSEADDR: a server that sets it too (TensorFlow's gRPC does) can bind the same
port, the ``bind`` of another program fails. To a port that the kernel shall choose, the socket is bound
without SO_REUSEADDR, so that the port is free, and gets it afterwards. A preferred port must be free before
the socket is bound to it, see `first_free`. Where there is IPv6 the socket holds the port for IPv6 and IPv4.

Before any task starts, a child of the agent connects to the ports of the other hosts (looking up a name may
block). Nothing listens on held ports: a refused connection shows that the route is open.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, TypeVar

from launcher.common.cluster import TaskId

T = TypeVar("T")

_PORT_ADVICE = {
    errno.EMFILE: "`ulimit -n` there says how many there may be",
    errno.EADDRINUSE: "none is free: `sysctl net.ipv4.ip_local_port_range` there says which there are",
}


class PortReservations:
    """The ports of the tasks of this host."""

    def __init__(self) -> None:
        self._held: Dict[TaskId, socket.socket] = {}

    def hold(self, task: TaskId, preferred: Sequence[int] = ()) -> int:
        """Bind a port for a task and keep it. A task that has one already keeps that.

        Args:
            task: A task of this host.
            preferred: Ports to try first.

        Raises:
            OSError: No port is free.
        """
        if task not in self._held:
            holder = first_free(preferred, lambda port: dual_stack_socket(port, can_share=True))
            holder = holder or dual_stack_socket(0)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held[task] = holder
        return self.port_of(task)

    def port_of(self, task: TaskId) -> int:
        """Return the port that is held for a task."""
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
    """Return why no port can be held, and what the user can do."""
    why = error.strerror or str(error)
    advice = _PORT_ADVICE.get(error.errno or 0)
    return f"{why} ({advice})" if advice else why


def first_free(ports: Iterable[int], bind: Callable[[int], socket.socket]) -> Optional[socket.socket]:
    """Bind a socket to the first of these ports that is free.

    A port counts as free while only old connections to 127.0.0.1 have it (TIME_WAIT): an earlier TensorBoard
    leaves them for a minute.

    Args:
        ports: The ports to try.
        bind: Makes a socket with SO_REUSEADDR, so that it fails only if a socket listens on the port.

    Returns:
        The socket, or None if no port is free.
    """
    for port in ports:
        with suppress(OSError):
            # Fails if another launch holds the port: its socket is bound to all addresses, this one, too.
            _bound(socket.AF_INET, "127.0.0.2", port).close()
            return bind(port)
    return None


def dual_stack_socket(port: int, *, can_share: bool = False) -> socket.socket:
    """Bind a TCP socket on all addresses, for IPv6 and IPv4, or for IPv4 alone on a host without IPv6.

    Args:
        port: The port; 0 if the kernel shall choose one.
        can_share: Whether other sockets that have SO_REUSEADDR may have the port, too.

    Raises:
        OSError: The port cannot be bound.
    """
    try:
        return _bound(socket.AF_INET6, "::", port, can_share=can_share)
    except OSError as error:  # a kernel without IPv6; or it is switched off, and "::" can't be bound
        if error.errno == errno.EADDRINUSE:
            raise
        return _bound(socket.AF_INET, "0.0.0.0", port, can_share=can_share)


def _bound(family: int, address: str, port: int, *, can_share: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(can_share))
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


# ---------------------------------------------------------------------- reaching tasks of other hosts

# The kernel resends a lost first packet after 1 s, and reports "no route to host" when ARP gets no answer
# within 3 s.
CONNECT_TIMEOUT_SECONDS = 2.0
MAX_CONNECT_ATTEMPTS = 3
CHECK_TIMEOUT_SECONDS = 8.0
_NO_ANSWER = "no answer: a firewall may be dropping packets"
_NO_ANSWER_IN_TIME = f"no answer in {CHECK_TIMEOUT_SECONDS:.0f}s"
_UNREACHABLE_REASONS = {
    errno.ENETUNREACH: "no route from this host",
    errno.EHOSTUNREACH: "no route from this host",
}


def print_unreachable(addresses: Sequence[str]) -> None:
    """Print as JSON which addresses (``host:port``) cannot be reached, and why, in a child of the agent."""
    late = [_NO_ANSWER_IN_TIME] * len(addresses)
    calls = [partial(_why_unreachable, address) for address in addresses]
    reasons = call_side_by_side(calls, late, len(addresses), CHECK_TIMEOUT_SECONDS)
    found = {address: why for address, why in zip(addresses, reasons) if why}
    os.write(1, json.dumps(found).encode("ascii"))


def call_side_by_side(
    calls: Sequence[Callable[[], T]], late: Sequence[T], most: int, seconds: float
) -> List[T]:
    """Call functions in threads, or one after the other where no thread is left.

    A thread that waits for a name service or a file server cannot be interrupted: it stays behind.

    Args:
        calls: The functions. They raise nothing.
        late: What stands for the result of each that is not done in time.
        most: How many threads there may be.
        seconds: When to return.
    """
    results, ahead = list(late), iter(enumerate(calls))

    def work() -> None:
        for place, call in ahead:
            results[place] = call()

    until = time.monotonic() + seconds
    threads: List[threading.Thread] = []
    with suppress(RuntimeError):  # no further thread is left
        for _ in calls[:most]:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            threads.append(thread)
    if not threads:
        work()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(results)


def _why_unreachable(address: str) -> str:
    """Return why an address cannot be reached, or an empty text if it can.

    A name may have several addresses. One that can be reached is enough, as for gRPC.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return "its name is unknown here"
    why = ""
    for family, kind, _, _, where in found * MAX_CONNECT_ATTEMPTS:
        try:
            with socket.socket(family, kind) as made:
                made.settimeout(CONNECT_TIMEOUT_SECONDS / len(found))
                made.connect(where)
            return ""
        except ConnectionRefusedError:
            return ""
        except socket.timeout:
            why = _NO_ANSWER
        except OSError as error:
            why = _UNREACHABLE_REASONS.get(error.errno or 0) or error.strerror or str(error)
    return why


def read_unreachable(answer: bytes, addresses: Sequence[str]) -> Mapping[str, str]:
    """Return the addresses that cannot be reached, and why, from what `print_unreachable` has printed."""
    try:
        found = json.loads(answer)
    except ValueError:  # it was killed: its time was up
        return dict.fromkeys(addresses, _NO_ANSWER_IN_TIME)
    return {str(address): str(why) for address, why in found.items()}

"""The ports of tasks: holding those of this host, and trying to connect to those of other hosts.

The agent holds each port from before the ClusterSpec is made until the end of the job, by a socket that is
bound and must never listen. The socket is set to SO_REUSEADDR. A server that sets it, too, can bind the same
port (TensorFlow's gRPC does), and the ``bind`` of any other program fails. When the kernel is to choose the
port, the socket is bound without SO_REUSEADDR, so that it chooses a free one. A preferred port must be free
before the socket is bound to it, see `first_free`. On a host with IPv6 the socket holds the port for both
IPv6 and IPv4.

Before any task starts, a child of the agent tries to connect to the ports of the other hosts, because looking
up a name may block. Nothing listens on them yet, so a refused connection shows that the route is open.
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
    """The ports that an agent holds for the tasks of its host."""

    def __init__(self) -> None:
        """Hold no port at first."""
        #: The bound sockets that hold the ports, by task.
        self._held: Dict[TaskId, socket.socket] = {}

    def hold(self, task: TaskId, preferred: Sequence[int] = ()) -> int:
        """Hold a port for a task. A task for which one is held already keeps it.

        Args:
            task: The name of the task.
            preferred: Ports to try before any other.

        Returns:
            The port.

        Raises:
            OSError: No port is free, or no descriptor is left.
        """
        if task not in self._held:
            holder = first_free(preferred, lambda port: dual_stack_socket(port, can_share=True))
            # If none of them is free, or there are none, the kernel chooses a port.
            holder = holder or dual_stack_socket(0)
            # From now on a server of the task that sets the same option can bind the port, too.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held[task] = holder
        return self.port_of(task)

    def port_of(self, task: TaskId) -> int:
        """Return the port that is held for a task."""
        return int(self._held[task].getsockname()[1])

    def release(self, tasks: Iterable[TaskId]) -> None:
        """Release the ports of these tasks. A task without one is passed over."""
        for task in tasks:
            if task in self._held:
                self._held.pop(task).close()

    def release_all(self) -> None:
        """Release every port."""
        self.release(list(self._held))


def explain_refusal(error: OSError) -> str:
    """Return why no port can be held, for the user, and what the user can do about it.

    Args:
        error: The error of `PortReservations.hold`.
    """
    why = error.strerror or str(error)
    advice = _PORT_ADVICE.get(error.errno or 0)
    return f"{why} ({advice})" if advice else why


def first_free(ports: Iterable[int], bind: Callable[[int], socket.socket]) -> Optional[socket.socket]:
    """Bind a socket to the first of these ports that is free.

    A port that is used only by closed connections to 127.0.0.1 (TIME_WAIT) counts as free. An earlier
    TensorBoard leaves such connections for a minute.

    Args:
        ports: The ports to try, in this order.
        bind: Returns a socket that is bound to a port. It sets SO_REUSEADDR, so that it fails only if another
            socket listens on the port.

    Returns:
        The socket, or None if no port is free.
    """
    for port in ports:
        with suppress(OSError):
            # This fails if another launch holds the port, because its socket is bound to all addresses. No
            # TensorBoard uses this address, so its closed connections do not matter.
            _bound(socket.AF_INET, "127.0.0.2", port).close()
            return bind(port)
    return None


def dual_stack_socket(port: int, *, can_share: bool = False) -> socket.socket:
    """Bind a TCP socket to a port on all addresses, for IPv6 and IPv4, or for IPv4 alone without IPv6.

    Args:
        port: The port, or 0 if the kernel is to choose one.
        can_share: Whether other sockets that set SO_REUSEADDR may be bound to the port, too.

    Raises:
        OSError: The port cannot be bound.
    """
    try:
        return _bound(socket.AF_INET6, "::", port, can_share=can_share)
    except OSError as error:
        # Any other error means that the kernel does not support IPv6, or that IPv6 is switched off.
        if error.errno == errno.EADDRINUSE:
            raise
        return _bound(socket.AF_INET, "0.0.0.0", port, can_share=can_share)


def _bound(family: int, address: str, port: int, *, can_share: bool = False) -> socket.socket:
    """Return a TCP socket that is bound to an address.

    Args:
        family: AF_INET, or AF_INET6 for a socket that accepts IPv4, too.
        address: The address.
        port: The port, or 0 if the kernel is to choose one.
        can_share: Whether to set SO_REUSEADDR.

    Raises:
        OSError: The port cannot be bound, or there is no such family on this host.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A socket for IPv6 with this option takes the port for IPv4, too.
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
    """Print which addresses cannot be reached, as a JSON object of reasons by address.

    This runs in a child of the agent, which passes what it prints to `read_unreachable`.

    Args:
        addresses: The addresses, each in the form ``host:port``.
    """
    if_late = [_NO_ANSWER_IN_TIME] * len(addresses)
    calls = [partial(_why_unreachable, address) for address in addresses]
    reasons = call_side_by_side(calls, if_late, len(addresses), CHECK_TIMEOUT_SECONDS)
    # The reason of an address that can be reached is empty.
    unreachable = {address: why for address, why in zip(addresses, reasons) if why}
    os.write(1, json.dumps(unreachable).encode("ascii"))


def call_side_by_side(
    calls: Sequence[Callable[[], T]], if_late: Sequence[T], max_threads: int, seconds: float
) -> List[T]:
    """Call functions in several threads at once, and return when all are done or the time is up.

    A thread that waits for a name service or a file server cannot be interrupted, so it is left behind. If no
    thread can be started, the functions are called one after the other.

    Args:
        calls: The functions. They must not raise.
        if_late: For each function, the result that is returned if it is not done in time.
        max_threads: How many threads to start at most.
        seconds: How long to wait at most.

    Returns:
        The result of each function.
    """
    results = list(if_late)
    # All threads share this iterator, so that each function is called once.
    waiting = iter(enumerate(calls))

    def work() -> None:
        """Call the next function that waits, until none is left."""
        for number, call in waiting:
            results[number] = call()

    until = time.monotonic() + seconds
    threads: List[threading.Thread] = []
    # Python raises RuntimeError when the system allows no further thread.
    with suppress(RuntimeError):
        for _ in calls[:max_threads]:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            threads.append(thread)
    if not threads:  # The calls are made here, where nothing can end them when the time is up.
        work()
    # The time limit is that of all threads together.
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    # A thread that is late may still change the list of the results, so the caller gets a copy.
    return list(results)


def _why_unreachable(address: str) -> str:
    """Try to connect to an address, and return why it cannot be reached.

    A name may stand for several addresses. One that can be reached is enough, as it is for gRPC.

    Args:
        address: The address in the form ``host:port``.

    Returns:
        The reason for the user, or an empty text if the address can be reached.
    """
    host, _, port = address.rpartition(":")
    try:
        resolved = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return "its name is unknown here"
    why = ""
    # All addresses are tried several times, because a packet may get lost.
    for family, kind, _, _, where in resolved * MAX_CONNECT_ATTEMPTS:
        try:
            with socket.socket(family, kind) as sock:
                # All addresses of the name share the time of one attempt.
                sock.settimeout(CONNECT_TIMEOUT_SECONDS / len(resolved))
                sock.connect(where)
            return ""
        except ConnectionRefusedError:
            # The host has answered. The task that will listen on the port has not started yet.
            return ""
        except socket.timeout:
            why = _NO_ANSWER
        except OSError as error:
            why = _UNREACHABLE_REASONS.get(error.errno or 0) or error.strerror or str(error)
    return why


def read_unreachable(answer: bytes, addresses: Sequence[str]) -> Mapping[str, str]:
    """Return which addresses cannot be reached, and the reason for each.

    Args:
        answer: What `print_unreachable` has printed. It is incomplete if the child was killed.
        addresses: The addresses that `print_unreachable` was called with.
    """
    try:
        unreachable = json.loads(answer)
    except ValueError:
        # Nothing is known about any address. Each counts as one that has not answered.
        return dict.fromkeys(addresses, _NO_ANSWER_IN_TIME)
    return {str(address): str(why) for address, why in unreachable.items()}

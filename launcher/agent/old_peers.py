"""Can the tasks here reach those of other hosts? Asked before any task starts, by connecting to held ports.

Nobody listens on those yet, so that it is refused is the good answer: the way there is open. A child process
does it, since looking up a name may take as long as it likes.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING

from launcher.agent.inquiry import Inquiry

if TYPE_CHECKING:
    from typing import Dict, Mapping, NoReturn, Sequence, Tuple

    Sockets = Dict[int, Tuple[str, socket.socket]]

#: Seconds for all connections, and for the child as a whole.
CONNECT, PATIENCE = 3.0, 6.0
_MOST_DESCRIPTORS = 65536


def try_peers(addresses: Sequence[str]) -> Inquiry:
    """Try to connect to each of them.

    Args:
        addresses: ``host:port``, an IPv6 address in brackets.

    Raises:
        OSError: there is no process or descriptor to be had.
    """
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        _be_child(addresses, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    return Inquiry(pid, reading, PATIENCE)


def read_peers(said: bytes, addresses: Sequence[str]) -> Mapping[str, str]:
    """Those that can't be reached, and why."""
    try:
        found = json.loads(said)
    except ValueError:  # it was killed: its time was up
        return dict.fromkeys(addresses, f"no answer in {PATIENCE:.0f} s")
    return {str(address): str(why) for address, why in found.items()}


def _be_child(addresses: Sequence[str], writing: int) -> NoReturn:
    """Nothing of the agent's is ours here: not its link, not its signals."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(PATIENCE) + 1)
        os.dup2(writing, 3)
        os.closerange(4, min(os.sysconf("SC_OPEN_MAX"), _MOST_DESCRIPTORS))
        for fd in (0, 1):
            os.close(fd)
        os.write(3, json.dumps(unreachable(addresses)).encode("ascii"))
    finally:
        os._exit(0)


def unreachable(addresses: Sequence[str], seconds: float = CONNECT) -> Dict[str, str]:
    """Connect to all at once; those that can't be reached, and why."""
    failed: Dict[str, str] = {}
    waiting: Sockets = {}
    for address in addresses:
        try:
            line = _begun(address)
        except (OSError, UnicodeError) as error:
            failed[address] = _words(getattr(error, "errno", None), error)
            continue
        waiting[line.fileno()] = (address, line)
    failed.update(_outcomes(waiting, time.monotonic() + seconds))
    return {address: why for address, why in failed.items() if why}


def _begun(address: str) -> socket.socket:
    """A connection on its way.

    Raises:
        OSError: there is no such name, or no way.
    """
    host, _, port = address.rpartition(":")
    family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), 0, socket.SOCK_STREAM)[0]
    line = socket.socket(family, kind)
    line.setblocking(False)
    code = line.connect_ex(where)
    if code not in (0, errno.EINPROGRESS, errno.ECONNREFUSED):
        line.close()
        raise OSError(code, os.strerror(code))
    return line


def _outcomes(waiting: Sockets, until: float) -> Dict[str, str]:
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLOUT)
    said = {}
    while waiting:
        left = until - time.monotonic()
        ready = poll.poll(max(0.0, left) * 1000)
        if not ready and left <= 0.0:  # after a last look: it may be us who did nothing for so long
            break
        for fd, _ in ready:
            poll.unregister(fd)
            address, line = waiting.pop(fd)
            code = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            line.close()
            if code not in (0, errno.ECONNREFUSED):
                said[address] = _words(code, OSError(code, os.strerror(code)))
    for address, line in waiting.values():
        line.close()
        said[address] = "no answer: a firewall may drop what is sent there"
    return said


def _words(code: object, error: Exception) -> str:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "its name is unknown here"
    if code in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return "there is no way to it"
    return str(getattr(error, "strerror", None) or error)

"""Unix sockets of this machine. Any user can connect to an abstract one, and fill its queue."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

#: Connections that the kernel keeps until the listening process accepts them. With more, the answer to each
#: would come later in a flood. How many are accepted at a time: the process has other work.
BACKLOG, AT_ONCE = 128, 64
#: Seconds between two attempts to get into a full queue.
_PAUSE = 0.001
#: Seconds to wait when no file descriptor is left for a connection.
_NO_DESCRIPTOR = 0.05
_CREDENTIALS = struct.Struct("3i")
#: Bytes of a request to a control socket, and of a packet of events.
PACKET = 1 << 16


def control_address(job: str) -> str:
    """The name of the control socket of a run."""
    return f"\0tf-launcher-{job[:80]}"


def connect_unix(sock: socket.socket, address: str, seconds: float) -> None:
    """Connect a socket, and set its time limit to what is left. While the queue is full, try again.

    Args:
        sock: a Unix socket.
        address: a path, or an abstract address.
        seconds: the time limit.

    Raises:
        ConnectionRefusedError: no process listens. FileNotFoundError: nor is there a file.
        TimeoutError: the queue was full all the time.
    """
    until = time.monotonic() + seconds
    sock.setblocking(False)
    while True:
        try:
            sock.connect(address)
            break
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError("its queue of connections is full") from None
        time.sleep(_PAUSE)
    sock.settimeout(max(_PAUSE, until - time.monotonic()))


def accept_own(listener: socket.socket) -> list[socket.socket]:
    """Accept what waits, up to a limit; drop the connections of other users.

    Args:
        listener: a Unix socket that does not block.
    """
    accepted = []
    for _ in range(AT_ONCE):
        try:
            peer, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it stays readable: do not look all the time
                time.sleep(_NO_DESCRIPTOR)
            break
        if process_and_user(peer)[1] == os.geteuid():
            accepted.append(peer)
        else:
            peer.close()
    return accepted


def process_and_user(peer: socket.socket) -> tuple[int, int]:
    """The process id and the user id of the other end of a Unix socket, as the kernel knows them."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid

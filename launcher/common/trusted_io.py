"""Read files and accept connections that other users of this machine may have tampered with.

Another user may have put a pipe, a device, a link or an endless file in the place of a file. Any user can
connect to an abstract socket, and fill its queue.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from typing import BinaryIO

from launcher.common.text import closest_match

#: The size that is read of files which a person writes, in bytes.
MAX_FILE_BYTES = 1 << 20


def open_regular(path: str, links: bool = True) -> BinaryIO:
    """Open a regular file for reading; refuse a pipe or a device in its place.

    Args:
        path: of the file.
        links: whether the last part of the path may be a link.

    Raises:
        OSError: it does not exist, or is not a regular file.
    """
    mode = os.stat(path, follow_symlinks=links).st_mode
    if stat.S_ISREG(mode):  # opening some devices has effects
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
        file = os.fdopen(os.open(path, flags), "rb")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def read_regular(path: str, most: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file.
        most: its largest size in bytes.

    Raises:
        OSError: as `open_regular`; or it is larger.
    """
    with open_regular(path) as file:
        return read_most(file, most)


def read_most(file: BinaryIO, most: int = MAX_FILE_BYTES) -> bytes:
    """What is left of a file.

    Raises:
        OSError: it is more than ``most`` bytes.
    """
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 1024} KiB")
    return data


def is_ours(user: int) -> bool:
    """Whether files of the user with this id can be trusted: it is this user, or root."""
    return user in (0, os.geteuid())


def similar_file(path: str) -> str:
    """The path of a file with a similar name in the same folder; empty if there is none."""
    folder, name = os.path.split(path)
    try:
        guess = closest_match(name, os.listdir(os.path.expanduser(folder) or "."))
    except OSError:
        return ""
    return os.path.join(folder, guess) if guess else ""


#: Connections that the kernel keeps until the listening process accepts them. With more, the answer to each
#: would come later in a flood. How many are accepted at a time: the process has other work.
SOCKET_BACKLOG = 128
MAX_ACCEPTED = 64
#: Seconds between two attempts to get into a full queue.
_CONNECT_PAUSE_SECONDS = 0.001
#: Seconds to wait when no file descriptor is left for a connection.
_NO_DESCRIPTOR_PAUSE_SECONDS = 0.05
_CREDENTIALS = struct.Struct("3i")
#: Bytes of a request to a control socket, and of a packet of events.
PACKET_BYTES = 1 << 16


def control_address(run_name: str) -> str:
    """The name of the control socket of a run."""
    return f"\0tf-launcher-{run_name[:80]}"


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
        time.sleep(_CONNECT_PAUSE_SECONDS)
    sock.settimeout(max(_CONNECT_PAUSE_SECONDS, until - time.monotonic()))


def accept_own(listener: socket.socket) -> list[socket.socket]:
    """Accept what waits, up to a limit; drop the connections of other users.

    Args:
        listener: a Unix socket that does not block.
    """
    accepted = []
    for _ in range(MAX_ACCEPTED):
        try:
            peer, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it stays readable: do not look all the time
                time.sleep(_NO_DESCRIPTOR_PAUSE_SECONDS)
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

"""Reads files and accepts connections although other users of this machine may have tampered with them.

Another user may have put a pipe, a device, a link or an endless file in the place of a file. Any user can
connect to an abstract socket and fill its queue. So no function here may block or read without a limit, or
answer another user. The launcher and the agent call it.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from typing import BinaryIO

from launcher.common.text import closest_match, escape_controls

_MFD_CLOEXEC = 1
#: The largest size of a file that a person has written.
MAX_FILE_BYTES = 1 << 20


def open_regular(path: str, links: bool = True) -> BinaryIO:
    """Open a regular file for reading, and refuse a pipe or a device in its place.

    Opening never blocks, even if another user puts a pipe there at this moment.

    Args:
        path: The path of the file.
        links: Whether the last part of the path may be a symbolic link.

    Raises:
        OSError: The file does not exist, or is not a regular file.
    """
    mode = os.stat(path, follow_symlinks=links).st_mode
    # This is checked before the file is opened, because opening some devices has effects. It is checked again
    # afterwards, because another user may have replaced the file between the two checks.
    if stat.S_ISREG(mode):
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
        file = os.fdopen(os.open(path, flags), "rb")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def memory_file(name: str) -> int:
    """Return the descriptor of a new file in memory, which has no path that others could open.

    Args:
        name: What process lists call it.

    Raises:
        OSError: No file descriptor is left, or the system has no such files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    # A Python that was built for older systems, too, such as many of uv, does not have that function.
    import ctypes  # noqa: PLC0415 - takes 5 ms

    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.memfd_create(os.fsencode(name), _MFD_CLOEXEC) if hasattr(libc, "memfd_create") else -1
    if fd < 0:
        number = ctypes.get_errno() or errno.ENOSYS
        raise OSError(number, os.strerror(number))
    return fd


def read_regular(path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a regular file, and refuse a large file, a pipe or a device in its place.

    Args:
        path: The path of the file.
        max_bytes: The largest size in bytes.

    Raises:
        OSError: The file does not exist, is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        return read_at_most(file, max_bytes)


def read_at_most(file: BinaryIO, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the rest of an open file.

    Args:
        file: The file.
        max_bytes: The largest size of the rest in bytes.

    Raises:
        OSError: The rest is larger.
    """
    # One byte more shows that the rest is larger.
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes // 1024} KiB")
    return data


def is_ours(user: int) -> bool:
    """Return whether files of a user can be trusted, because it is this user or root.

    Args:
        user: The numeric id of the user.
    """
    return user in (0, os.geteuid())


def similar_file(path: str) -> str:
    """Return the path that the user may have meant: of a file with a similar name in the same folder.

    Args:
        path: The path of a file that does not exist.

    Returns:
        The path. It is empty if no file has a similar name.
    """
    folder, name = os.path.split(path)
    try:
        guess = closest_match(name, os.listdir(os.path.expanduser(folder) or "."))
    except OSError:
        return ""
    return os.path.join(folder, guess) if guess else ""


def meant_file(path: str) -> str:
    """Return ``did you mean FILE?`` for a file that does not exist.

    It is empty if no file in the folder has a similar name.
    """
    guess = similar_file(path)
    return f"did you mean {escape_controls(guess)}?" if guess else ""


#: How many connections the kernel keeps until the listening process accepts them. With a longer queue, every
#: client would wait longer while many connect at once.
SOCKET_BACKLOG = 128
#: How many connections are accepted at a time, because the process has other work to do.
MAX_ACCEPTED = 64
#: The pause before another try to enter a full queue.
_CONNECT_PAUSE_SECONDS = 0.001
#: The pause after no file descriptor was left for a connection.
_NO_DESCRIPTOR_PAUSE_SECONDS = 0.05
#: The pid, user id and group id that the kernel reports for SO_PEERCRED (unix(7)).
_CREDENTIALS = struct.Struct("3i")
#: The largest size of a request to a control socket, and of a packet of events.
PACKET_BYTES = 1 << 16


def control_address(run_name: str) -> str:
    """Return the abstract address of the Unix socket by which other commands ask the launcher of a run."""
    # An address has at most 107 bytes, see unix(7).
    return f"\0tf-launcher-{run_name[:80]}"


def connect_unix(sock: socket.socket, address: str, seconds: float) -> None:
    """Connect a Unix socket, and try again while the queue of the listening process is full.

    Afterwards the time limit of the socket is what is left of the seconds.

    Args:
        sock: The socket.
        address: A path, or an abstract address.
        seconds: The time limit for connecting and for what follows.

    Raises:
        ConnectionRefusedError: No process listens.
        FileNotFoundError: The path does not exist.
        TimeoutError: The queue was full all the time.
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
    """Accept the connections that wait on a socket, and close those of other users.

    Args:
        listener: A listening Unix socket that does not block.

    Returns:
        The connections of this user, at most `MAX_ACCEPTED`. It is empty if none waits.
    """
    accepted = []
    for _ in range(MAX_ACCEPTED):
        try:
            peer, _ = listener.accept()
        except OSError as error:
            # Without a free descriptor the listener stays readable. The pause keeps the loop from spinning.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_NO_DESCRIPTOR_PAUSE_SECONDS)
            break
        _, user = process_and_user(peer)
        if user == os.geteuid():
            accepted.append(peer)
        else:
            peer.close()
    return accepted


def process_and_user(peer: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of the other end of a Unix socket, as the kernel knows them."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid

"""The door of a porter: where the connections of later come in.

An abstract unix socket: no file, gone with its process. Other users are turned away by the kernel's word on
who they are. The first half of the token is in its name, which all can see; whoever comes must know the rest.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import List, Optional

#: Who may wait at the door at once, known to be this user.
_MOST_WAITING = 8
#: Seconds for which nobody is let in when there is no descriptor for who has come; and how that is told.
_FULL = 0.2
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ATTEMPT = struct.Struct("<I")
_FD, _FDS = struct.Struct("i"), struct.Struct("2i")
_CREDENTIALS = struct.Struct("3i")
#: Seconds for the kernel to take a message of a hundred bytes, of which none waits.
_KNOCK_SECONDS = 5.0


class Connection:
    """A connection from the launcher, and the process that brought it, which stays while it is used.

    Args:
        reading, writing: its ends; made non-blocking.
        bearer: a socket to that process.
        attempt: which of the launcher's connections it is.
    """

    def __init__(self, reading: int, writing: int, bearer: socket.socket, attempt: int) -> None:
        self.reading = reading
        self.writing = writing
        self.bearer = bearer
        self.attempt = attempt
        for fd in (reading, writing):
            os.set_blocking(fd, False)

    def close(self, last_words: str = "") -> None:
        """Let go of it: its bearer ends, after saying these words to the launcher's log."""
        try:
            self.bearer.send(last_words.encode("utf-8", "replace")[:4096])
        except OSError:  # it has ended
            pass
        self.bearer.close()
        for fd in (self.reading, self.writing):
            os.close(fd)


class Door:
    """The listening side.

    Args:
        token: what a bearer must know.

    Raises:
        OSError: a porter with this token lives here already (EADDRINUSE).
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._waiting: List[socket.socket] = []
        self._open_at = 0.0
        #: Of which nothing ever comes.
        self._nobody = select.epoll()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        try:
            self._listener.bind(_address(token))
            self._listener.listen(_MOST_WAITING)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Readable when somebody comes who may be let in; -1 once it is closed."""
        closed = self._listener.fileno() < 0
        return (
            self._listener.fileno() if closed or time.monotonic() >= self._open_at else self._nobody.fileno()
        )

    def waiting(self) -> List[int]:
        """File descriptors, readable when a connection is handed in."""
        return [bearer.fileno() for bearer in self._waiting]

    def enter(self) -> None:
        """Let in who has come."""
        try:
            bearer, _ = self._listener.accept()
        except OSError as error:  # nobody is there any more; or stays there, and would be seen again at once
            if error.errno in _NO_ROOM:
                self._open_at = time.monotonic() + _FULL
            return
        if _peer_uid(bearer) != os.getuid() or len(self._waiting) == _MOST_WAITING:
            bearer.close()
            return
        bearer.setblocking(False)
        self._waiting.append(bearer)

    def take(self, fd: int) -> Optional[Connection]:
        """Take what the bearer at ``fd`` hands in; ``None``: it is no connection."""
        bearer = next(one for one in self._waiting if one.fileno() == fd)
        self._waiting.remove(bearer)
        try:
            connection = self._received(bearer)
        except OSError:
            connection = None
        if connection is None:
            bearer.close()
        return connection

    def _received(self, bearer: socket.socket) -> Optional[Connection]:
        data, ancillary, _, _ = bearer.recvmsg(256, socket.CMSG_SPACE(_FDS.size), socket.MSG_CMSG_CLOEXEC)
        fds = [fd for _, _, payload in ancillary for (fd,) in _FD.iter_unpack(payload)]
        if data[_ATTEMPT.size :] != self._token or len(fds) != 2:
            for fd in fds:
                os.close(fd)
            return None
        return Connection(fds[0], fds[1], bearer, _ATTEMPT.unpack_from(data)[0])

    def close(self) -> None:
        """Nobody may come any more."""
        self._nobody.close()
        for bearer in (self._listener, *self._waiting):
            bearer.close()
        self._waiting.clear()


def knock(token: str, attempt: int, reading: int, writing: int) -> Optional[socket.socket]:
    """Bring a connection to the porter with this token.

    Returns:
        A socket that is at its end when the porter has let go of it; ``None``: no such porter lives here.
    """
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        door.settimeout(_KNOCK_SECONDS)
        door.connect(_address(token))
        if _peer_uid(door) == os.getuid():
            message = _ATTEMPT.pack(attempt) + token.encode()
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, _FDS.pack(reading, writing))
            door.sendmsg([message], [rights])
            door.settimeout(None)
            return door
    except OSError:  # refused: nobody listens; reset: it is ending
        pass
    door.close()
    return None


def await_release(door: socket.socket) -> str:
    """Wait until the porter lets go of what was handed in; its words, if it has any."""
    try:
        return door.recv(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def _address(token: str) -> str:
    return f"\0tf-launcher-{os.getuid()}-{token[: len(token) // 2]}"


def _peer_uid(peer: socket.socket) -> int:
    """Who is at the other end, in the words of the kernel."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])

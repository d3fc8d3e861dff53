"""The side that is reached: a port that is held as a task's is, and served as TensorFlow serves it.

A connection is spoken over like this, the first line by whoever connects::

    challenge\\n  ->        everybody in this check knows it
    <-  token\\n            only the host that was meant knows it
    p  ->  <-  p           three times: the round trip
    b  ->  <-  64 KiB      small packets get through where large ones may not
"""

from __future__ import annotations

import socket
import threading

from launcher.agent.ports import PortKeeper, in_both_worlds
from launcher.job import TaskId

#: Connections that are answered at a time.
_GUESTS = 128
#: Seconds for a guest to say all it has to say.
_GUEST_PATIENCE = 30.0
#: Bytes of the large answer, and of the longest line that is read.
LARGE = 64 * 1024
_LONGEST_LINE = 256


class Listener:
    """Serves a port that is held as a task's is, beside the holder, as TensorFlow serves it.

    It does until its process ends.

    Args:
        challenge: what a guest says first.
        token: the answer.

    Raises:
        OSError: there is no port to have.
    """

    def __init__(self, challenge: str, token: str) -> None:
        self._challenge = challenge.encode("ascii") + b"\n"
        self._token = token.encode("ascii") + b"\n"
        self._room = threading.BoundedSemaphore(_GUESTS)
        self._keeper = PortKeeper()
        self.port = self._keeper.hold(TaskId("check/0"))
        try:
            self._server = _serve_beside(self.port)
        except OSError:
            self._keeper.release_all()
            raise
        threading.Thread(target=self._welcome, daemon=True).start()

    def _welcome(self) -> None:
        while True:
            try:
                guest = self._server.accept()[0]
            except OSError:
                return
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._host, args=(guest,), daemon=True).start()
            else:
                guest.close()

    def _host(self, guest: socket.socket) -> None:
        """Answer one guest; a stranger is sent away."""
        try:
            with guest:
                guest.settimeout(_GUEST_PATIENCE)
                guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if read_line(guest) == self._challenge:
                    guest.sendall(self._token)
                    self._answer(guest)
        except OSError:
            return  # the guest reports what became of it
        finally:
            self._room.release()

    def _answer(self, guest: socket.socket) -> None:
        asked = guest.recv(1)
        while asked:
            guest.sendall(b"p" if asked == b"p" else bytes(LARGE))
            asked = guest.recv(1)


def _serve_beside(port: int) -> socket.socket:
    """Listen on a port that is held: with SO_REUSEADDR, as gRPC's server does."""

    def listen(server: socket.socket, address: str) -> None:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(_GUESTS)

    return in_both_worlds(listen)


def read_line(line: socket.socket) -> bytes:
    """What is said up to the end of a line, or what there was of it."""
    said = b""
    while len(said) < _LONGEST_LINE and not said.endswith(b"\n"):
        data = line.recv(1)
        if not data:
            break
        said += data
    return said

"""Where the tasks of a job come in: sockets of the driving program, and one thread that lets in who has the
key."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from launcher.feed.handshake import Step, Stranger, greet
from launcher.feed.keepalive import keep_alive

#: How many may be talking at the door at once; one more, and whoever has been there longest is sent away: a
#: task needs milliseconds. And the seconds that anybody may need.
MOST_STRANGERS, PATIENCE = 64, 10.0

#: Seconds for which nobody is let in when there is no descriptor for whoever knocks.
_FULL = 0.2

#: The longest path of the folder of a unix socket, in bytes.
LONGEST_FOLDER = 90


#: What `accept` says when there is no descriptor, or no memory for one.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Guest(NamedTuple):
    """A task that has come in."""

    #: ``worker/0``, and which start of it, from 1.
    task: str
    attempt: int
    #: ``member`` or ``feed``; and for the latter the feed's name.
    purpose: str
    feed: str
    #: All that it said of itself.
    hello: Mapping[str, Any]
    #: It blocks, and is the caller's now.
    sock: socket.socket


class _Visit:
    """Somebody at the door, who may be anybody."""

    def __init__(self, sock: socket.socket, key: bytes, until: float) -> None:
        self.sock = sock
        self.until = until
        self._talk: Generator[Step, bytes, Mapping[str, Any]] = greet(key)
        self._read = bytearray()
        self._wanted = 0
        #: It has said anything at all. Tasks of ours that have come in by another way leave without.
        self.spoke = False
        #: What it said of itself; ``None``: it has not yet.
        self.hello: Mapping[str, Any] | None = None
        self._go_on(None)

    def heard(self) -> None:
        """Read what is there, and answer.

        Raises:
            Stranger: it is none of ours.
            OSError: it is gone.
        """
        more = self.sock.recv(self._wanted - len(self._read))
        if not more:
            raise Stranger("it hung up")
        self.spoke = True
        self._read += more
        if len(self._read) == self._wanted:
            said, self._read = bytes(self._read), bytearray()
            self._go_on(said)

    def _go_on(self, said: bytes | None) -> None:
        try:
            step = next(self._talk) if said is None else self._talk.send(said)
        except StopIteration as end:
            self.hello = end.value
            return
        if step.send and self.sock.send(step.send) < len(step.send):  # a hundred bytes on a new connection
            raise Stranger("it does not listen")
        self._wanted = step.read


class Door:
    """Listens, and lets in who has the key.

    Args:
        key: the secret; at least 16 bytes.
        folder: of the unix socket; private to the user.
        tcp: listen to the network, too.
        remark: is told of strangers, once.

    Raises:
        OSError: there is no place for a socket.
    """

    def __init__(
        self, key: bytes, folder: str, tcp: bool = False, remark: Callable[[str], None] = lambda text: None
    ) -> None:
        self._key = key
        self._remark = remark
        self._said = False
        self._visits: dict[socket.socket, _Visit] = {}
        #: When it is listened again, if it is not.
        self._listen_at: float | None = None
        self._on_guest: Callable[[Guest], None] = lambda guest: guest.sock.close()
        self.path = os.path.join(folder, "door")
        if len(os.fsencode(folder)) > LONGEST_FOLDER:
            raise OSError(f"the path of a socket in {folder!r} would be too long")
        self._listening = [_listening(socket.AF_UNIX, self.path)]
        self.port = 0
        if tcp:
            both = _listening(socket.AF_INET6, ("::", 0)) if socket.has_dualstack_ipv6() else None
            self._listening.append(both or _listening(socket.AF_INET, ("0.0.0.0", 0)))
            self.port = self._listening[-1].getsockname()[1]
        self._waking, self._wake = socket.socketpair()
        self._thread: threading.Thread | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it can be found: on this machine, then over the network."""
        if not self.port:
            return (f"unix:{self.path}",)
        return (f"unix:{self.path}", *(f"tcp:{host}:{self.port}" for host in own_addresses()))

    def serve(self, on_guest: Callable[[Guest], None]) -> None:
        """Let tasks in from now on, in a thread; each is given to ``on_guest``, which must be quick.

        Raises:
            OSError: there is no descriptor to be had.
        """
        self._on_guest = on_guest
        selector = selectors.DefaultSelector()
        for sock in (*self._listening, self._waking):
            selector.register(sock, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, args=(selector,), name="launch-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody comes in any more; those who are in stay."""
        self._wake.close()
        if self._thread is not None:
            self._thread.join()
        for sock in (*self._listening, self._waking, *self._visits):
            sock.close()
        try:
            os.unlink(self.path)
        except OSError:  # somebody has cleaned up before us
            pass

    def _run(self, selector: selectors.BaseSelector) -> None:
        with selector:
            while True:
                self._listen_again(selector)
                for key, _ in selector.select(self._next_end()):
                    if key.fileobj is self._waking:
                        return
                    self._happened(selector, key.fileobj)
                self._send_away(selector)

    def _next_end(self) -> float | None:
        ends = [visit.until for visit in self._visits.values()]
        ends += [] if self._listen_at is None else [self._listen_at]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _happened(self, selector: selectors.BaseSelector, sock: Any) -> None:
        if sock in self._listening:
            self._come(selector, sock)
        elif sock in self._visits:
            self._talk(selector, self._visits[sock])

    def _come(self, selector: selectors.BaseSelector, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
            sock.setblocking(False)
            keep_alive(sock)
        except OSError as error:  # it has left again; or there are no descriptors, and others will go
            if error.errno in _NO_ROOM:
                self._listen_later(selector)
            return
        if len(self._visits) >= MOST_STRANGERS:
            self._drop(selector, next(iter(self._visits.values())), "others are waiting")
        try:
            self._visits[sock] = _Visit(sock, self._key, time.monotonic() + PATIENCE)
            selector.register(sock, selectors.EVENT_READ)
        except (OSError, Stranger):
            self._visits.pop(sock, None)
            sock.close()

    def _listen_later(self, selector: selectors.BaseSelector) -> None:
        """Whoever knocks stays, and would be seen again and again."""
        for sock in self._listening:
            if sock in selector.get_map():
                selector.unregister(sock)
        self._listen_at = time.monotonic() + _FULL

    def _listen_again(self, selector: selectors.BaseSelector) -> None:
        if self._listen_at is not None and time.monotonic() >= self._listen_at:
            self._listen_at = None
            for sock in self._listening:
                selector.register(sock, selectors.EVENT_READ)

    def _talk(self, selector: selectors.BaseSelector, visit: _Visit) -> None:
        try:
            visit.heard()
        except (BlockingIOError, InterruptedError):
            return
        except (Stranger, OSError) as error:
            self._drop(selector, visit, str(error) if visit.spoke else "")
            return
        if visit.hello is not None:
            selector.unregister(visit.sock)
            del self._visits[visit.sock]
            visit.sock.setblocking(True)
            hello = visit.hello
            feed = str(hello.get("feed", ""))
            self._on_guest(Guest(hello["task"], hello["attempt"], hello["purpose"], feed, hello, visit.sock))

    def _send_away(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        for visit in [visit for visit in self._visits.values() if visit.until <= now]:
            self._drop(selector, visit, f"it has said nothing for {PATIENCE:g} s")

    def _drop(self, selector: selectors.BaseSelector, visit: _Visit, why: str) -> None:
        selector.unregister(visit.sock)
        del self._visits[visit.sock]
        visit.sock.close()
        if why and not self._said:
            self._said = True
            self._remark(f"somebody who is no task of this job has knocked, and was sent away: {why}")


def _listening(family: int, address: Any) -> socket.socket:
    sock = socket.socket(family)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(128)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def own_addresses() -> list[str]:
    """The addresses at which other machines may reach this one, IPv6 in brackets."""
    import psutil

    found = []
    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                found.append(entry.address)
            elif entry.family == socket.AF_INET6 and not entry.address.startswith(("fe80", "::1")):
                found.append(f"[{entry.address}]")
    return found

"""How a task comes to the program that drives its job: both prove that they have the key of the job.

Nothing of the other end is more than bytes before it has proved to have the key. What is said at a door
(`launcher.feed.handshake` is its other side)::

    door:  GREETING, 32 random bytes
    task:  32 random bytes, HMAC-SHA256(key, "task" + the door's + the task's)
    door:  HMAC-SHA256(key, "door" + the task's + the door's)
    task:  four bytes of length, and who it is, in JSON

Part of what a task runs before anything of ours is there: see `launcher.feed.arriving`.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import time

from launcher.feed.keepalive import keep_alive
from launcher.feed.ways import ANSWER, Closed, answering, place_of, unix

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

GREETING = b"tf-launcher feed 1\n"
NONCE = PROOF = 32
#: Seconds between two rounds of knocking.
PAUSE = 0.2
#: Seconds after which whoever reads our output should know why nothing happens.
SILENCE = 2.0


class Shut(Closed):
    """No door opens."""


class Doors:
    """The doors of one job, as a task knows them.

    Args:
        addresses: ``unix:/path`` and ``tcp:host:port``.
        relay: ``host:port`` on this machine that leads there too, if slower; empty: there is none.
        key: the secret that both ends have.
        who: what a task says of itself at each door.
    """

    def __init__(self, addresses: Iterable[str], relay: str, key: bytes, who: Mapping[str, Any]) -> None:
        self.who = dict(who)
        self._key = key
        words = [address.partition(":")[::2] for address in addresses]
        places = [place_of(rest) for kind, rest in words if kind == "tcp"]
        self._ways: list[tuple[str, Callable[[], Iterator[socket.socket]]]] = [
            (path, unix(path)) for kind, path in words if kind == "unix"
        ]
        if places:
            self._ways.append(("over the network", lambda: answering(places)))
        if relay:
            self._ways.append(("by way of " + relay, lambda: answering([place_of(relay)])))

    def knock(self, purpose: str, patience: float = 30.0, **more: Any) -> socket.socket:
        """Come in: a connection, and both ends are who they should be. It blocks, without a limit.

        Args:
            purpose: ``member``, ``feed``...
            patience: seconds.
            more: what else to say.

        Raises:
            Shut: not in that time; says what was tried.
        """
        hello = {**self.who, "purpose": purpose, **more}
        since = time.monotonic()
        said = False
        while True:
            line, faults = self._tried(hello)
            if line is not None:
                return line
            why = "no way to the program that drives the job: " + "; ".join(faults)
            waited = time.monotonic() - since
            if waited >= patience:
                raise Shut(why)
            if waited > SILENCE and not said:
                said = True
                print(why + "; trying on for", round(patience), "s", file=sys.stderr, flush=True)
            time.sleep(PAUSE)

    def _tried(self, hello: Mapping[str, Any]) -> tuple[socket.socket | None, list[str]]:
        """The first way that leads in, or why none does. It is the first one to be tried the next time."""
        faults = []
        for way in list(self._ways):
            try:
                line = _entered(way[1](), self._key, hello)
            except OSError as error:
                faults.append(f"{way[0]}: {error}")
            else:
                self._ways.remove(way)
                self._ways.insert(0, way)
                return line, []
        return None, faults


def _entered(lines: Iterator[socket.socket], key: bytes, hello: Mapping[str, Any]) -> socket.socket:
    """The first of some connections that leads to a door of ours, once both ends have proved to have the key.

    Raises:
        OSError: none does; says why of the last.
    """
    fault = OSError("there is nobody")
    for line in lines:
        try:
            line.settimeout(ANSWER)
            keep_alive(line)
            greet(line, key, hello)
            line.settimeout(None)
            return line
        except OSError as error:
            line.close()
            fault = error
    raise fault


def greet(line: socket.socket, key: bytes, hello: Mapping[str, Any]) -> None:
    """The task's side of what is said at a door.

    Raises:
        OSError: the other end is gone, silent, or has not the key.
    """
    if exactly(line, len(GREETING)) != GREETING:
        raise Closed("what answers there is no door of ours")
    theirs, ours = exactly(line, NONCE), os.urandom(NONCE)
    line.sendall(ours + hmac.digest(key, b"task" + theirs + ours, "sha256"))
    if not hmac.compare_digest(exactly(line, PROOF), hmac.digest(key, b"door" + ours + theirs, "sha256")):
        raise Closed("what answers there has not the key of this job")
    text = json.dumps(hello).encode()
    line.sendall(len(text).to_bytes(4, "big") + text)


def exactly(line: socket.socket, size: int) -> bytes:
    """So many bytes.

    Raises:
        Closed: there are fewer.
    """
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = line.recv_into(view)
        if not count:
            raise Closed("the other end hung up")
        view = view[count:]
    return bytes(found)

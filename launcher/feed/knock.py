"""How a task comes to the program that drives its job: both prove that they have the key of the job.

A task is started as ``python -c`` `KNOCK`. That runs the text of this very file, which is in its environment:
so nothing need be installed where it runs, and no command line is long. It knocks at the doors that are named
there until one opens, is given the modules of ours that it needs, and goes on with `launcher.api.runner`.
Only the standard library, any Python since 3.8 (one that is too old is told so at the door), and nothing of
the other end is more than bytes before it has proved to have the key.

What is said at a door (`launcher.feed.handshake` is its other side)::

    door:  GREETING, 32 random bytes
    task:  32 random bytes, HMAC-SHA256(key, "task" + the door's + the task's)
    door:  HMAC-SHA256(key, "door" + the task's + the door's)
    task:  four bytes of length, and who it is, in JSON
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import select
import socket
import sys
import time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Place = tuple[str, int]

#: What a task is started with: short, the same for all, no secret in it.
KNOCK = "import os; exec(os.environ.pop('LAUNCH_KNOCK'), {'__name__': '__main__'})"

#: What a task goes on with: of what it was given, and started by its name, as an agent is.
RUNNER = "launcher.api.runner"

GREETING = b"tf-launcher feed 1\n"
NONCE = PROOF = 32
#: Of the size before the modules; below zero it is a reason instead.
SIZE = 10

#: Seconds: for a door to say all of its part; for a connection over the network to be made, after which the
#: way through the launcher's own connection is tried; and between two rounds of knocking.
ANSWER, CONNECT, PAUSE = 10.0, 1.5, 0.2
#: How often a task asks for what it needs, if its connection breaks meanwhile.
TRIES = 3
#: Seconds after which whoever reads our output should know why nothing happens.
SILENCE = 2.0


class Closed(OSError):
    """This is no way in."""


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
        places = [_place(rest) for kind, rest in words if kind == "tcp"]
        self._ways: list[tuple[str, Callable[[], Iterator[socket.socket]]]] = [
            (path, _unix(path)) for kind, path in words if kind == "unix"
        ]
        if places:
            self._ways.append(("over the network", lambda: _answering(places)))
        if relay:
            self._ways.append(("by way of " + relay, lambda: _answering([_place(relay)])))

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
            _keep_alive(line)
            greet(line, key, hello)
            line.settimeout(None)
            return line
        except OSError as error:
            line.close()
            fault = error
    raise fault


def _keep_alive(line: socket.socket) -> None:
    """Let a connection over the network break half a minute after the network did.

    As `launcher.feed.keepalive` does, which is not here yet.
    """
    if line.family == socket.AF_UNIX:
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("KEEPIDLE", 10), ("KEEPINTVL", 5), ("KEEPCNT", 4), ("NODELAY", 1)):
        line.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_" + option), value)


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


def _place(text: str) -> Place:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _unix(path: str) -> Callable[[], Iterator[socket.socket]]:
    """Makes a connection to a socket of this machine."""

    def connected() -> Iterator[socket.socket]:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(ANSWER)
            line.connect(path)
        except BaseException:
            line.close()
            raise
        yield line

    return connected


def _answering(places: Iterable[Place]) -> Iterator[socket.socket]:
    """Connections to those of these at which somebody speaks, as a door does, in the order in which they do.

    All are tried at once: a machine has addresses that not all can reach, and some that others have too.

    Raises:
        OSError: there are no more; says why of each.
    """
    faults: list[str] = []
    lines: dict[int, tuple[socket.socket, Place]] = {}
    until = time.monotonic() + CONNECT
    poll = select.poll()
    try:
        for place in places:
            line = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
            lines[line.fileno()] = (line, place)
            line.setblocking(False)
            fault = line.connect_ex(place)
            if fault in (0, errno.EINPROGRESS):
                poll.register(line, select.POLLIN)
            else:
                lines.pop(line.fileno())
                line.close()
                faults.append(f"{place[0]} port {place[1]}: {os.strerror(fault)}")
        while lines and time.monotonic() < until:
            for number, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000):
                line, place = lines.pop(number)
                poll.unregister(line)
                fault = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not fault:
                    yield line
                else:
                    line.close()
                    faults.append(f"{place[0]} port {place[1]}: {os.strerror(fault)}")
        faults += [f"{place[0]} port {place[1]}: no answer" for _, place in lines.values()]
        raise Closed(", ".join(faults) or "what answers there is no door of ours")
    finally:
        for line, _ in lines.values():
            line.close()


def from_environment() -> Doors:
    """The doors that the environment names; the key is taken out of it."""
    environ = os.environ
    who = {
        "task": "/".join((environ.get("JOB_NAME", ""), environ.get("TASK_INDEX", ""))),
        "attempt": int(environ.get("TASK_ATTEMPT", "1")),
        "python": list(sys.version_info[:2]),
        "pid": os.getpid(),
    }
    key = bytes.fromhex(environ.pop("LAUNCH_FEED_KEY"))
    return Doors(json.loads(environ.pop("LAUNCH_FEED")), environ.pop("LAUNCH_RELAY", ""), key, who)


def carried(line: socket.socket) -> bytes:
    """What the driver gives a member first: modules of ours.

    Raises:
        SystemExit: it gives a reason instead not to go on.
    """
    size = int(exactly(line, SIZE))
    if size < 0:
        sys.exit(exactly(line, -size).decode("utf-8", "replace"))
    return exactly(line, size)


def install(bundle: bytes) -> None:
    """From now on these modules are imported from what was carried here, whatever is installed."""
    import marshal
    import zlib
    from importlib.machinery import ModuleSpec

    modules: dict[str, tuple[bool, str, bytes]] = marshal.loads(zlib.decompress(bundle))

    class Carried:
        """Finds and loads them."""

        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            """Its place among the carried ones."""
            if name not in modules:
                return None
            is_package, file, _ = modules[name]
            loader: Any = cls
            return ModuleSpec(name, loader, origin=file, is_package=is_package)

        @classmethod
        def create_module(cls, spec: ModuleSpec) -> None:
            """The usual kind."""

        @classmethod
        def exec_module(cls, module: ModuleType) -> None:
            """Run its code."""
            _, module.__file__, code = modules[module.__name__]
            exec(marshal.loads(code), module.__dict__)

    finder: Any = Carried
    sys.meta_path.insert(0, finder)


def main() -> None:
    """All that a task does before it runs anything of the user's."""
    doors = from_environment()
    for left in reversed(range(TRIES)):
        try:
            line = doors.knock("member")
            install(carried(line))
            break
        except OSError as error:  # the network broke after we came in; or there was no way in at all
            if not left or isinstance(error, Shut):
                sys.exit(f"{doors.who['task']}: {error}")
    __import__(RUNNER, fromlist=["main"]).main(line, doors)


if __name__ == "__main__":
    main()

"""``launch`` with one more backend, whose hosts are simulated: ``simulated.py --simulated FOLDER ARGV...``.

`bench.scale.simulation` starts it in place of ``launch``. A program on a host is a connection to a socket in
the
folder: first a line with the host, the entry and the arguments, then what `bench.scale.agents` and the
launcher send each other.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from launcher.__main__ import main
from launcher.backends import BACKENDS, bootstrap
from launcher.backends.backend import Allocation, Backend, LaunchRequest, with_default_python
from launcher.backends.connections import Connections
from launcher.backends.programs import RemoteProgram
from launcher.common.errors import TransportError
from launcher.config.settings import Group, Setting, Settings
from launcher.job import Host, JobSpec

#: Seconds for a simulator to accept a connection.
_ACCEPTING = 30.0


class SocketPipe:
    """The pipe to a program on a simulated host; see `launcher.backends.programs.Pipe`."""

    def __init__(self, host: str, sock: socket.socket) -> None:
        self._host, self._socket = host, sock

    def fileno(self) -> int:
        """See `Pipe.fileno`."""
        return self._socket.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `Pipe.recv`."""
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(f"{self._host}: {error.strerror}") from error

    def send(self, data: bytes | memoryview) -> int:
        """See `Pipe.send`."""
        try:
            return self._socket.send(data)
        except OSError:  # full, or closed: `recv` reports which
            return 0

    def wait(self, seconds: float) -> int | None:
        """See `Pipe.wait`: a simulated program ends well."""
        return 0

    def stderr(self) -> str:
        """See `Pipe.stderr`."""
        return ""

    def close(self) -> None:
        """See `Pipe.close`."""
        self._socket.close()


class Simulators(Connections):
    """Connects to simulators: each program has a connection of its own."""

    def __init__(self, sockets: Sequence[str]) -> None:
        self._sockets = sockets

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `ProgramRunner.run`. The number in a host's name chooses its simulator."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(_ACCEPTING)
            sock.connect(self._sockets[int(host[1:]) % len(self._sockets)])
            sock.sendall(json.dumps([host, entry, arguments]).encode() + b"\n")
        except OSError as error:
            sock.close()
            raise TransportError(f"{host}: its simulator does not answer: {error}") from error
        sock.setblocking(False)
        return RemoteProgram(host, SocketPipe(host, sock), is_ready=True)


SIMULATED: Setting[str | None] = Setting(
    "simulated", str, "the hosts are simulated", metavar="FOLDER", default=None
)


class Simulated(Backend[list[str]]):
    """The backend; its options are the sockets."""

    name = "simulated"
    group = Group("simulation", (SIMULATED,))

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> list[str] | None:
        """See `Backend.parse`."""
        place = settings[SIMULATED]
        return None if place is None else sorted(f"{place}/{name}" for name in os.listdir(place))

    def allocate(self, options: list[str], request: LaunchRequest) -> Allocation:
        """See `Backend.allocate`."""
        return SimulatedAllocation(options, request)


class SimulatedAllocation(Allocation):
    """The hosts that the user names."""

    def __init__(self, options: list[str], request: LaunchRequest) -> None:
        super().__init__(request, with_default_python(request, request.named_hosts))
        self._sockets = options

    def connect(self, hosts: Sequence[Host]) -> AbstractContextManager[Connections]:
        """See `Allocation.connect`."""
        bootstrap.packed(bootstrap.AGENT_MODULES)
        return nullcontext(Simulators(self._sockets))


BACKEND = Simulated()

if __name__ == "__main__":
    BACKENDS["simulated"] = __name__
    sys.exit(main())

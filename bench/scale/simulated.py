"""``launch`` with one more backend, whose hosts are simulated: ``simulated.py --simulated FOLDER ARGV...``.

`bench.scale.simulation` starts it in place of ``launch``. A program on a host is a connection to a socket in
the folder: first a line with the host, the entry and the arguments, then what `bench.scale.agents` and the
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

#: The time limit for a simulator to accept a connection.
_ACCEPTING = 30.0


class SocketPipe:
    """A `launcher.backends.programs.Pipe` to a program on a simulated host.

    Args:
        host: The name of the host.
        sock: The connection to its simulator.
    """

    def __init__(self, host: str, sock: socket.socket) -> None:
        self._host, self._socket = host, sock

    def fileno(self) -> int:
        """Return the descriptor of the connection, for the event loop."""
        return self._socket.fileno()

    def recv(self, size: int) -> bytes | None:
        """Return the bytes that have arrived, or None if there are none yet. No bytes mean the end."""
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(f"{self._host}: {error.strerror}") from error

    def send(self, data: bytes | memoryview) -> int:
        """Send as many bytes as the connection accepts now, and return their number."""
        try:
            return self._socket.send(data)
        except OSError:  # full, or closed: `recv` reports which
            return 0

    def wait(self, seconds: float) -> int | None:
        """Return 0, because a simulated program always exits with 0."""
        return 0

    def stderr(self) -> str:
        """Return an empty text, because a simulated program prints nothing."""
        return ""

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Simulators(Connections):
    """Connections to simulators, where each program has a connection of its own.

    Args:
        sockets: The paths of the sockets of the simulators.
    """

    def __init__(self, sockets: Sequence[str]) -> None:
        self._sockets = sockets

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program on a host, whose simulator follows from the number in the name of the host.

        Raises:
            TransportError: The simulator does not answer.
        """
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
    """The backend of simulated hosts. Its options are the paths of the sockets."""

    name = "simulated"
    group = Group("simulation", (SIMULATED,))

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> list[str] | None:
        """Return the paths of the sockets in the folder of ``--simulated``, or None without this option."""
        place = settings[SIMULATED]
        return None if place is None else sorted(f"{place}/{name}" for name in os.listdir(place))

    def allocate(self, options: list[str], request: LaunchRequest) -> Allocation:
        """Return the allocation of the hosts that the user names."""
        return SimulatedAllocation(options, request)


class SimulatedAllocation(Allocation):
    """The hosts that the user names, all of which are simulated."""

    def __init__(self, options: list[str], request: LaunchRequest) -> None:
        super().__init__(request, with_default_python(request, request.named_hosts))
        self._sockets = options

    def connect(self, hosts: Sequence[Host]) -> AbstractContextManager[Connections]:
        """Return the connections to the simulators, after the work that a launch does for real hosts."""
        bootstrap.packed(bootstrap.AGENT_MODULES)
        return nullcontext(Simulators(self._sockets))


BACKEND = Simulated()

if __name__ == "__main__":
    BACKENDS["simulated"] = __name__
    sys.exit(main())

"""Errands on this machine: a child process with a Python of its own, no SSH."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from launcher.errors import TransportError

if TYPE_CHECKING:
    from typing import IO

#: What the child runs; the first line of its stdin is what the function gets. ``-I -S`` as for the agent.
_BOOTSTRAP = """\
import sys
sys.path.insert(0, sys.argv[1])
import importlib, json, os
module, _, function = sys.argv[2].partition(":")
line = b""
while not line.endswith(b"\\n"):
    line += os.read(0, 1) or sys.exit(1)
sys.exit(getattr(importlib.import_module(module), function)(json.loads(line)))
"""
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SAID_LIMIT = 64 * 1024
#: Seconds for a program to come up and take its arguments; then it is killed.
_ARRIVAL = 60.0
#: Seconds for a program to end after the end of its stdin; then it is killed.
_FAREWELL = 5.0


class LocalErrands:
    """Runs programs of ours here, whatever the host is called; see `launcher.transport.base.Errands`."""

    def errand(self, host: str, entry: str, arguments: object) -> LocalErrand:
        """See `Errands.errand`."""
        argv = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGE_FOLDER, entry]
        ours, its = socket.socketpair()
        said = tempfile.TemporaryFile()  # noqa: SIM115 - the errand closes it
        try:
            with its:
                process = subprocess.Popen(
                    argv, stdin=its.fileno(), stdout=its.fileno(), stderr=said, start_new_session=True
                )
        except OSError as error:
            ours.close()
            said.close()
            raise TransportError(f"{host}: {entry} can't be started: {error.strerror}") from error
        return LocalErrand(host, process, ours, said, arguments)

    def redial(self, host: str) -> None:
        """There is no connection that could break."""
        raise TransportError(f"{host}: nothing connects to this machine")

    def patience(self, host: str) -> float:
        """The same: nothing comes back."""
        return 0.0


class LocalErrand:
    """One of them; see `launcher.transport.base.Errand`."""

    def __init__(
        self,
        host: str,
        process: subprocess.Popen[bytes],
        line: socket.socket,
        said: IO[bytes],
        arguments: object,
    ) -> None:
        self._host = host
        self._process = process
        self._line = line
        self._said = said
        line.settimeout(_ARRIVAL)
        try:
            line.sendall(json.dumps(arguments).encode("ascii") + b"\n")
        except TimeoutError:  # it has a part of them, and would wait for the rest
            process.kill()
        except OSError:  # it has ended already: `recv` and `said` tell
            pass
        line.setblocking(False)

    def fileno(self) -> int:
        """See `Errand.fileno`."""
        return self._line.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `Errand.recv`."""
        try:
            return self._line.recv(size)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it ended without reading all that we said
            return b""

    def send(self, data: bytes | memoryview) -> int:
        """See `Errand.send`."""
        try:
            return self._line.send(data)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError) as error:
            raise TransportError(f"{self._host}: the program there has ended: {self.said()}") from error

    def wait(self, seconds: float) -> int | None:
        """See `Errand.wait`."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else None

    def said(self) -> str:
        """See `Errand.said`."""
        fd = self._said.fileno()
        start = max(0, os.fstat(fd).st_size - _SAID_LIMIT)
        return os.pread(fd, _SAID_LIMIT, start).decode("utf-8", "replace")

    def close(self) -> None:
        """See `Errand.close`; a program that does not end by itself is killed."""
        self._line.close()
        if self._process.returncode is None and self.wait(_FAREWELL) is None:
            self._process.kill()
            self._process.wait()
        self._said.close()

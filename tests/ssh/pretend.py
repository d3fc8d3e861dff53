"""A fleet without SSH: programs are processes of this machine, and their connections do what a test wants.

A connection is two socket pairs with a thread between them, so that bytes can be on their way, late or lost.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from launcher.backends.connections import Connections
from launcher.backends.programs import RemoteProgram
from launcher.common.errors import ConnectionLostError, HostGoneError, TransportError

ROOT = str(Path(__file__).parents[2])
#: What a program runs: its arguments come first on its stdin, as a line of JSON.
START = """
import sys, os, json
sys.path.insert(0, sys.argv[1])
module, _, function = sys.argv[2].partition(":")
line = b""
while not line.endswith(b"\\n"):
    line += os.read(0, 1)
sys.exit(getattr(__import__(module, fromlist=[function]), function)(json.loads(line)))
"""
_PIECE = 64 * 1024


class PretendPipe:
    """See `launcher.backends.programs.Pipe`."""

    def __init__(self, line: PretendLine, python: str, entry: str, arguments: object) -> None:
        self._line = line
        self._ours, ours = socket.socketpair()
        theirs, its = socket.socketpair()
        self._errors = os.memfd_create("stderr")
        argv = [python, "-I", "-S", "-c", START, ROOT, entry]
        self.process = subprocess.Popen(
            argv, stdin=its.fileno(), stdout=its.fileno(), stderr=self._errors, start_new_session=True
        )
        its.close()
        self._ours.setblocking(False)
        theirs.sendall(json.dumps(arguments).encode() + b"\n")
        self._relay = threading.Thread(target=self._carry, args=(ours, theirs), daemon=True)
        self._relay.start()

    def _carry(self, ours: socket.socket, theirs: socket.socket) -> None:
        """Between the launcher and the program, until one of them, or the connection, ends."""
        with ours, theirs:
            while not self._line.is_cut:
                ready = select.select([ours, theirs], [], [], 0.05)[0]
                if self._line.frozen.is_set():
                    time.sleep(0.01)
                elif not all(_pass_on(source, theirs if source is ours else ours) for source in ready):
                    return

    def fileno(self) -> int:
        """See `Pipe.fileno`."""
        return self._ours.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `Pipe.recv`."""
        try:
            data = self._ours.recv(size)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data and self._line.is_cut:
            raise ConnectionLostError(f"{self._line.host}: the connection broke")
        return data

    def send(self, data: bytes | memoryview) -> int:
        """See `Pipe.send`."""
        try:
            return self._ours.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionLostError(f"{self._line.host}: the connection broke") from error

    def wait(self, seconds: float) -> int | None:
        """See `Pipe.wait`."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stderr(self) -> str:
        """See `Pipe.stderr`."""
        return os.pread(self._errors, _PIECE, 0).decode(errors="replace")

    def close(self) -> None:
        """See `Pipe.close`."""
        self._ours.close()

    def end(self) -> None:
        """Let go of everything; the program has a moment to end by itself."""
        self.close()
        self._line.frozen.clear()
        self._relay.join(30)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._errors)


class PretendProgram(RemoteProgram):
    """A program over such a pipe."""

    def __init__(self, line: PretendLine, python: str, entry: str, arguments: object) -> None:
        self.pipe = PretendPipe(line, python, entry, arguments)
        self.process = self.pipe.process
        super().__init__(line.host, self.pipe, is_ready=True)

    def end(self) -> None:
        """See `PretendPipe.end`."""
        self.pipe.end()


def _pass_on(source: socket.socket, target: socket.socket) -> bool:
    """Take some bytes from one to the other; whether there may be more to come."""
    try:
        data = source.recv(_PIECE)
    except OSError:
        return False
    try:
        target.sendall(data)
    except OSError:  # it is closed; what it has sent before is still to be read
        pass
    return bool(data)


class PretendLine:
    """One connection to a host, with the programs on it."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_cut = False
        self.frozen = threading.Event()


class PretendFleet(Connections):
    """See `launcher.transport.ssh.reconnect.Dialling`; one host."""

    def __init__(self, host: str = "node1", python: str = sys.executable) -> None:
        self.host = host
        self.python = python
        self.line = PretendLine(host)
        self.programs: list[PretendProgram] = []
        #: Whether a new connection can be had, and how often that was tried.
        self.reachable = True
        self.dialled = 0
        #: Why there never is another one; empty: there may be.
        self.gone = ""
        #: Seconds that it takes to get one.
        self.takes = 0.0
        self._silent = False

    def run(self, host: str, entry: str, arguments: object) -> PretendProgram:
        """See `Programs.run`."""
        if self.line.is_cut:
            raise ConnectionLostError(f"{host}: the connection broke")
        self.programs.append(PretendProgram(self.line, self.python, entry, arguments))
        return self.programs[-1]

    def reconnect(self, host: str) -> None:
        """See `Dialling.reconnect`."""
        self.dialled += 1
        if self.gone:
            raise HostGoneError(f"{host}: {self.gone}")
        if not self.reachable:
            time.sleep(0.05)
            raise TransportError(f"{host}: connection refused")
        self.line.is_cut = True
        time.sleep(self.takes)
        self.line = PretendLine(host)

    def cut(self, reachable: bool = True) -> None:
        """The connection breaks, at both ends."""
        self.reachable = reachable
        self.line.is_cut = True

    def thaw(self) -> None:
        """What was on its way goes on."""
        self.reachable = True
        self.line.frozen.clear()

    def close(self) -> None:
        """Every program is over."""
        for program in self.programs:
            program.end()

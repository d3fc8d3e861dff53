"""A program of ours on a host, over its connection; see `launcher.transports.base.RemoteCommand`."""

from __future__ import annotations

from launcher.errors import ConnectionLost, TransportError
from launcher.transports import bootstrap
from launcher.transports.ssh.connection import Connection
from launcher.transports.ssh.process import noise

_READ_SIZE = 64 * 1024
#: Seconds for the exit status of a login shell.
_STATUS_LIMIT = 1.0


class SshErrand:
    """Begins at once; one thread uses it.

    Args:
        connection: to the host.
        python: named in messages.
        startup: see `bootstrap.startup`.

    Raises:
        TransportError: the connection is gone.
    """

    def __init__(self, connection: Connection, python: str, startup: bytes) -> None:
        self.host = connection.host
        self._connection = connection
        self._python = python
        self._ready = False
        self._early = b""
        self._process = connection.start_shell(bootstrap.COMMAND, startup)

    def fileno(self) -> int:
        """See `RemoteCommand.fileno`; writable when `send` takes something."""
        return self._process.socket.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `RemoteCommand.recv`."""
        while not self._ready:
            data = self._take(_READ_SIZE)
            if data is None:
                return None
            self._await_mark(data)
        data, self._early = self._early[:size], self._early[size:]
        return data or self._take(size)

    def _take(self, size: int) -> bytes | None:
        try:
            data = self._process.socket.recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(f"{self.host}: this errand was closed") from error
        if not data and self._process.failure is not None:
            raise self._process.failure
        return data

    def _await_mark(self, data: bytes) -> None:
        self._early += data
        found = bootstrap.find_mark(self._early)
        if found is not None:
            word, end = found
            if word != bootstrap.READY:
                raise self._fault(bootstrap.explain(word, self._python))
            self._early, self._ready = self._early[end:], True
        elif bootstrap.echoes(self._early):
            raise self._fault(bootstrap.explain(bootstrap.EATEN, self._python))
        elif len(self._early) > bootstrap.MAX_NOISE:
            raise self._fault(noise(bootstrap.MAX_NOISE))
        elif not data:
            status = self._process.wait(_STATUS_LIMIT)
            text = (self._process.stderr() or self._early.decode("utf-8", "replace")).strip()
            ended = "its login shell ended" if status is None else f"its login shell ended with {status}"
            words = f" and printed: {text.splitlines()[-1].strip()}" if text else ""
            raise self._fault(f"our program could not be started there: {ended}{words}")

    def _fault(self, text: str) -> TransportError:
        return TransportError(f"{self.host}: {text}")

    def send(self, data: bytes | memoryview) -> int:
        """See `RemoteCommand.send`; takes nothing before the program is up."""
        if not self._connection.alive:
            raise ConnectionLost(self._connection.why_broken())
        try:
            return self._process.socket.send(data) if self._ready else 0
        except BlockingIOError:
            return 0
        except OSError:  # it has ended, or was closed: `recv` says more
            if self._process.failure is not None:
                raise self._process.failure from None
            return 0

    def wait(self, seconds: float) -> int | None:
        """See `RemoteCommand.wait`. A program that was killed has no exit status."""
        return self._process.wait(seconds)

    def said(self) -> str:
        """See `RemoteCommand.said`."""
        return self._process.stderr()

    def close(self) -> None:
        """See `RemoteCommand.close`."""
        self._process.close()

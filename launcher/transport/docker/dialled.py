"""Engines that the ``docker`` command can reach and a socket can't: behind ``ssh://``, behind TLS.

Each connection is a ``docker system dial-stdio``, which passes bytes on to the engine, wherever that is, as
that command knows it from the same variables, contexts and keys. It ends when we let go of our end.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

import requests
import urllib3
from docker.transport.basehttpadapter import BaseHTTPAdapter

from launcher.errors import TransportError

#: Seconds between two connections that begin: an SSH server turns away many at once.
_APART = 0.05
#: Seconds for a command to end once its connection is closed; then it is killed.
_FAREWELL = 2.0
_SAID_LIMIT = 64 * 1024


class Dialler:
    """Makes connections to an engine.

    Args:
        environ: says where the engine is.
        where: the same in words, for messages.

    Raises:
        TransportError: there is no such command here.
    """

    def __init__(self, environ: Mapping[str, str], where: str) -> None:
        found = shutil.which("docker", path=environ.get("PATH", os.defpath))
        if found is None:
            raise TransportError(f"{where} can only be reached by the docker command, which is not here")
        self._argv = [found, "system", "dial-stdio"]
        self._environ = dict(environ)
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`

    def dial(self) -> socket.socket:
        """A new connection.

        Raises:
            OSError: there can be no further process.
        """
        ours, its = socket.socketpair()
        with its, self._lock:
            self._running = [one for one in self._running if one.poll() is None]
            try:
                self._running.append(self._started(its.fileno()))
            except OSError:
                ours.close()
                raise
            time.sleep(_APART)
        return ours

    def _started(self, line: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._argv,
            stdin=line,
            stdout=line,
            stderr=self._errors,
            env=self._environ,
            start_new_session=True,
        )

    def said(self) -> str:
        """The last line that such a command printed."""
        fd = self._errors.fileno()
        start = max(0, os.fstat(fd).st_size - _SAID_LIMIT)
        lines = os.pread(fd, _SAID_LIMIT, start).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """All connections are closed: see that all commands are over."""
        deadline = time.monotonic() + _FAREWELL
        for one in self._running:
            try:
                one.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        self._errors.close()


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, dialler: Dialler, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._dialler = dialler

    def connect(self) -> None:
        """See `http.client.HTTPConnection.connect`."""
        self.sock = self._dialler.dial()
        if isinstance(self.timeout, int | float):
            self.sock.settimeout(self.timeout)


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    def __init__(self, dialler: Dialler, timeout: float, size: int) -> None:
        super().__init__("localhost", timeout=urllib3.Timeout(timeout), maxsize=size)
        self._dialler = dialler
        self._seconds = timeout

    def _new_conn(self) -> _Connection:
        return _Connection(self._dialler, self._seconds)


class Adapter(BaseHTTPAdapter):  # type: ignore[misc]  # the SDK has no types
    """What a session of the SDK speaks through."""

    def __init__(self, dialler: Dialler, timeout: float, size: int) -> None:
        self._pool = _Pool(dialler, timeout, size)
        self._ways = dialler
        super().__init__()

    def get_connection(self, url: Any, proxies: Any = None) -> _Pool:
        """See `requests.adapters.HTTPAdapter.get_connection`."""
        return self._pool

    def request_url(self, request: requests.PreparedRequest, proxies: Any) -> str:
        """See `requests.adapters.HTTPAdapter.request_url`: there is no proxy on the way."""
        return request.path_url

    def close(self) -> None:
        """See `requests.adapters.HTTPAdapter.close`."""
        super().close()
        self._pool.close()
        self._ways.close()

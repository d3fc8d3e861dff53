"""All hosts of a launch that are not this machine: connected to together, and then asked to run errands."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from launcher.errors import ConnectionLost, HostsError, TransportError
from launcher.job import Host
from launcher.text import listed
from launcher.transport import bootstrap
from launcher.transport.bundle import Bundle, bundle
from launcher.transport.ssh.dial import Dialer
from launcher.transport.ssh.errand import ChannelErrand
from launcher.transport.ssh.failures import unforeseen
from launcher.transport.ssh.line import Line
from launcher.transport.ssh.progress import Progress
from launcher.transport.ssh.settings import SshSettings

if TYPE_CHECKING:
    from launcher.transport.ssh.relay import Relays

#: Seconds until the user is told whom we wait for, and then between two such lines.
_FIRST_WORD, _NEXT_WORD = 2.0, 5.0
#: How many hosts such a line names at most.
_NAMED = 4
#: Seconds for threads that dial to end, once nobody wants what they do.
_LAST_WAIT = 2.0
#: What runs errands where the hostfile names no Python.
_PYTHON = "python3"


class Fleet:
    """The connections of a launch, one a host. A context: after it there is none, and no thread of theirs.

    Args:
        hosts: each with a name of its own.
        settings: how to connect.
        tell: gets one line when the user should know something: whom we wait for, which keys became known.
        ahead: the entry of the errand that each host will most likely be asked for first: its program comes
            up there as soon as the host is connected to, and waits for its arguments.
    """

    def __init__(
        self, hosts: Iterable[Host], settings: SshSettings, tell: Callable[[str], None], ahead: str = ""
    ) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._settings = settings
        self._tell = tell
        self._dialer = Dialer(settings)
        self._lines: dict[str, Line] = {}
        #: Hosts whose Python can't run code that ours has compiled.
        self._want_source: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._dialling: _Dialling | None = None
        self._relays: Relays | None = None
        self._ahead = ahead
        #: By host: errands that wait for their arguments.
        self._waiting: dict[str, ChannelErrand] = {}
        #: When hosts were first dialled anew that have not been reached since.
        self._away_since: dict[str, float] = {}
        self._redialling = {host: threading.Lock() for host in self._hosts}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Begin to connect, in threads: there is something else to do meanwhile."""
        self._dialling = dialling = _Dialling(
            self._dialer, self._hosts.values(), self._settings, self._begin_ahead
        )
        width = max(1, min(self._settings.fanout, len(self._hosts)))
        self._threads = [
            threading.Thread(target=dialling.work, name=f"ssh dial {number}", daemon=True)
            for number in range(width)
        ]
        for thread in self._threads:
            thread.start()

    def connect(self) -> None:
        """Connect to all hosts, in parallel, so many at a time.

        Raises:
            HostsError: some can't be connected to; it says why of each. The others stay connected.
        """
        if self._dialling is None:
            self.begin()
        dialling, self._dialling = self._dialling, None
        assert dialling is not None
        self._await(dialling)
        self._lines = {name: found for name, found in dialling.found.items() if isinstance(found, Line)}
        for line in self._dialer.accepted:
            self._tell(line)
        faults = [found for name in self._hosts if isinstance(found := dialling.found[name], TransportError)]
        if faults:
            raise HostsError(map(str, faults))

    def _await(self, dialling: _Dialling) -> None:
        next_word = time.monotonic() + _FIRST_WORD
        while not dialling.finished.wait(max(0.0, next_word - time.monotonic())):
            self._tell(f"waiting for {listed(dialling.awaited(), _NAMED)}")
            next_word += _NEXT_WORD

    def errand(self, host: str, entry: str, arguments: object) -> ChannelErrand:
        """See `launcher.transport.base.Errands.errand`.

        It is run by the host's ``python`` if that is a name, an absolute path or in the user's home (``~/``);
        one that is relative to the working folder of the tasks may not be there yet. Otherwise by
        ``python3``.
        """
        line = self._line(host)
        rest = bootstrap.finale(arguments)
        waiting = self._waiting.pop(host, None)
        if waiting is not None and entry == self._ahead and not waiting.ended:
            waiting.go_on(rest)
            return waiting
        if waiting is not None:
            waiting.close()
        return self._begun(host, line, entry, rest)

    def _begun(self, host: str, line: Line, entry: str, rest: bytes = b"") -> ChannelErrand:
        """One that has begun, with or without its arguments."""
        carried = bundle(entry)
        python = _python_for(self._hosts[host])
        modules = carried.source() if host in self._want_source else carried.compiled
        startup = bootstrap.prelude(python, modules, entry) + rest
        return ChannelErrand(host, line, python, startup, lambda: self._source_for(host, carried))

    def _begin_ahead(self, host: str, line: Line) -> None:
        """In the thread that has just connected to it."""
        if self._ahead:
            try:
                self._waiting[host] = self._begun(host, line, self._ahead)
            except TransportError:  # whoever asks for it is told why
                return

    def _source_for(self, host: str, carried: Bundle) -> bytes:
        self._want_source.add(host)
        return carried.source()

    def _line(self, host: str) -> Line:
        line = self._lines.get(host)
        if line is None:
            raise ConnectionLost(f"{host}: there is no connection to it")
        if not line.is_active():
            raise ConnectionLost(line.broken(host))
        return line

    def is_alive(self, host: str) -> bool:
        """Whether the connection to a host is there, as far as this machine knows."""
        line = self._lines.get(host)
        return line is not None and line.is_active()

    def redial(self, host: str) -> None:
        """Connect anew, once; the old connection is ended without waiting. Any thread may.

        Two that miss the same connection get the same new one.

        Raises:
            TransportError: it can't be connected to now.
        """
        missed = self._lines.get(host)
        with self._redialling[host]:
            if self._lines.get(host) is missed or not self.is_alive(host):
                self._redial(host)

    def _redial(self, host: str) -> None:
        waiting = self._waiting.pop(host, None)
        if waiting is not None:
            waiting.close()
        old = self._lines.pop(host, None)
        if old is not None:
            self._dialer.drop(old)
        self._away_since.setdefault(host, time.monotonic())
        self._lines[host] = line = self._dialer.dial(self._hosts[host], Progress(host), attempts=1)
        if self._relays is not None:
            self._relays.renew(host, line)
        self._away_since.pop(host, None)

    def patience(self, host: str) -> float:
        """Seconds for which it is worth trying to reach a host again: what is left of its lease."""
        now = time.monotonic()
        return max(0.0, self._settings.lease - (now - self._away_since.get(host, now)))

    def relay(self, path: str, tell: Callable[[str], None]) -> dict[str, int]:
        """Have a port opened on every host that leads to a unix socket here, until the connections end.

        Args:
            path: the socket's.
            tell: gets a line where that can't be; called by any thread.

        Returns:
            The ports, by host, each on its host's loopback address.
        """
        from launcher.transport.ssh.relay import Relays  # only programs that start jobs ask for it

        self._relays = Relays(path, tell)
        return self._relays.open(self._lines, self._tell)

    def close(self) -> None:
        """End all connections."""
        if self._relays is not None:
            self._relays.close()
        self._dialer.stop()
        deadline = time.monotonic() + _LAST_WAIT
        for thread in self._threads:  # one that waits for a name server can't be woken; it keeps nobody alive
            thread.join(max(0.0, deadline - time.monotonic()))
        for waiting in list(self._waiting.values()):
            waiting.close()
        self._waiting.clear()
        self._dialer.close()
        self._lines.clear()


class _Dialling:
    """Connecting to all: what is to be done, and what came of it."""

    def __init__(
        self,
        dialer: Dialer,
        hosts: Iterable[Host],
        settings: SshSettings,
        connected: Callable[[str, Line], None],
    ) -> None:
        self._dialer = dialer
        self._connected = connected
        self._attempts = settings.attempts
        self._to_do: queue.SimpleQueue[Host] = queue.SimpleQueue()
        self._progress = {host.name: Progress(host.name) for host in hosts}
        self._lock = threading.Lock()
        self.found: dict[str, Line | TransportError] = {}
        self.finished = threading.Event()
        for host in hosts:
            self._to_do.put(host)
        if not self._progress:
            self.finished.set()

    def work(self) -> None:
        """Dial until nothing is left to do; what each thread runs."""
        while True:
            try:
                host = self._to_do.get_nowait()
            except queue.Empty:
                return
            found: Line | TransportError = TransportError(
                f"{host.name}: connecting failed in a way that is not known"
            )
            try:
                found = self._dialer.dial(host, self._progress[host.name], self._attempts)
                self._connected(host.name, found)
            except TransportError as error:
                found = error
            except Exception as error:  # noqa: BLE001 - other hosts wait for this thread
                found = TransportError(f"{host.name}: {unforeseen(error)}")
            finally:
                self._note(host.name, found)

    def _note(self, host: str, found: Line | TransportError) -> None:
        with self._lock:
            self.found[host] = found
            if len(self.found) == len(self._progress):
                self.finished.set()

    def awaited(self) -> list[str]:
        """Who is not connected yet, and what is being done about it."""
        with self._lock:
            return [str(progress) for name, progress in self._progress.items() if name not in self.found]


def _python_for(host: Host) -> str:
    python = host.python or _PYTHON
    return python if "/" not in python or python.startswith(("/", "~/")) else _PYTHON

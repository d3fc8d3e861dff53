"""A program of ours on a host, over a channel of its connection; see `launcher.transport.base.Errand`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from paramiko import SSHException

from launcher.errors import ConnectionLost, TransportError
from launcher.transport import bootstrap
from launcher.transport.ssh.failures import unforeseen
from launcher.transport.ssh.line import Line, Session
from launcher.transport.ssh.wake import Wake

#: How much of stderr is kept, in bytes.
_SAID_LIMIT = 64 * 1024
#: Bytes of one packet; a bigger one would only be cut by the other end.
_PIECE = 32 * 1024 - 64
_READ_SIZE = 64 * 1024
#: So many bytes of our first code, among what a login shell printed, say that it reads what is for us.
_TELLING = 40


class ChannelErrand:
    """Begins at once, and is used by one thread (another may have made it).

    Args:
        host: its name, for messages.
        line: the connection to it.
        python: what it is asked to run.
        startup: see `bootstrap.startup`; or only its `bootstrap.prelude`, and `go_on` brings the rest.
        source: makes the modules as source, if they are asked for.
    """

    def __init__(
        self, host: str, line: Line, python: str, startup: bytes, source: Callable[[], bytes]
    ) -> None:
        self._host = host
        self._line = line
        self._python = python
        self._to_send = memoryview(startup)
        self._source = source
        self._begun = self._ready = self._closed = False
        self._early = b""
        self._said = b""
        try:
            self._wake = Wake()
        except OSError as error:
            raise TransportError(f"{host}: {unforeseen(error)}") from error
        #: The program is started by whoever first can, this thread or the connection's.
        self._starting = threading.Lock()
        try:
            self._session = line.begin_session(self._wake.ring, self._writable)
        except (SSHException, EOFError, OSError) as error:
            self._wake.close()
            raise self._broken() from error

    def fileno(self) -> int:
        """See `Errand.fileno`. It also says so when `send` would take more than it did."""
        return self._wake.fileno()

    @property
    def ended(self) -> bool:
        """Whether nothing runs there any more."""
        return self._session.closed

    def go_on(self, rest: bytes) -> None:
        """What it starts with goes on."""
        with self._starting:
            self._to_send = memoryview(bytes(self._to_send) + rest)
        self._wake.ring()

    def recv(self, size: int) -> bytes | None:
        """See `Errand.recv`."""
        self._check_open()
        self._wake.clear()
        try:
            return self._recv(size)
        except (SSHException, EOFError, OSError) as error:
            raise self._broken() from error

    def _recv(self, size: int) -> bytes | None:
        self._advance()
        if not self._ready:
            return None
        data = self._early[:size] or self._take(size)
        self._early = self._early[size:]
        if self._early or data == b"" or self._session.recv_ready():
            self._wake.ring()
        if data == b"" and not self._session.eof_received and not self._line.is_active():
            raise self._broken()
        return data

    def _take(self, size: int) -> bytes | None:
        """What the channel has; ``b""`` at its end; ``None``: nothing yet."""
        try:
            return self._session.recv(size)
        except TimeoutError:
            return None

    def _writable(self, session: Session) -> None:
        """Something can be sent, or never will be; said by the connection's thread, which must not wait."""
        if self._closed and session.active:  # it was closed before there was anything to close
            session.close()
        else:
            self._start(session)
        self._wake.ring()

    def _start(self, session: Session) -> None:
        """Begin, and send what it starts with, as far as that is possible now."""
        with self._starting:
            if not self._begun and session.active and self._line.has_room:
                self._begun = True
                session.begin(bootstrap.COMMAND)
            while self._begun and self._to_send and (sent := self._send(session, self._to_send)):
                self._to_send = self._to_send[sent:]

    def _advance(self) -> None:
        """Do what can be done now: begin, send what it starts with, pass over noise, keep what it said."""
        if not self._begun:
            self._begin()
        if self._begun:
            self._hear()
            self._start(self._session)
            if not self._ready:
                self._await_mark()

    def _begin(self) -> None:
        if not self._session.answered.is_set():
            return
        if not self._line.is_active():
            raise self._broken()
        if not self._session.active:
            raise TransportError(
                f"{self._host}: its ssh server gives no further session on this connection "
                "(is MaxSessions very low, or has it been told to forward only?)"
            )
        self._start(self._session)

    def _await_mark(self) -> None:
        while (data := self._take(_READ_SIZE)) is not None:
            self._early += data
            found = bootstrap.find_mark(self._early)
            if found is not None:
                word, end = found
                self._early = self._early[end:]
                self._obey(word)
                return
            if bootstrap.FIRST_CODE[:_TELLING] in self._early:
                raise TransportError(f"{self._host}: {_explain(bootstrap.EATEN, self._python)}")
            if not data or len(self._early) > bootstrap.MAX_NOISE:
                self._give_up()
                return

    def _obey(self, word: str) -> None:
        if word == bootstrap.READY:
            self._ready = True
        elif word == bootstrap.NEEDS_SOURCE:
            self._to_send = memoryview(bootstrap.frame(self._source()))
            self._start(self._session)
            self._await_mark()
        else:
            raise TransportError(f"{self._host}: {_explain(word, self._python)}")

    def send(self, data: bytes | memoryview) -> int:
        """See `Errand.send`; takes nothing before the program is up."""
        self._check_open()
        try:
            if not self._line.is_active():
                raise self._broken()
            self._start(self._session)
            if not self._ready or self._to_send:
                return 0
            return self._send_all(memoryview(data))
        except (SSHException, EOFError, OSError) as error:
            raise self._broken() from error

    def _send_all(self, data: memoryview) -> int:
        total = 0
        while total < len(data) and (sent := self._send(self._session, data[total:])):
            total += sent
        return total

    def _send(self, session: Session, data: memoryview) -> int:
        """One packet, if there is room for it."""
        if session.closed or session.eof_sent or not self._line.has_room or not session.send_ready():
            return 0
        try:
            return session.send(bytes(data[:_PIECE]))
        except TimeoutError:
            return 0

    def _hear(self) -> None:
        while self._session.recv_stderr_ready():
            self._said = (self._said + self._session.recv_stderr(_READ_SIZE))[-_SAID_LIMIT:]

    def wait(self, seconds: float) -> int | None:
        """See `Errand.wait`. A program that was killed has no exit status."""
        if not self._session.status_event.wait(seconds) or self._session.exit_status < 0:
            return None
        return self._session.exit_status

    def said(self) -> str:
        """See `Errand.said`."""
        try:
            self._hear()
        except (SSHException, EOFError, OSError, TimeoutError):  # it broke: this is all there will be
            pass
        return self._said.decode("utf-8", "replace")

    def close(self) -> None:
        """See `Errand.close`."""
        if self._closed:
            return
        self._line.forget(self._wake.ring)
        self._closed = True
        try:
            self._session.close()
        except (SSHException, EOFError, OSError):  # it is broken: so it is closed
            pass
        self._wake.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError(f"{self._host}: this errand was closed")

    def _broken(self) -> ConnectionLost:
        return ConnectionLost(self._line.broken(self._host))

    def _give_up(self) -> None:
        """Its output ended, or goes on and on, without a mark."""
        if len(self._early) > bootstrap.MAX_NOISE:
            raise TransportError(
                f"{self._host}: its login shell printed more than {bootstrap.MAX_NOISE // 1024} KiB before "
                "our program could start; what it runs for commands must be quiet"
            )
        if not self._line.is_active() and not self._session.eof_received:
            raise self._broken()
        if self._session.closed:
            status = self._session.exit_status
            raise TransportError(f"{self._host}: {_why_nothing_started(status, self._early, self._said)}")


def _explain(word: str, python: str) -> str:
    """Why the host can't run errands, from its mark."""
    advice = "name a Python of 3.8 or later with `python` in the hostfile, or install one"
    if word == bootstrap.EATEN:
        return (
            "its login shell's start-up files read standard input (~/.bashrc?), which is not theirs when a "
            "command is run; let them do so only in a terminal: [ -t 0 ] && ..."
        )
    if word == bootstrap.MISSING:
        return f"there is no {python} there; {advice}"
    if word.startswith(bootstrap.TOO_OLD):
        return f"its {python} is Python {word[len(bootstrap.TOO_OLD) :].strip()}, which is too old; {advice}"
    return f"it answered {word!r}, which this version does not know"


def _why_nothing_started(status: int, noise: bytes, said: bytes) -> str:
    words = [line.strip() for line in (said or noise).decode("utf-8", "replace").splitlines() if line.strip()]
    ended = f"its login shell ended with {status}" if status >= 0 else "its login shell ended"
    return f"our program could not be started there: {ended}{f', and said: {words[-1]}' if words else ''}"

"""A live connection: paramiko's, tuned, and with sessions that begin without waiting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from paramiko import Channel, ChannelException, Transport
from paramiko.common import MSG_CHANNEL_WINDOW_ADJUST, cMSG_CHANNEL_OPEN, cMSG_CHANNEL_REQUEST
from paramiko.message import Message
from paramiko.packet import Packetizer

from launcher.transport.ssh.queued import QueuedSocket
from launcher.transport.ssh.sending import send_some

#: Costs a tenth of what the next best does, in CPU of both ends.
_KEX = "curve25519-sha256@libssh.org"
#: Encrypts and signs in one go: a third less CPU for each byte than what paramiko would take.
_CIPHER = "aes128-gcm@openssh.com"
#: Where paramiko logs; what matters of it is in our messages.
_LOG = "launcher.ssh"
logging.getLogger(_LOG).setLevel(logging.CRITICAL + 1)
#: The first number of messages about channels (RFC 4250, 4.1.2); those below are about keys and who we are.
_LEAST_OF_CHANNELS = 80
#: Seconds between looks at whether keys are due to be renewed; the thread sleeps otherwise.
_LOOK = 5.0
#: Seconds between looks of a thread that waits for room at whether the connection is there at all.
_GLANCE = 0.2


class _Packets(Packetizer):
    """Without a timer of its own (a thread each, that outlives a failure by 15 seconds): dialling has one."""

    def start_handshake(self, timeout: float) -> None:
        """The whole of it is bounded elsewhere."""


def _adjust_window(channel: Channel, message: Message) -> None:
    """The host takes more: what paramiko does, and tell whoever waits for that."""
    channel._window_adjust(message)  # type: ignore[attr-defined]
    if isinstance(channel, Session):
        channel.widened()


class Line(Transport):
    """A connection to one host.

    Args:
        sock: connected.
        host: for the name of its thread.
    """

    _channel_handler_table = {
        **Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_WINDOW_ADJUST: _adjust_window,
    }

    def __init__(self, sock: QueuedSocket, host: str) -> None:
        super().__init__(sock, packetizer_class=_Packets)  # type: ignore[arg-type]
        self.queued = sock
        self.name = f"ssh {host}"
        self.set_log_channel(_LOG)
        #: Set before its channels are closed because it is over; paramiko says so after that.
        self.over = False
        self._wakes: set[Callable[[], None]] = set()
        self._roomy = threading.Event()
        sock.drained = self._wake_all
        self.clear_to_send = _Answer(self._keys_are_there)
        #: What this connection's own thread has to say when keys are renewed.
        self._postponed: list[Message] = []
        options = self.get_security_options()
        options.kex = _first(_KEX, options.kex)
        options.ciphers = _first(_CIPHER, options.ciphers)

    def settle(self) -> None:
        """It is up: from now on its thread sleeps until there is something to do."""
        self.queued.settimeout(_LOOK)

    def is_active(self) -> bool:
        """Whether it is there; known to be over by whoever is woken by that."""
        return super().is_active() and not self.over

    @property
    def has_room(self) -> bool:
        """Whether something can be sent now without waiting: it is neither clogged nor renewing its keys."""
        return self.queued.has_room and self.clear_to_send.is_set()

    def _send_user_message(self, data: Message) -> None:
        """See paramiko, whose thread would wait here for keys that itself is to renew."""
        if threading.current_thread() is self:
            self._send_soon(data)
        else:
            super()._send_user_message(data)  # type: ignore[misc]

    def _send_message(self, data: Message) -> None:
        """See paramiko, whose thread grants channels also while keys are renewed, when nobody may."""
        if threading.current_thread() is self and data.asbytes()[0] >= _LEAST_OF_CHANNELS:
            self._send_soon(data)
        else:
            super()._send_message(data)  # type: ignore[misc]

    def _send_soon(self, data: Message) -> None:
        with self.clear_to_send_lock:
            if self.clear_to_send.is_set():
                super()._send_message(data)  # type: ignore[misc]
            else:
                self._postponed.append(data)

    def _keys_are_there(self) -> None:
        """Called under the lock of those who send."""
        postponed, self._postponed = self._postponed, []
        for data in postponed:
            super()._send_message(data)  # type: ignore[misc]
        self._wake_all()

    def await_room(self) -> None:
        """Wait until something can be sent; for threads that do nothing else.

        Raises:
            EOFError: nothing ever will.
        """
        while not self.has_room:
            if not self.is_active():
                raise EOFError
            self._roomy.wait(_GLANCE)
            self._roomy.clear()

    def begin_session(self, wake: Callable[[], None], writable: Callable[[Session], None]) -> Session:
        """Ask for a channel, and go on. What `Transport.open_session` does, but for the waiting.

        Args:
            wake: called by this connection's thread when something has happened to the channel; must not
                wait.
            writable: the same, when the channel is granted or refused, and when the host takes more.
        """
        with self.lock:
            number = self._next_channel()  # type: ignore[attr-defined]
            session = Session(number, self, wake, writable)
            self._channels.put(number, session)  # type: ignore[attr-defined]
            self.channel_events[number] = session.answered
            self.channels_seen[number] = True
        self._wakes.add(wake)
        message = Message()
        message.add_byte(cMSG_CHANNEL_OPEN)
        message.add_string("session")
        for field in (number, self.default_window_size, self.default_max_packet_size):
            message.add_int(field)
        self._send_user_message(message)
        return session

    def forget(self, wake: Callable[[], None]) -> None:
        """Nobody waits for this session any more."""
        self._wakes.discard(wake)

    def broken(self, host: str) -> str:
        """That it is, and why as far as paramiko knows; for messages."""
        reason = self._reason()
        return f"{host}: the connection broke{f' ({reason})' if reason else ''}"

    def _reason(self) -> str:
        error = self.saved_exception
        if isinstance(error, EOFError):
            return "the other side closed it"
        if isinstance(error, OSError):
            return (error.strerror or str(error)).lower()
        return "" if error is None or isinstance(error, ChannelException) else str(error)

    def _wake_all(self) -> None:
        self._roomy.set()
        for wake in tuple(self._wakes):
            wake()


def _first(best: str, names: Sequence[str]) -> tuple[str, ...]:
    """The same names in order of preference; the best first, if this paramiko has it."""
    return tuple(sorted(names, key=lambda name: name != best))


class _Answer(threading.Event):
    """paramiko sets it when the host has granted or refused the channel, or keys are renewed."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake

    def set(self) -> None:
        """Tell that there is an answer."""
        super().set()
        self._wake()


class _Arrival:
    """paramiko sets it when bytes, or their end, have come; whoever reads looks for itself what is left."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.set = wake

    def clear(self) -> None:
        """Its reader clears what woke it."""


class Session(Channel):
    """A channel that tells when something happened to it, and never waits."""

    def __init__(
        self, number: int, line: Line, wake: Callable[[], None], writable: Callable[[Session], None]
    ) -> None:
        super().__init__(number)
        self.setblocking(False)
        self._line = line
        self.widened: Callable[[], None] = lambda: writable(self)
        self.answered = _Answer(self.widened)
        for buffer in (self.in_buffer, self.in_stderr_buffer):
            buffer.set_event(_Arrival(wake))  # type: ignore[arg-type]
        self._set_transport(line)  # type: ignore[attr-defined]
        self._set_window(line.default_window_size, line.default_max_packet_size)  # type: ignore[attr-defined]

    def _unlink(self) -> None:
        """The whole connection is over."""
        self._line.over = True
        super()._unlink()  # type: ignore[misc]

    def send(self, data: bytes) -> int:  # type: ignore[override]  # paramiko calls it s
        """See `launcher.transport.ssh.sending.send_some`."""
        return send_some(self._line, self, data)

    def begin(self, command: str) -> None:
        """Run a command, and do not wait for the answer: a channel whose command is refused is closed."""
        message = Message()
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(self.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        self._line._send_user_message(message)

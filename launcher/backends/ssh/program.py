"""A program of ours on a host: a channel of the connection to it."""

from __future__ import annotations

from contextlib import suppress

from paramiko import Channel, ChannelException, SSHException

from launcher.backends import bootstrap
from launcher.backends.programs import STDERR_LIMIT_BYTES, RemoteProgram
from launcher.backends.ssh.connection import SshConnection
from launcher.backends.ssh.options import unexpected
from launcher.common.errors import ConnectionLostError, TransportError

#: Bytes of a packet, and of paramiko's window.
PACKET_BYTES = 32 * 1024 - 64
_WINDOW_BYTES = 2 * 1024 * 1024
#: Seconds for the host to take our program.
_ARRIVAL_SECONDS = 60.0
#: Seconds for a login shell to start our program. A link looks earlier, and tries again.
_START_TIMEOUT_SECONDS = 30.0


def start_ssh_program(connection: SshConnection, python: str, startup: bytes) -> RemoteProgram:
    """Run a program of ours on a host, in a channel of its own. Blocks until the host has taken the program.

    Args:
        connection: To the host.
        python: The Python that runs the program, for messages.
        startup: See `bootstrap.startup`.

    Raises:
        TransportError: It cannot be started, or this machine has no descriptor left.
    """
    return RemoteProgram(
        connection.host,
        SshChannelPipe(connection, startup),
        python=python,
        starter="its login shell",
        patience=_START_TIMEOUT_SECONDS,
    )


class SshChannelPipe:
    """A channel whose shell runs a program of ours; see `launcher.backends.programs.Pipe`.

    Args:
        connection: To the host.
        startup: See `bootstrap.startup`.

    Raises:
        TransportError: No channel can be opened.
    """

    def __init__(self, connection: SshConnection, startup: bytes) -> None:
        self._connection = connection
        self._stderr = b""
        try:
            self._channel = connection.transport.open_session()
        except ChannelException as error:
            raise TransportError(
                f"{connection.host}: its ssh server gives no further session on this connection "
                "(is MaxSessions very low, or does it only forward?)"
            ) from error
        except (SSHException, EOFError, OSError) as error:
            raise ConnectionLostError(connection.why_broken()) from error
        try:
            self._fd = self._channel.fileno()
            self._channel.settimeout(_ARRIVAL_SECONDS)
            self._channel.exec_command(bootstrap.COMMAND)
            with suppress(OSError):  # it has ended: `recv` reports why
                self._channel.sendall(startup)
            self._channel.settimeout(0.0)
        except BaseException as error:
            close_channel(self._channel)
            if isinstance(error, OSError):
                raise TransportError(f"{connection.host}: {unexpected(error)}") from error
            if isinstance(error, (SSHException, EOFError)):
                raise ConnectionLostError(connection.why_broken()) from error
            raise

    def fileno(self) -> int:
        """See `Pipe.fileno`. It never becomes writable."""
        return self._fd

    def recv(self, size: int) -> bytes | None:
        """See `Pipe.recv`."""
        channel = self._channel
        ended = channel.eof_received or channel.closed  # read before the last bytes are
        if channel.recv_stderr_ready():
            self._stderr = (self._stderr + channel.recv_stderr(_WINDOW_BYTES))[-STDERR_LIMIT_BYTES:]
        if channel.recv_ready():
            if not self._connection.transport.clear_to_send.is_set():
                return None  # keys are renewed: `recv` would wait to send that it took something
            with suppress(SSHException, EOFError, OSError):
                return channel.recv(size)
        elif not ended:
            return None
        elif channel.eof_received:
            return b""
        raise ConnectionLostError(self._connection.why_broken())

    def send(self, data: bytes | memoryview) -> int:
        """See `Pipe.send`."""
        return send_now(self._channel, data)

    def wait(self, seconds: float) -> int | None:
        """See `Pipe.wait`. Of a program that was killed, the status is not known."""
        if not self._channel.status_event.wait(seconds):
            return None
        status = self._channel.recv_exit_status()
        return status if status >= 0 else None

    def stderr(self) -> str:
        """See `Pipe.stderr`."""
        return self._stderr.decode("utf-8", "replace")

    def close(self) -> None:
        """See `Pipe.close`."""
        close_channel(self._channel)


def send_now(channel: Channel, data: bytes | memoryview) -> int:
    """Send as many bytes as the channel takes now, and return their number. Never blocks.

    Args:
        channel: with a timeout of 0.
        data: the bytes.
    """
    view, transport = memoryview(data), channel.get_transport()
    sent = 0
    with suppress(SSHException, EOFError, OSError):  # it takes nothing now, or has ended: reading shows which
        # While keys are renewed, paramiko waits in `send`.
        while sent < len(view) and transport.clear_to_send.is_set():
            count = channel.send(bytes(view[sent : sent + PACKET_BYTES]))
            if not count:
                break
            sent += count
    return sent


def close_channel(channel: Channel) -> None:
    """Close a channel and its descriptor, even if the connection is broken."""
    with suppress(SSHException, EOFError, OSError):
        channel.close()

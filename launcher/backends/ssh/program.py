"""Runs a program of ours on a host, in a channel of the SSH connection to the host."""

from __future__ import annotations

from contextlib import suppress

from paramiko import Channel, ChannelException, SSHException

from launcher.backends import bootstrap
from launcher.backends.programs import STDERR_LIMIT_BYTES, RemoteProgram
from launcher.backends.ssh.connection import SshConnection
from launcher.backends.ssh.options import unexpected
from launcher.common.errors import ConnectionLostError, TransportError

#: The size of a packet.
PACKET_BYTES = 32 * 1024 - 64
#: The size of paramiko's window.
_WINDOW_BYTES = 2 * 1024 * 1024
#: The time for the host to accept our program.
_ARRIVAL_SECONDS = 60.0
#: The time for a login shell to start our program. A link gives up earlier, and tries again.
_START_TIMEOUT_SECONDS = 30.0


def start_ssh_program(connection: SshConnection, python: str, startup: bytes) -> RemoteProgram:
    """Run a program of ours on a host, in a channel of its own. This blocks until the host has received it.

    Args:
        connection: The connection to the host.
        python: The Python that runs the program, for messages.
        startup: The result of `bootstrap.startup`.

    Raises:
        TransportError: The program cannot be started, or this machine has no descriptor left.
    """
    pipe, shell = SshChannelPipe(connection, startup), "its login shell"
    return RemoteProgram(connection.host, pipe, python=python, starter=shell, patience=_START_TIMEOUT_SECONDS)


class SshChannelPipe:
    """A `launcher.backends.programs.Pipe` over a channel whose shell runs a program of ours.

    Args:
        connection: The connection to the host.
        startup: The result of `bootstrap.startup`.

    Raises:
        TransportError: No channel can be opened.
    """

    def __init__(self, connection: SshConnection, startup: bytes) -> None:
        """Open a channel, start the loader in a login shell, and send it the program. This blocks."""
        self._connection = connection
        #: The last bytes of the program's stderr, which only `recv` receives.
        self._stderr = b""
        try:
            self._channel = connection.transport.open_session()
        except ChannelException as error:
            raise TransportError(
                f"{connection.host}: its ssh server opens no further session on this connection "
                "(is MaxSessions very low, or does it only forward?)"
            ) from error
        except (SSHException, EOFError, OSError) as error:
            raise ConnectionLostError(connection.why_broken()) from error
        try:
            #: The descriptor to poll. paramiko makes it readable when bytes of the channel have arrived.
            self._fd = self._channel.fileno()
            self._channel.settimeout(_ARRIVAL_SECONDS)
            self._channel.exec_command(bootstrap.COMMAND)
            with suppress(OSError):  # The program has ended, and `recv` reports why.
                self._channel.sendall(startup)
            self._channel.settimeout(0.0)  # From now on nothing blocks.
        except BaseException as error:
            close_channel(self._channel)
            if isinstance(error, OSError):
                raise TransportError(f"{connection.host}: {unexpected(error)}") from error
            if isinstance(error, (SSHException, EOFError)):
                raise ConnectionLostError(connection.why_broken()) from error
            raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when `recv` has something. It never becomes writable."""
        return self._fd

    def recv(self, size: int) -> bytes | None:
        """Return bytes of the program's stdout, None if there are none yet, ``b""`` at the end.

        Raises:
            ConnectionLostError: The connection broke before the end of stdout.
        """
        channel = self._channel
        # This is read before the last bytes are, which may arrive in between.
        has_ended = channel.eof_received or channel.closed
        if channel.recv_stderr_ready():
            self._stderr = (self._stderr + channel.recv_stderr(_WINDOW_BYTES))[-STDERR_LIMIT_BYTES:]
        if channel.recv_ready():
            if not self._connection.transport.clear_to_send.is_set():
                return None  # Keys are being renewed, so `recv` would wait to acknowledge the bytes.
            with suppress(SSHException, EOFError, OSError):
                return channel.recv(size)
        elif not has_ended:
            return None
        elif channel.eof_received:
            return b""
        raise ConnectionLostError(self._connection.why_broken())

    def send(self, data: bytes | memoryview) -> int:
        """Send as many bytes as the channel accepts now, and return their number. This never blocks."""
        view, transport, sent = memoryview(data), self._channel.get_transport(), 0
        # If the channel accepts nothing now, or has ended, reading from it shows which.
        with suppress(SSHException, EOFError, OSError):
            # While keys are renewed, paramiko waits in `send`.
            while sent < len(view) and transport.clear_to_send.is_set():
                count = self._channel.send(bytes(view[sent : sent + PACKET_BYTES]))
                if not count:
                    break
                sent += count
        return sent

    def wait(self, seconds: float) -> int | None:
        """Wait for the program to exit, and return its status. None if it was killed, or is still running."""
        if not self._channel.status_event.wait(seconds):
            return None
        status = self._channel.recv_exit_status()  # It is below 0 if the server sent none.
        return status if status >= 0 else None

    def stderr(self) -> str:
        """Return the last 64 KiB of the program's stderr that `recv` has received."""
        return self._stderr.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the channel, so that the program sees the end of its stdin."""
        close_channel(self._channel)


def close_channel(channel: Channel) -> None:
    """Close a channel and its descriptor, even if the connection is broken."""
    with suppress(SSHException, EOFError, OSError):
        channel.close()

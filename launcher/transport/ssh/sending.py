"""Sending over a channel so that nothing follows its close.

`paramiko.Channel.send` looks whether the channel is open and sends later: the host may close it between, and
an OpenSSH server that is sent something on a channel that is no more ends the whole connection. Here the look
and the sending are one step, under the channel's lock, which whoever closes it takes too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paramiko import Channel, Transport
from paramiko.common import cMSG_CHANNEL_DATA, cMSG_CHANNEL_EOF
from paramiko.message import Message

if TYPE_CHECKING:
    from launcher.transport.ssh.line import Line

#: Seconds to wait for the host to take more, before another look.
_GLANCE = 0.2
#: What a packet holds besides its bytes, at most.
_AROUND = 64


def send_some(line: Transport, channel: Channel, data: bytes | memoryview) -> int:
    """Send what can be sent of some bytes at once, one packet at most.

    Returns:
        How many bytes that was; 0: the host takes nothing now, or the channel is closed.

    Raises:
        EOFError: the connection is gone.
    """
    with channel.lock:
        size = min(len(data), channel.out_window_size, channel.out_max_packet_size - _AROUND)
        if size <= 0 or channel.closed or channel.eof_sent or not channel.active:
            return 0
        message = _message(cMSG_CHANNEL_DATA, channel)
        message.add_string(bytes(data[:size]))
        if not _send_now(line, message):
            return 0
        channel.out_window_size -= size
        return size


def send_all(line: Line, channel: Channel, data: memoryview) -> None:
    """Send some bytes, as fast as they are taken; for threads that do nothing else.

    Raises:
        EOFError: the channel is closed, or the connection is gone.
    """
    while data:
        line.await_room()
        sent = send_some(line, channel, data)
        data = data[sent:]
        if not sent:
            _await_window(line, channel)


def _await_window(line: Line, channel: Channel) -> None:
    with channel.lock:
        if channel.closed or channel.eof_sent or not line.is_active():
            raise EOFError
        if not channel.out_window_size:
            channel.out_buffer_cv.wait(_GLANCE)


def send_end(line: Line, channel: Channel) -> None:
    """Say that nothing more will be sent; nothing, if the channel is closed.

    Raises:
        EOFError: the connection is gone.
    """
    while True:
        line.await_room()
        with channel.lock:
            if channel.closed or channel.eof_sent:
                return
            if _send_now(line, _message(cMSG_CHANNEL_EOF, channel)):
                channel.eof_sent = True
                return


def _message(kind: bytes, channel: Channel) -> Message:
    message = Message()
    message.add_byte(kind)
    message.add_int(channel.remote_chanid)
    return message


def _send_now(line: Transport, message: Message) -> bool:
    """Whether it was sent: not while the connection renews its keys. Does not wait."""
    with line.clear_to_send_lock:
        if not line.clear_to_send.is_set():
            return False
        Transport._send_message(line, message)  # type: ignore[attr-defined]  # a line's would lock again
        return True

"""Messages between driver and task, on a connection that both ends have authenticated.

Each is one frame: a type with its fields as JSON, then pickles. The task sends, the driver answers; only the
first message, `MessageType.WORK`, comes unasked.
"""

from __future__ import annotations

import enum
import json
import socket
from typing import Any, Mapping, NamedTuple, Sequence

from launcher.feed.remote.frames import FeedBroken, recv_frame, send_frame

#: The kind of its frames; those of feeds have other numbers (`launcher.feed.remote.frames.Kind`).
_KIND = 100


class MessageType(enum.Enum):
    """What a message says."""

    WORK = "work"  #: driver: run this function. Pickles: function, and arguments unless the task is a slot.
    DONE = "done"  #: task: the function has returned. Pickle: its result, if that is asked for.
    RAISED = "raised"  #: task: it has raised, or exited. Pickle: the exception, if it can be pickled.
    THANKS = "thanks"  #: driver: it has received the message.
    FREE = "free"  #: slot: it is free; with the outcome of the instance that it ran, if it ran one.
    START = "start"  #: driver, to a slot: run this instance. Pickle: its arguments.


class Message(NamedTuple):
    """One message."""

    type: MessageType
    fields: Mapping[str, Any] = {}
    pickles: Sequence[Any] = ()


def send(sock: socket.socket, message: Message) -> None:
    """Send a message; returns when the kernel has all of it.

    Raises:
        OSError: the connection is lost.
    """
    head = json.dumps([message.type.value, message.fields]).encode()
    send_frame(sock, _KIND, [head, *message.pickles])


def receive(sock: socket.socket) -> Message | None:
    """Wait for a message.

    Returns:
        ``None``: the other end has closed the connection.

    Raises:
        OSError: the connection is lost.
        FeedBroken: what comes is not a message.
    """
    frame = recv_frame(sock)
    if frame is None:
        return None
    kind, buffers = frame
    if kind != _KIND or not buffers:
        raise FeedBroken(f"received a frame of kind {kind} instead of a message")
    name, fields = json.loads(bytes(buffers[0]))
    return Message(MessageType(name), fields, buffers[1:])

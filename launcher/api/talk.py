"""What driver and task say on the task's own connection, once it has the modules of ours.

Each is one frame: a word and what goes with it, in JSON, then pickles. Both ends have proved to have the key
    of the job
before: a pickle of a stranger is never read.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from launcher.feed.remote.frames import FeedBroken, recv_frame, send_frame

#: The kind of its frames; those of feeds have other numbers (`launcher.feed.remote.frames.Kind`).
_KIND = 100


class Word(Enum):
    """What is said."""

    WORK = "work"  #: driver: run this function. Pickles: function, arguments.
    DONE = "done"  #: task: it has returned. Pickle: its result.
    RAISED = "raised"  #: task: it has raised, or exited. Pickle: the exception, or nothing.
    THANKS = "thanks"  #: driver: it has what came last.
    START = "start"  #: driver, to a slot: start an instance.
    ENDED = "ended"  #: slot: the process of an instance is over.


class Said(NamedTuple):
    """One thing that was said."""

    word: Word
    facts: Mapping[str, Any] = {}
    pickles: Sequence[bytes | memoryview] = ()


def say(line: socket.socket, said: Said) -> None:
    """Send it; returns when the kernel has all of it.

    Raises:
        OSError: the connection is gone.
    """
    text = json.dumps({"word": said.word.value, **said.facts}).encode()
    send_frame(line, _KIND, [text, *said.pickles])


def hear(line: socket.socket) -> Said | None:
    """Wait for the next; ``None``: there will be none, the other end is gone in an orderly way.

    Raises:
        OSError: the connection is gone.
        FeedBroken: what comes can't be understood.
    """
    frame = recv_frame(line)
    if frame is None:
        return None
    kind, buffers = frame
    if kind != _KIND or not buffers:
        raise FeedBroken(f"a frame of kind {kind} has no place here")
    facts = json.loads(bytes(buffers[0]))
    return Said(Word(facts.pop("word")), facts, buffers[1:])

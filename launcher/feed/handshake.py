"""The door's side of what is said at a door: bytes in, bytes out, no socket; so that one thread can talk to
many.

Nothing of a stranger is ever more than bytes: what it sends is compared with what only a holder of the key
can send, and at most `MOST` bytes are read of it. See `launcher.feed.knock` for the whole conversation.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from launcher.feed.knock import GREETING, NONCE, PROOF

#: Bytes that a task may say of itself.
MOST = 4096

_LENGTH = 4


class Stranger(Exception):
    """Whoever knocks has not the key, or says what no task of ours would say."""


class Step(NamedTuple):
    """What the door does next: send this, then read so many bytes."""

    send: bytes
    read: int


def greet(key: bytes) -> Generator[Step, bytes, Mapping[str, Any]]:
    """The conversation: yields what is to be sent and read, is sent what was read.

    Returns:
        What a task said of itself.

    Raises:
        Stranger: it is none of ours.
    """
    ours = os.urandom(NONCE)
    said = yield Step(GREETING + ours, NONCE + PROOF)
    theirs, proof = said[:NONCE], said[NONCE:]
    if not hmac.compare_digest(proof, hmac.digest(key, b"task" + ours + theirs, "sha256")):
        raise Stranger("it has not the key of this job")
    length = int.from_bytes((yield Step(hmac.digest(key, b"door" + theirs + ours, "sha256"), _LENGTH)), "big")
    if not 0 < length <= MOST:
        raise Stranger(f"it would say {length} bytes of itself")
    return _hello((yield Step(b"", length)))


def _hello(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Stranger("what it says of itself can't be read") from error
    kinds = {"task": str, "attempt": int, "purpose": str, "python": list, "pid": int}
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), kind) for name, kind in kinds.items()
    ):
        raise Stranger("it does not say who it is")
    return found

"""Running a command in a container that is there already, as ``docker exec`` does, within a bounded time."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from launcher.errors import TransportError
from launcher.transport.docker.engine import Engine
from launcher.transport.docker.frames import Demultiplexer

#: Bytes that are read at a time, and seconds for a command that has closed its output to be over.
_PIECE, _END = 64 * 1024, 5.0
_LOOK = 0.01


class Executed(NamedTuple):
    """How a command in a container ended; ``code`` is ``None`` if it did not."""

    code: int | None
    out: bytes
    errors: bytes


def execute(engine: Engine, container: str, argv: Sequence[str], seconds: float) -> Executed:
    """Run a command in a container, as the container's own user.

    Args:
        engine: the container's.
        container: its name or id.
        argv: the command.
        seconds: that it may take.

    Raises:
        TransportError: the engine refuses, or the container does not run.
    """
    client = engine.client
    what = f"nothing can be run in the container {container}"
    made = engine.asked(what, lambda: client.exec_create(container, list(argv)))
    theirs = engine.asked(what, lambda: client.exec_start(made["Id"], socket=True))
    try:
        out, errors, ended = _read(theirs._sock, time.monotonic() + seconds)
    except OSError as error:
        raise TransportError(f"{what}: {engine.explain(error)}") from error
    finally:
        _close(theirs)
    return Executed(_code(engine, made["Id"], _END if ended else 0.0), out, errors)


def _read(line: Any, until: float) -> tuple[bytes, bytes, bool]:
    """All that the command prints, up to its end or the end of our patience; whether it was its end."""
    demultiplexer = Demultiplexer()
    out, errors = b"", b""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if not poll.poll(left * 1000):
            break
        data = line.recv(_PIECE)
        if not data:
            return out, errors, True
        more, more_errors = demultiplexer.feed(data)
        out, errors = out + more, errors + more_errors
    return out, errors, False


def _close(theirs: Any) -> None:
    """The SDK's file keeps the socket below it open until its answer is forgotten."""
    below = theirs._sock
    theirs.close()
    below.close()


def _code(engine: Engine, made: str, seconds: float) -> int | None:
    """The exit code: the engine may learn it a moment after the output has ended."""
    until = time.monotonic() + seconds
    while True:
        found = engine.asked("a command in a container", lambda: engine.client.exec_inspect(made))
        if not found["Running"] or time.monotonic() > until:
            code = found["ExitCode"]
            return None if found["Running"] or code is None else int(code)
        time.sleep(_LOOK)

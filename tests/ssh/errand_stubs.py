"""Errands that run what `tests/stubs/errands.py` says, and how tests wait for them."""

from __future__ import annotations

import importlib.util
import marshal
import select
import time
import zlib
from pathlib import Path

from launcher.transport.base import Errand

_STUBS = Path(__file__).parents[1] / "stubs/errands.py"
#: Seconds for what a host does in a moment.
PATIENCE = 60.0


class StubBundle:
    """The stubs as what travels; see `launcher.transport.bundle.Bundle`.

    Args:
        magic: of the Python that is said to have compiled them.
    """

    def __init__(self, magic: bytes = importlib.util.MAGIC_NUMBER) -> None:
        code = marshal.dumps(compile(_STUBS.read_text(), str(_STUBS), "exec"))
        self.compiled = magic + zlib.compress(marshal.dumps({"errands": (False, code)}, 2))

    def source(self) -> bytes:
        """The other form."""
        return bytes(4) + zlib.compress(marshal.dumps({"errands": (False, _STUBS.read_bytes())}, 2))


def receive(errand: Errand, until: int | None = None, patience: float = PATIENCE) -> bytes:
    """All that comes up to the end, or so many bytes."""
    deadline = time.monotonic() + patience
    received = b""
    while until is None or len(received) < until:
        data = errand.recv(1 << 20)
        if data == b"":
            return received
        if data is not None:
            received += data
            continue
        left = deadline - time.monotonic()
        assert left > 0, f"not in time; it sent {received[-1000:]!r} and said {errand.said()!r}"
        select.select([errand], [], [], left)
    return received


def send(errand: Errand, data: bytes, patience: float = PATIENCE) -> bytes:
    """Send all of it; what came back meanwhile."""
    deadline = time.monotonic() + patience
    view, received = memoryview(data), b""
    while view:
        sent = errand.send(view)
        view = view[sent:]
        assert time.monotonic() < deadline, f"not in time; it said {errand.said()!r}"
        if not sent:
            # No short time-out: whoever waits to send must be woken when it can.
            select.select([errand], [], [], patience)
        received += errand.recv(1 << 20) or b""
    return received

"""Programs of `tests/stubs/errands.py` on hosts, and how tests wait for them."""

from __future__ import annotations

import select
import time

from launcher.transports import bootstrap
from launcher.transports.base import RemoteCommand
from launcher.transports.ssh.hosts import SshHosts
from launcher.transports.ssh.program import SshProgram

_STUBS = "tests.stubs.errands"
#: Seconds for what a host does in a moment.
PATIENCE = 60.0


def start(hosts: SshHosts, host: str, function: str, arguments: object) -> SshProgram:
    """Start one of the functions there."""
    python = hosts.python(host)
    startup = bootstrap.startup(python, f"{_STUBS}:{function}", arguments, (_STUBS,))
    return SshProgram(hosts.connection(host), python, startup)


def receive(errand: RemoteCommand, until: int | None = None, patience: float = PATIENCE) -> bytes:
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
        assert left > 0, f"not in time; it sent {received[-1000:]!r} and said {errand.stderr()!r}"
        select.select([errand], [], [], left)
    return received


def send(errand: RemoteCommand, data: bytes, patience: float = PATIENCE) -> bytes:
    """Send all of it; what came back meanwhile."""
    deadline = time.monotonic() + patience
    view, received = memoryview(data), b""
    while view:
        sent = errand.send(view)
        view = view[sent:]
        assert time.monotonic() < deadline, f"not in time; it said {errand.stderr()!r}"
        if not sent:
            # No short time-out: the descriptor becomes ready when more can be sent.
            select.select([errand], [errand] if received else [], [], patience)
        received += errand.recv(1 << 20) or b""
    return received

"""What is asked of whoever runs errands on the hosts (see `launcher.transport.base`, which keeps it)."""

from __future__ import annotations

from typing import Protocol


class Errand(Protocol):
    """A program of ours that runs on a host, with a byte pipe each way; nothing waits but `wait`."""

    def fileno(self) -> int:
        """For select: readable when `recv` has something to say."""

    def recv(self, size: int) -> bytes | None:
        """Up to ``size`` bytes; ``b""`` at the end; ``None`` when there is nothing yet."""

    def send(self, data: bytes | memoryview) -> int:
        """Send what is taken at once, and return how many bytes that was."""

    def wait(self, seconds: float) -> int | None:
        """Its exit status, after its end; ``None``: not in time, or nobody will ever know."""

    def said(self) -> str:
        """What it printed to stderr."""

    def close(self) -> None:
        """Let go."""


class Errands(Protocol):
    """Runs programs of ours on hosts; may be asked by several threads."""

    def errand(self, host: str, entry: str, arguments: object) -> Errand:
        """Start ``entry`` (``module:function``) on a host.

        Raises:
            ConnectionLost: there is no connection to it now; an errand raises it when its own breaks.
        """

    def redial(self, host: str) -> None:
        """Connect to a host anew. Waits, for a bounded time.

        Raises:
            TransportError: it can't be reached.
        """

    def patience(self, host: str) -> float:
        """Seconds for which it is worth trying to reach a host again that does not answer now."""

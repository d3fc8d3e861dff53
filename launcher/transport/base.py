"""What a transport promises: one byte pipe to an agent, and the truth about its end."""

from __future__ import annotations

from typing import Protocol

from launcher.job import Host


class Link(Protocol):
    """A byte pipe to the agent of one host, that never blocks.

    Whoever holds it waits for ``reading`` and ``writing`` (file descriptors, for select) and calls
    `read` and `write` when they are ready. The end of the stream is the end of the agent.
    """

    reading: int
    writing: int
    #: Its facts are dated by this machine's clock.
    same_clock: bool

    def read(self, size: int) -> bytes | None:
        """Up to ``size`` bytes; ``b""`` at the end; ``None`` when there is nothing yet."""

    def write(self, data: bytes | memoryview) -> int:
        """Send what is taken at once, and return how many bytes that was; 0 if the other end is gone."""

    def wait(self, seconds: float) -> str | None:
        """After the end of the stream, or a `hang_up`: wait until nothing of the agent is left.

        Returns:
            What is to be said about how it ended, empty if all is well; ``None`` if it did not end in time.
        """

    def kill(self, seconds: float) -> str | None:
        """It did not end in time: end it, and every process it started, by force; then as `wait`."""

    def hang_up(self) -> None:
        """Close our writing end: the agent ends everything, then itself."""

    def close(self) -> None:
        """Let go of the file descriptors."""


class Transport(Protocol):
    """Opens links. Opening never waits for the host: that is what reading the link is for."""

    def open(self, host: Host) -> Link:
        """Start an agent on ``host``.

        Raises:
            TransportError: it can't even be tried.
        """


class Errand(Protocol):
    """A program of ours that runs on a host, with a byte pipe each way: how all but tasks is done there.

    Its stdin and stdout are the pipe; what it prints to stderr is kept for messages. Nothing here waits,
    but `wait`.
    """

    def fileno(self) -> int:
        """For select: readable when `recv` has something to say."""

    def recv(self, size: int) -> bytes | None:
        """Up to ``size`` bytes; ``b""`` at the end; ``None`` when there is nothing yet.

        Raises:
            TransportError: it could not be started there, or the connection broke; says which.
        """

    def send(self, data: bytes | memoryview) -> int:
        """Send what is taken at once, and return how many bytes that was.

        Raises:
            TransportError: the connection broke.
        """

    def wait(self, seconds: float) -> int | None:
        """Its exit status, after its end; ``None``: not in time, or nobody will ever know."""

    def said(self) -> str:
        """What it printed to stderr, the last 64 KiB."""

    def close(self) -> None:
        """Let go: the program sees the end of its stdin."""


class Errands(Protocol):
    """Runs programs of ours on hosts; each on a connection that is there already."""

    def errand(self, host: str, entry: str, arguments: object) -> Errand:
        """Start ``entry`` on a host.

        Args:
            host: its name.
            entry: ``module:function`` of what travels; called there with ``arguments``.
            arguments: anything JSON can say; never on a command line.

        Raises:
            TransportError: there is no connection to it.
        """

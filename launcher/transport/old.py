"""A link with the former framing behind the interface of the new one; for containers on other machines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from launcher import wire
from launcher.errors import ProtocolError, WireError
from launcher.events import Command
from launcher.transport.base import Link


class OldLink:
    """See `launcher.transports.base.Link`."""

    def __init__(self, host: str, link: Link) -> None:
        self.tasks: Collection[str] | None = None
        self._link = link
        self._decoder = wire.Decoder(host, magic=True)
        self._unsent = b""
        self.same_clock = link.same_clock

    def fileno(self) -> int:
        """See `Link.fileno`."""
        return self._link.reading

    @property
    def writing(self) -> int:
        """See `Link.writing`."""
        return self._link.writing if self._unsent else -1

    def receive(self) -> Sequence[Any] | None:
        """See `Link.receive`."""
        data = self._link.read(1 << 18)
        if data is None:
            return ()
        try:
            return self._decoder.feed(data) if data else None
        except WireError as error:
            raise ProtocolError(str(error)) from error

    def send(self, command: Command) -> None:
        """See `Link.send`."""
        self._unsent += wire.encode(command)
        self.flush()

    def flush(self) -> None:
        """See `Link.flush`."""
        if self._unsent:
            self._unsent = self._unsent[self._link.write(self._unsent) :]

    def wait(self, seconds: float) -> str | None:
        """See `Link.wait`."""
        return self._link.wait(seconds)

    def kill(self, seconds: float) -> str | None:
        """See `Link.kill`."""
        return self._link.kill(seconds)

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        self._link.hang_up()

    def close(self) -> None:
        """See `Link.close`."""
        self._link.close()

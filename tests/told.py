"""What the user is told, for tests of what runs in their own process."""

from __future__ import annotations

from launcher.common.events import Tell
from launcher.messages import MessageQueue
from tests.conftest import is_about_waiting


class Told(MessageQueue):
    """While open, keeps the texts of messages.

    Args:
        waits: Whether to keep what ``launch`` waits for, too, which depends on how busy the machine is.
    """

    def __init__(self, *, waits: bool = True) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._waits = waits

    def put(self, message: Tell) -> None:
        """Keep its text."""
        if self._waits or not is_about_waiting(message.text):
            self.lines.append(message.text)

"""What to try when a program is not there: on another machine that has a cause of its own."""

from __future__ import annotations

from collections.abc import Callable

from launcher.events import TaskNotStarted
from launcher.output.base import Opening, Shown
from launcher.report import Report

_BRING = (
    "--sync DIR brings a folder to every host and runs there; venv: or python: of a host names its Python"
)
_BROUGHT = "does it travel? what .gitignore names does not; venv: or python: of a host names its Python"
#: Exit code of a task that could not be started through no fault of the user's.
_OURS = 125


class Advice:
    """A renderer that shows nothing, but gives advice, once.

    Args:
        brought: whether code was brought to the hosts.
        tell: takes what is to be said.
    """

    def __init__(self, brought: bool, tell: Callable[[str], None]) -> None:
        self._text = _BROUGHT if brought else _BRING
        self._tell = tell
        self._given = False

    def begin(self, _: Opening) -> None:
        """See `launcher.output.base.Renderer`."""

    def on(self, event: Shown) -> None:
        """Look for a task that could not be started."""
        if isinstance(event, TaskNotStarted) and event.code != _OURS and not self._given:
            self._given = True
            self._tell(f"not there on {event.host}: {self._text}")

    def tick(self, _: float) -> None:
        """See `launcher.output.base.Renderer`."""

    def close(self, _: Report) -> None:
        """See `launcher.output.base.Renderer`."""

"""What a launch on several hosts says of them before it starts, from what their agents tell anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.checking.findings import Severity, findings_of_agents
from launcher.events import AgentReady
from launcher.job import Host
from launcher.output.base import Opening, Shown
from launcher.report import Report

if TYPE_CHECKING:
    from typing import Any


class QuickCheck:
    """A renderer that shows nothing, but looks at the hosts as soon as all of them are ready.

    Args:
        hosts: those that the tasks run on.
        tell: takes what is to be said.
    """

    def __init__(self, hosts: Sequence[Host], tell: Callable[[str], None]) -> None:
        self._hosts = hosts
        self._tell = tell
        self._ready: dict[str, Any] = {}

    def begin(self, _: Opening) -> None:
        """See `launcher.output.base.Renderer`."""

    def on(self, event: Shown) -> None:
        """Collect what is known; speak once, when it is complete."""
        if not isinstance(event, AgentReady):
            return
        self._ready[event.host] = event.facts
        if len(self._ready) == len(self._hosts):
            for finding in findings_of_agents(self._hosts, self._ready):
                if finding.severity is not Severity.NOTE:
                    advice = f" ({finding.advice})" if finding.advice else ""
                    whose = f"{finding.severity.value}: {', '.join(finding.hosts)}"
                    self._tell(f"{whose}: {finding.seen}{advice}")

    def tick(self, _: float) -> None:
        """See `launcher.output.base.Renderer`."""

    def close(self, _: Report) -> None:
        """See `launcher.output.base.Renderer`."""

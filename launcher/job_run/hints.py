"""Remarks on the hosts of a job, from events that its agents send anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.checking.findings import Severity, findings_of_agents
from launcher.events import AgentReady, Event, TaskNotStarted
from launcher.job import Host

_NOT_SYNCED = "--sync DIR brings a folder to every host and runs there"
_SYNCED = "--sync leaves out what .gitignore names"
_PYTHON = "venv: or python: of a host names its Python"
#: Exit codes of a task whose program is not there, or can't be run.
_NO_PROGRAM = (126, 127)


class HostHints:
    """Looks at the events of a job with other machines.

    Args:
        hosts: those that the tasks run on.
        synced: code was brought to them.
        check: look for what usually goes wrong between hosts.
    """

    def __init__(self, hosts: Sequence[Host], synced: bool, check: bool) -> None:
        self._hosts = hosts
        self._synced = synced
        self._check = check
        self._ready: dict[str, Mapping[str, Any]] = {}
        self._advised = False

    def observe(self, event: Event) -> str:
        """A message for the user; empty: there is none."""
        if isinstance(event, TaskNotStarted) and event.code in _NO_PROGRAM and not self._advised:
            self._advised = True
            return f"not there on {event.host}: {_SYNCED if self._synced else _NOT_SYNCED}; {_PYTHON}"
        if isinstance(event, AgentReady) and self._check:
            self._ready[event.host] = event.facts
            if len(self._ready) == len(self._hosts):
                return "\n".join(self._findings())
        return ""

    def _findings(self) -> list[str]:
        lines = []
        for finding in findings_of_agents(self._hosts, self._ready):
            if finding.severity is not Severity.NOTE:
                advice = f" ({finding.advice})" if finding.advice else ""
                lines.append(f"{finding.severity.value}: {', '.join(finding.hosts)}: {finding.seen}{advice}")
        return lines

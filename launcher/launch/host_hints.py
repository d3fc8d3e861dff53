"""Hints from what the agents of a job find on their hosts."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.common.events import AgentReady, Event, HostFacts
from launcher.common.text import join_names
from launcher.job import Host, Placement
from launcher.messages import say


class HostHints:
    """Gives hints from what the agents of a job on other machines or in containers find.

    Args:
        hosts: the hosts of the tasks.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._names = {host.name for host in hosts}
        self._ready: dict[str, HostFacts] = {}

    def observe(self, event: Event) -> str:
        """A hint for the user about this event; empty: there is none."""
        if isinstance(event, AgentReady) and event.host in self._names:
            known = event.host in self._ready
            self._ready[event.host] = event.facts
            if len(self._ready) == len(self._hosts) and not known:
                return "\n".join(self._findings())
        return ""

    def _findings(self) -> list[str]:
        from launcher.findings import findings_of_agents  # noqa: PLC0415 - with ipaddress; for other hosts only

        lines = []
        for finding in findings_of_agents(self._hosts, self._ready):
            advice = f" ({finding.advice})" if finding.advice else ""
            lines.append(f"{finding.severity}: {join_names(finding.hosts)}: {finding.seen}{advice}")
        return lines


def name_idle_hosts(hosts: Sequence[Host], placement: Placement) -> None:
    """Tell the user which hosts no task runs on, and why."""
    standby = [host.name for host in placement.standby]
    if standby:
        say(f"no task runs on {join_names(standby)} until a host is lost")
    used = {*standby, *(host.name for host in placement.hosts())}
    idle = [host.name for host in hosts if host.name not in used and not host.spare]
    if idle:
        count = len(placement.tasks)
        tasks = "1 task (--workers N starts more)" if count == 1 else f"{count} tasks"
        say(f"no task runs on {join_names(idle)}: the job has {tasks}")

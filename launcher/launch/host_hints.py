"""Hints about hosts: what agents find there, which run no task, and which cannot be what the user meant.

The orchestrator and the session call it. It only tells the user something: no hint changes the job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.common.errors import HostsError
from launcher.common.events import AgentReady, Event, HostFacts
from launcher.common.text import join_names
from launcher.common.trusted_io import meant_file
from launcher.job import Host, Placement
from launcher.messages import say


class HostHints:
    """The maker of hints from what the agents of a job find on other machines or in containers.

    Args:
        hosts: The hosts of the tasks.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        #: The names of these hosts.
        self._names = {host.name for host in hosts}
        #: What the agents have found, by the names of those hosts that have reported.
        self._ready: dict[str, HostFacts] = {}

    def observe(self, event: Event) -> str:
        """Return hints once the agents of all hosts have reported, and only that one time.

        Returns:
            The hints, a line each. Empty if this event leads to none.
        """
        if isinstance(event, AgentReady) and event.host in self._names:
            is_known = event.host in self._ready  # If so, a lost host has returned.
            self._ready[event.host] = event.facts
            if len(self._ready) == len(self._hosts) and not is_known:
                return "\n".join(self._findings())
        return ""

    def _findings(self) -> list[str]:
        """Return a line for each finding about the hosts, all of which have reported."""
        from launcher.findings import findings_of_agents  # noqa: PLC0415 - imports ipaddress; for other hosts only

        lines = []
        for finding in findings_of_agents(self._hosts, self._ready):
            advice = f" ({finding.advice})" if finding.advice else ""
            lines.append(f"{finding.severity}: {join_names(finding.hosts)}: {finding.seen}{advice}")
        return lines


def name_idle_hosts(hosts: Sequence[Host], placement: Placement) -> None:
    """Tell the user on which hosts no task runs, and why.

    Args:
        hosts: The hosts of the launch.
        placement: The tasks, each with its host.
    """
    # These hosts have an agent, and get tasks when another host is lost.
    standby = [host.name for host in placement.standby]
    if standby:
        say(f"no task runs on {join_names(standby)} until a host is lost")
    used = {*standby, *(host.name for host in placement.hosts())}
    # A host that the user has marked as spare is meant to run no task.
    idle = [host.name for host in hosts if host.name not in used and not host.spare]
    if idle:
        count = len(placement.tasks)
        tasks = "1 task (--workers N starts more)" if count == 1 else f"{count} tasks"
        say(f"no task runs on {join_names(idle)}: the job has {tasks}")


def host_file_hint(error: HostsError, text: str) -> str:
    """Return a hint if the value of ``--hosts`` may be the misspelled name of a file.

    Args:
        error: Why the hosts cannot be used.
        text: The value of ``--hosts``. Empty without that option.

    Returns:
        The hint. Empty if the value cannot be the name of a file.
    """
    # A list of hosts, a port, a user or an IPv6 address is no name of a file.
    is_word = text and not os.path.exists(text) and not set(text) & set(",:@[")
    if not is_word or "was not found" not in str(error):
        return ""
    hint = f"--hosts {text}: there is no file of that name either"
    return "; ".join(filter(None, (hint, meant_file(text))))

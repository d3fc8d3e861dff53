"""What the agent asks about its host by children, because an answer may take seconds.

Does the Python of an environment run? Which ports of other hosts can be reached? Which GPUs are there? Do
tasks serve on other ports than their own? The agent calls `Questions`, and gets each answer by a callback or,
as the launcher wants to know it, as an event.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import partial
from typing import Callable, Optional, Sequence, Tuple

from launcher.agent import host, listening, lookup, ports
from launcher.agent.remote_programs import Children
from launcher.common import events
from launcher.common.errors import LaunchError, NotRunnableError
from launcher.common.text import why_not_started

#: Called with an event for the launcher.
OnEvent = Callable[[events.AgentEvent], None]
#: Called with the reason why an environment cannot be used, or with None if it can.
OnEnvironmentTried = Callable[[Optional[LaunchError]], None]
#: Returns the name, the port and the main process of each task that should serve on its port.
ListServers = Callable[[], Sequence[Tuple[str, int, int]]]


class Questions:
    """Asks about the host in children.

    Args:
        children: Runs the children.
        list_servers: Lists the tasks that should serve. It is called when they have run for a while.
        on_event: Sends an event to the launcher.
    """

    def __init__(self, children: Children, *, list_servers: ListServers, on_event: OnEvent) -> None:
        self._children = children
        self._list_servers = list_servers
        self._on_event = on_event
        #: When to look whether the tasks listen on their ports (monotonic). It is asked once, so this is
        #: infinite afterwards, and None as long as no task has started.
        self._servers_due: Optional[float] = None

    def try_environment(self, venv: str, *, on_tried: OnEnvironmentTried) -> None:
        """Find out whether the Python of an environment runs."""
        try:
            folder = lookup.find_environment(venv)
            self._children.ask(
                partial(lookup.try_python, folder),
                lookup.PYTHON_START_TIMEOUT_SECONDS,
                on_answer=partial(_on_python_tried, venv, folder, on_tried),
            )
        except LaunchError as fault:
            on_tried(fault)
        except OSError as error:
            why = f"the Python of the environment {venv!r} can't be tried: {why_not_started(error)}"
            on_tried(LaunchError(why))

    def ask_for_gpus(self) -> None:
        """Ask ``nvidia-smi`` for the GPUs, if this host has it, and send them to the launcher."""
        if lookup.is_command(host.NVIDIA_SMI[0]):
            self._children.ask(
                host.become_nvidia_smi, host.GPU_TIMEOUT_SECONDS, on_answer=self._on_gpus_listed
            )

    def try_peers(self, command: events.TryPeers) -> None:
        """Find out which ports of other hosts cannot be reached, and send them to the launcher."""
        try:
            self._children.ask(
                partial(ports.print_unreachable, command.addresses),
                ports.CHECK_TIMEOUT_SECONDS,
                on_answer=partial(self._on_peers_tried, command),
            )
        except OSError as error:
            unknown = dict.fromkeys(command.addresses, why_not_started(error))
            self._on_event(events.PeersTried("", events.now(), unknown))

    # ------------------------------------------------------------------ tasks that serve on other ports

    def on_task_started(self) -> None:
        """Note that a task has started. The first one decides when the ports are looked at."""
        self._servers_due = self._servers_due or time.monotonic() + listening.CHECK_AFTER_SECONDS

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic), or None if it is not."""
        return self._servers_due

    def on_time(self, now: float) -> None:
        """Look whether tasks serve on other ports than their own, once, and send advice to the launcher."""
        if self._servers_due is None or self._servers_due > now:
            return
        self._servers_due = math.inf
        servers = self._list_servers()
        with suppress(OSError):  # no process is left: it is only advice
            self._children.ask(
                partial(listening.print_elsewhere, servers),
                listening.CHECK_TIMEOUT_SECONDS,
                on_answer=self._on_servers_checked,
            )

    # ------------------------------------------------------------------ answers

    def _on_gpus_listed(self, answer: bytes) -> None:
        gpus = host.read_gpus(answer)
        if gpus:
            self._on_event(events.HostGpus("", events.now(), gpus))

    def _on_peers_tried(self, command: events.TryPeers, answer: bytes) -> None:
        unreachable = ports.read_unreachable(answer, command.addresses)
        self._on_event(events.PeersTried("", events.now(), unreachable))

    def _on_servers_checked(self, answer: bytes) -> None:
        if text := listening.explain(answer):
            self._on_event(events.HostNotice("", events.now(), text))


def _on_python_tried(venv: str, folder: str, on_tried: OnEnvironmentTried, answer: bytes) -> None:
    if answer:
        lookup.mark_environment_used(folder)
        on_tried(None)
    else:
        on_tried(NotRunnableError(f"the Python of the environment {venv!r} does not run"))

"""Questions of the agent about its host. Children answer them, because an answer may take seconds.

Does the Python of an environment run? Which ports of other hosts can be reached? Which GPUs are there? Do
tasks listen on other ports than their own? The agent calls `Questions`, which must never block. It passes
each answer to a callback, or sends it to the launcher as an event.
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
#: Called with the reason why an environment cannot be used, or with None if it can be used.
OnEnvironmentTried = Callable[[Optional[LaunchError]], None]
#: Returns the name, the port and the pid of the main process of each task that should listen on its port.
ListServers = Callable[[], Sequence[Tuple[str, int, int]]]


class Questions:
    """Answers questions about the host without blocking, by functions that run in children of the agent.

    Args:
        children: Runs the functions.
        list_servers: Returns the tasks that should listen. It is called once, when they have run for a while.
        on_event: Called with each answer for the launcher.
    """

    def __init__(self, children: Children, *, list_servers: ListServers, on_event: OnEvent) -> None:
        """Prepare to answer questions about the host."""
        self._children = children
        self._list_servers = list_servers
        self._on_event = on_event
        #: When to check whether the tasks listen on their ports (monotonic). It is None until a task has
        #: started, and infinite after the check, which is made only once.
        self._servers_due: Optional[float] = None

    def try_environment(self, venv: str, *, on_tried: OnEnvironmentTried) -> None:
        """Find out whether the Python of an environment runs.

        Args:
            venv: The environment, see `launcher.agent.lookup.find_environment`.
            on_tried: Called with the answer, now or later.
        """
        try:
            folder = lookup.find_environment(venv)
            # This returns at once, and a child runs the Python.
            self._children.ask(
                partial(lookup.try_python, folder),
                lookup.PYTHON_START_TIMEOUT_SECONDS,
                on_answer=partial(_on_python_tried, venv, folder, on_tried),
            )
        except LaunchError as fault:
            on_tried(fault)
        except OSError as error:
            # The child that should try the Python could not be started.
            why = f"the Python of the environment {venv!r} cannot be tried: {why_not_started(error)}"
            on_tried(LaunchError(why))

    def ask_for_gpus(self) -> None:
        """Ask ``nvidia-smi`` for the GPUs, if this host has that program, and send them to the launcher."""
        if lookup.is_command(host.NVIDIA_SMI[0]):
            self._children.ask(
                host.become_nvidia_smi, host.GPU_TIMEOUT_SECONDS, on_answer=self._on_gpus_listed
            )

    def try_peers(self, command: events.TryPeers) -> None:
        """Find out which of the addresses in a command cannot be reached, and send them to the launcher.

        Args:
            command: The command of the launcher, with the addresses of tasks on other hosts.
        """
        try:
            self._children.ask(
                partial(ports.print_unreachable, command.addresses),
                ports.CHECK_TIMEOUT_SECONDS,
                on_answer=partial(self._on_peers_tried, command),
            )
        except OSError as error:
            # There is no process for it, so nothing is known about any address.
            unknown = dict.fromkeys(command.addresses, why_not_started(error))
            self._on_event(events.PeersTried("", events.now(), unknown))

    # ------------------------------------------------------------------ tasks that serve on other ports

    def on_task_started(self) -> None:
        """Note that a task has started. The first one determines when the ports are checked."""
        self._servers_due = self._servers_due or time.monotonic() + listening.CHECK_AFTER_SECONDS

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic).

        It is None as long as no task has started, and infinite after the check.
        """
        return self._servers_due

    def on_time(self, now: float) -> None:
        """Check once whether tasks listen on other ports than their own, and send advice to the launcher.

        Args:
            now: The time (monotonic). Nothing happens unless the check is due.
        """
        if self._servers_due is None or self._servers_due > now:
            return
        # The check is made only once.
        self._servers_due = math.inf
        servers = self._list_servers()
        # If there is no process for it, the launcher gets no advice, which is no harm.
        with suppress(OSError):
            self._children.ask(
                partial(listening.print_elsewhere, servers),
                listening.CHECK_TIMEOUT_SECONDS,
                on_answer=self._on_servers_checked,
            )

    # ------------------------------------------------------------------ answers

    def _on_gpus_listed(self, answer: bytes) -> None:
        """Send the GPUs that ``nvidia-smi`` has printed to the launcher, if there are any."""
        gpus = host.read_gpus(answer)
        if gpus:
            self._on_event(events.HostGpus("", events.now(), gpus))

    def _on_peers_tried(self, command: events.TryPeers, answer: bytes) -> None:
        """Send the addresses that cannot be reached, which a child has printed, to the launcher."""
        unreachable = ports.read_unreachable(answer, command.addresses)
        self._on_event(events.PeersTried("", events.now(), unreachable))

    def _on_servers_checked(self, answer: bytes) -> None:
        """Send advice to the launcher if a child has found tasks that listen on other ports."""
        if text := listening.explain(answer):
            self._on_event(events.HostNotice("", events.now(), text))


def _on_python_tried(venv: str, folder: str, on_tried: OnEnvironmentTried, answer: bytes) -> None:
    """Tell the one who asked whether the Python of an environment runs.

    Args:
        venv: The environment, as the user named it.
        folder: Its folder.
        on_tried: Called with the answer.
        answer: What the Python has printed. It is empty if the Python does not run.
    """
    if answer:
        # `launch prepare` shows when an environment was used last.
        lookup.mark_environment_used(folder)
        on_tried(None)
    else:
        on_tried(NotRunnableError(f"the Python of the environment {venv!r} does not run"))

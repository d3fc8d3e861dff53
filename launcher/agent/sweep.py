"""Kills processes whose agent and watchdog of this user were both killed.

The tag of a process (`launcher.agent.processes`) names its agent; no other process carries one by chance.
Agent and watchdog carry it too, with ordinal 0: while one of them lives, it looks after the rest.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Mapping

from launcher.agent import processes
from launcher.agent.processes import Process, agent_of, ordinal_of, tag_of

#: Seconds between two looks at killed processes.
_POLL_SECONDS = 0.005
#: Seconds for `kill`.
_KILL_TIMEOUT_SECONDS = 5.0


def kill(arguments: Mapping[str, Any]) -> int:
    """Kill an agent, its watchdog and all that it started. This is a remote command.

    Args:
        arguments: ``agent``, its number.

    Returns:
        Exit status: 0 if nothing of it is left.
    """
    left = kill_leftovers(int(arguments["agent"]), _KILL_TIMEOUT_SECONDS)
    if left:
        sys.stderr.write(f"processes that can't be killed: {left}\n")
    return 1 if left else 0


def kill_leftovers(agent: int, seconds: float) -> List[int]:
    """Kill every process with a tag of this agent, the agent itself too, until none is left.

    Returns:
        Pids that are still there.
    """
    return kill_all(lambda: tagged().get(agent, []), seconds)


def kill_all(find: Callable[[], List[Process]], seconds: float) -> List[int]:
    """Kill what ``find`` returns until it is empty; the start time of each is compared right before.

    Returns:
        Pids that are still there.
    """
    until = time.monotonic() + seconds
    while True:
        late = time.monotonic() > until
        found = find()
        for process in found:
            # A watchdog that is the first process of a container gets no SIGKILL; it ends with its agent.
            processes.send(process, signal.SIGCONT if process.pid == 1 else signal.SIGKILL)
        if not found or late:  # after a last look: this process may have been suspended
            return [process.pid for process in found]
        time.sleep(_POLL_SECONDS)


def is_looked_after(group: List[Process]) -> bool:
    """Return whether an agent, or its watchdog, is among its processes."""
    return any(ordinal_of(tag_of(process.pid)) == 0 for process in group)


def tagged() -> Dict[int, List[Process]]:
    """Return the processes of this machine that carry a tag, by the number of their agent."""
    found: Dict[int, List[Process]] = {}
    for pid in processes.all_pids():
        agent = agent_of(tag_of(pid))
        if agent is not None:
            process = processes.read_process(pid)
            same = agent_of(tag_of(pid)) == agent  # else another process may have got the pid
            if same and process is not None and not process.has_ended:
                found.setdefault(agent, []).append(process)
    return found


def lost() -> List[Process]:
    """Return the processes of this user with the tag of an agent that is gone, and its watchdog, too."""
    return [
        process
        for group in tagged().values()
        if not is_looked_after(group)
        for process in group
        if processes.user_of(process.pid) == os.getuid() and not _has_hidden_ancestor(process)
    ]


def _has_hidden_ancestor(process: Process) -> bool:
    """Return whether an ancestor is hidden: it may be the agent, run by another user."""
    while process.parent > 1:
        parent = processes.read_process(process.parent)
        if parent is None:
            return True
        process = parent
    return process.parent == 0 and process.pid != 1

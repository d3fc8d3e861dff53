"""Kills the processes of an agent that was killed together with its watchdog.

An agent calls this when it closes, to kill what earlier runs have left behind, and so does a launcher that
has lost an agent. The process tag (`launcher.agent.processes`) contains the number of the agent, and no
process carries a tag by chance. Agent and watchdog carry it, too, with ordinal 0. While one of them lives it
stops the other processes itself, so `lost` must not return those.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Mapping

from launcher.agent import processes
from launcher.agent.processes import Process, agent_of, ordinal_of, tag_of

_POLL_SECONDS = 0.005
_KILL_TIMEOUT_SECONDS = 5.0


def kill(arguments: Mapping[str, Any]) -> int:
    """Kill an agent, its watchdog and all that it has started. This is a remote command.

    Args:
        arguments: ``agent``, the number of the agent.

    Returns:
        The exit status, which is 0 if no process of the agent is left.
    """
    alive = kill_leftovers(int(arguments["agent"]), _KILL_TIMEOUT_SECONDS)
    if alive:
        sys.stderr.write(f"processes that cannot be killed: {alive}\n")
    return 1 if alive else 0


def kill_leftovers(agent: int, seconds: float) -> List[int]:
    """Kill an agent, its watchdog and all that it has started, until none of these processes is left.

    Args:
        agent: The number of the agent.
        seconds: How long to try.

    Returns:
        The pids of the processes that are still there.
    """
    return kill_all(lambda: tagged().get(agent, []), seconds)


def kill_all(find: Callable[[], List[Process]], seconds: float) -> List[int]:
    """Kill processes again and again until none is found, or the time is up.

    Args:
        find: Returns the processes to kill. It is called again and again.
        seconds: How long to try.

    Returns:
        The pids of the processes that are still there.
    """
    until = time.monotonic() + seconds
    while True:
        # Whether this is the last round.
        is_late = time.monotonic() > until
        remaining = find()
        for process in remaining:
            # The kernel does not let a process kill the first one of its own container. There that is a
            # watchdog, which exits by itself when its agent has ended, but not while it is suspended.
            processes.send(process, signal.SIGCONT if process.pid == 1 else signal.SIGKILL)
        # Even when the time is up this kills once more, because this process may have been suspended.
        if not remaining or is_late:
            return [process.pid for process in remaining]
        time.sleep(_POLL_SECONDS)


def is_looked_after(group: List[Process]) -> bool:
    """Return whether an agent or its watchdog (its parent) still lives, so it will stop the others.

    The tags of these two have the ordinal 0, and those of all other processes of the agent a higher one.

    Args:
        group: All processes whose process tags contain the number of the agent.
    """
    return any(ordinal_of(tag_of(process.pid)) == 0 for process in group)


def tagged() -> Dict[int, List[Process]]:
    """Return the living processes of this machine that carry a process tag, by the number of their agent.

    A process tag is a number in one of the limits of a process, which its children inherit.
    """
    by_agent: Dict[int, List[Process]] = {}
    for pid in processes.all_pids():
        agent = agent_of(tag_of(pid))
        if agent is not None:
            process = processes.read_process(pid)
            # The tag is read again, because another process may have got the pid meanwhile.
            is_same = agent_of(tag_of(pid)) == agent
            if is_same and process is not None and not process.has_ended:
                by_agent.setdefault(agent, []).append(process)
    return by_agent


def lost() -> List[Process]:
    """Return the processes of this user whose agent and watchdog are both gone.

    A process is left out if one of its ancestors cannot be seen here, because that may be the agent.
    """
    lost_processes: List[Process] = []
    for group in tagged().values():
        if not is_looked_after(group):
            # Only the launches of this user are looked after here.
            of_this_user = [process for process in group if processes.user_of(process.pid) == os.getuid()]
            lost_processes += [process for process in of_this_user if not _has_hidden_ancestor(process)]
    return lost_processes


def _has_hidden_ancestor(process: Process) -> bool:
    """Return whether an ancestor of a process cannot be seen here. It may be the agent of another user."""
    while process.parent > 1:
        parent = processes.read_process(process.parent)
        # None if the parent has ended at this moment, or if `hidepid` hides it.
        if parent is None:
            return True
        process = parent
    # A parent outside of our pid namespace shows as 0. Only process 1 may have such a parent.
    return process.parent == 0 and process.pid != 1

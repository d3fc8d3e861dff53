"""Ending what agents of this user left on this host because nobody was left to end it.

Agent, guardian and porter must all have been killed for that. The watermark (`launcher.model.watermark`)
says whose a process is; nobody else's can carry one by chance. Porter, guardian and agent carry it too,
as number 0: while one of them lives, so does the agent, and what it started is none of our business.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

from launcher.model.watermark import agent_of, ordinal_of, watermark
from launcher.processes import kernel
from launcher.processes.kernel import Process

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Set

    Marked = Dict[int, List[Process]]

#: Seconds between two looks at what was killed.
_LOOK = 0.005
#: Seconds for `kill`.
_KILL_SECONDS = 5.0
#: How agents and guardians are called in process lists, also those that carry no mark of their own: the
#: agents of launches on this machine.
_KEEPERS = ("launch-agent", "launch-guardian")


def carry_mark(agent: int) -> None:
    """Make this process, and what it forks, recognisable as the one that keeps this agent's processes."""
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (watermark(agent, 0), hard))
    except (OSError, ValueError):  # the hard limit is below it: then tasks carry none either
        return


def kill(arguments: Mapping[str, Any]) -> int:
    """An errand: kill an agent, its guardian, its porter and all that it started.

    Args:
        arguments: ``agent``, its number.

    Returns:
        Exit status: 0 if nothing of it is left.
    """
    left = sweep(int(arguments["agent"]), _KILL_SECONDS)
    if left:
        sys.stderr.write(f"processes that can't be killed: {left}\n")
    return 1 if left else 0


def sweep(agent: int, seconds: float) -> List[int]:
    """Kill all that carries this agent's mark, the agent itself too, until there is nothing.

    Returns:
        Pids that are still there.
    """
    return _kill_all(lambda: marked().get(agent, []), seconds)


def sweep_lost(seconds: float) -> List[int]:
    """Kill what agents of this user started that have none to look after them any more; as `sweep`."""
    return _kill_all(lost, seconds)


def marked() -> Marked:
    """The processes of this machine that carry a mark, by the number of their agent."""
    found: Marked = {}
    for process in kernel.all_processes():
        agent = agent_of(kernel.watermark_of(process.pid))
        if agent is not None and not process.ended:
            found.setdefault(agent, []).append(process)
    return found


def lost() -> List[Process]:
    """Those of them that are this user's, and have neither porter nor guardian nor agent."""
    return [
        process
        for group in marked().values()
        if not any(ordinal_of(kernel.watermark_of(process.pid)) == 0 for process in group)
        for process in group
        if _is_ours(process.pid) and not _is_kept(process)
    ]


def _kill_all(find: Callable[[], List[Process]], seconds: float) -> List[int]:
    """Kill what is found until nothing is; each is looked at again (its start time) right before."""
    until = time.monotonic() + seconds
    while True:
        late = time.monotonic() > until
        found = find()
        for process in found:
            kernel.send(process, signal.SIGKILL)
        if not found or late:  # after a last look: it may be us who did nothing for so long
            return [process.pid for process in found]
        time.sleep(_LOOK)


def _is_kept(process: Process) -> bool:
    """Whether an agent or a guardian is among its ancestors, or this can't be known."""
    seen: Set[int] = set()
    while process.parent > 1 and process.pid not in seen:
        seen.add(process.pid)
        parent = kernel.look_at(process.parent)
        if parent is None or _name(parent.pid) in _KEEPERS:
            return True
        process = parent
    return process.parent != 1 and process.pid != 1


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _is_ours(pid: int) -> bool:
    """Whether it runs for this user: as its real user id says."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            uids = file.read().partition(b"\nUid:")[2].split(None, 4)[:4]
    except OSError:
        return False
    return bool(uids) and int(uids[0]) == os.getuid()

"""What other runs of this user have here. Looked at, never touched: the next launch sweeps what is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.store.home import Failed, jobs, store_of_user
from launcher.model.watermark import ordinal_of
from launcher.processes import kernel, sweep

if TYPE_CHECKING:
    from typing import Any, Dict, List

    from launcher.processes.kernel import Process

    Json = Dict[str, Any]

#: Processes and folders that are named; all processes are counted.
_MOST = 20


def leftovers() -> Json:
    """What there is of other runs.

    Returns:
        ``processes`` that nobody looks after (``pid``, ``name``), ``count`` of them; ``busy``: how many of
        a run that is alive; ``folders`` of runs.
    """
    lost = sweep.lost()
    of_tasks = [p for group in sweep.marked().values() for p in group if _is_of_task(p)]
    return {
        "processes": [{"pid": process.pid, "name": _name(process.pid)} for process in lost[:_MOST]],
        "count": len(lost),
        "busy": max(0, len(of_tasks) - len(lost)),
        "folders": _work_folders(),
    }


def _is_of_task(process: Process) -> bool:
    """Agents and what guards them carry the number 0."""
    return ordinal_of(kernel.watermark_of(process.pid)) > 0


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.readline().rstrip("\n")
    except OSError:  # it has just ended
        return "?"


def _work_folders() -> List[str]:
    """Runs that have folders in the cache that ``--sync`` keeps here."""
    try:
        return jobs(store_of_user())[:_MOST]
    except (OSError, Failed):
        return []

"""``--sync``: bring folders to all hosts. Only what a host lacks travels (see `launcher.agent.store`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.luggage.base import Errands
from launcher.luggage.meter import Meter
from launcher.luggage.packing import Packed, left_out
from launcher.luggage.parallel import on_all
from launcher.luggage.progress import Progress, counted, human
from launcher.luggage.rounds import Rounds
from launcher.luggage.talk import Conversation

_FINISH = "launcher.agent.store.work:finish"


class SyncResult(NamedTuple):
    """What a sync did."""

    #: The folder the tasks run in, by host.
    workdirs: dict[str, str]
    #: On one host, of all folders.
    files: int
    size: int
    #: Bytes that went to all hosts together, shrunk, with all that was said about them.
    sent: int
    #: Bytes of the files that hosts lacked, of all hosts together: what the bar counts.
    moved: int
    seconds: float


def sync(
    errands: Errands,
    hosts: Sequence[str],
    packed: Packed,
    job: str,
    progress: Progress,
    fanout: int,
    arrived: Callable[[str], None] = lambda _: None,
) -> SyncResult:
    """Bring packed folders to all hosts, put them in their places.

    A file that changes between being looked at and being sent makes everything be looked at once more, and a
    copy of it travels then.

    Args:
        errands: on all hosts.
        hosts, packed, job: what goes where, for which run.
        progress: shows it.
        fanout: how many hosts at once.
        arrived: called with each host that has all of it, whatever comes of the others; by several threads.

    Raises:
        HostsError: hosts that failed, a line each; on each of them nothing of it is visible.
        JobError: files that change all the time.
    """
    meter = Meter(hosts)
    since = time.monotonic()
    progress.begin("syncing", meter)
    summary = ""
    try:
        rounds = Rounds(errands, hosts, job, meter, progress, fanout, arrived)
        packed = rounds.bring(packed)
        result = _result(packed, rounds, meter.read().moved, time.monotonic() - since)
        summary = "\n".join([_summary(result, len(hosts)), *(left_out(packed) if rounds.sent else ())])
        return result
    finally:
        progress.end(summary)


def _result(packed: Packed, rounds: Rounds, moved: int, seconds: float) -> SyncResult:
    workdirs = {
        host: os.path.join(visit.paths[0], packed.subfolder).rstrip("/")
        for host, visit in rounds.visits.items()
    }
    files, size = sum(tree.files for tree in packed.trees), sum(tree.size for tree in packed.trees)
    return SyncResult(workdirs, files, size, rounds.sent, moved, seconds)


def _summary(result: SyncResult, hosts: int) -> str:
    """What the folders hold, and what had to be sent of it to all hosts together."""
    what = f"{counted(result.files, 'file')} ({human(result.size)}) to {counted(hosts, 'host')}"
    sent = f"{human(result.moved)} sent" if result.moved else "nothing sent"
    return f"synced {what}, {sent}, in {result.seconds:.1f} s"


def finish(errands: Errands, hosts: Sequence[str], job: str, fanout: int) -> dict[str, str]:
    """Remove the folders of a run from all hosts.

    Returns:
        What went wrong, by host: it is the end of the run, and no reason for it to fail.
    """

    def visit(host: str, wanted: Callable[[], bool]) -> None:
        with Conversation(errands, host, _FINISH, {"job": job}, wanted) as talk:
            talk.answer()

    return on_all(hosts, visit, fanout, lambda: None).failed

"""All hosts are visited until what they have is what was looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from launcher.errors import Fault, HostsError, JobError
from launcher.luggage.base import Errands
from launcher.luggage.manifests import Manifests
from launcher.luggage.mending import persistently
from launcher.luggage.meter import Meter
from launcher.luggage.packing import Packed, pack
from launcher.luggage.parallel import on_all
from launcher.luggage.parcels import Parcels
from launcher.luggage.progress import Progress
from launcher.luggage.requests import SyncRequest
from launcher.luggage.supply import Supply, Visit
from launcher.luggage.talk import Conversation
from launcher.luggage.walk import Tree
from launcher.text import listed

_SYNC = "launcher.agent.store.receive:sync"
#: How often all is looked at again because of files that have changed, others each time.
_MOST_ROUNDS = 4
#: Bytes of contents that a host's cache may hold after a sync; with its spare trees that makes 2 GiB.
CACHE_LIMIT = 3 * 1024**3 // 2


class Rounds:
    """All hosts are visited, and once more where files have changed between being looked at and being sent.

    Args:
        errands, hosts, job, progress, fanout, arrived: see `launcher.luggage.sync.sync`.
        meter: counts.
    """

    def __init__(
        self,
        errands: Errands,
        hosts: Sequence[str],
        job: str,
        meter: Meter,
        progress: Progress,
        fanout: int,
        arrived: Callable[[str], None],
    ) -> None:
        self._errands = errands
        self._hosts = hosts
        self._job = job
        self._meter = meter
        self._progress = progress
        self._fanout = fanout
        self._arrived = arrived
        #: What came of each host the last time.
        self.visits: dict[str, Visit] = {}
        #: Bytes, of all rounds.
        self.sent = 0

    def bring(self, packed: Packed) -> Packed:
        """Until nothing has changed.

        Returns:
            What has travelled at last.

        Raises:
            HostsError, JobError: see `launcher.luggage.sync.sync`.
        """
        restless: set[str] = set()
        told: list[str] = []
        changed = self._once(packed)
        for _ in range(_MOST_ROUNDS):
            if not changed:
                break
            restless |= changed
            packed = pack(packed.requests, os.getcwd(), packed.without, trusted=False, restless=restless)
            told = [*packed.restless_remarks, *_gone(packed, restless)]
            changed = self._once(packed)
        if changed:
            raise _restless(sorted(restless | changed))
        for text in told:
            self._meter.say(text)
        return packed

    def _once(self, packed: Packed) -> set[str]:
        """Visit all hosts.

        Returns:
            Files that have changed meanwhile.
        """
        self._meter.again(self._hosts)
        manifests, parcels = Manifests(packed.trees), Parcels(packed.trees)
        orders = [_order(number, *pair) for number, pair in enumerate(packed.pairs)]
        arguments = {"job": self._job, "limit": CACHE_LIMIT, "trees": orders}

        def visit(host: str, wanted: Callable[[], bool]) -> Visit:
            supply = Supply(packed.trees, manifests, parcels, self._meter)
            return self._visit(host, arguments, supply, wanted)

        outcome = on_all(self._hosts, visit, self._fanout, self._progress.tick)
        if outcome.failed:
            raise HostsError(outcome.failed.values())
        self.visits = outcome.done
        self.sent += sum(visit.sent for visit in self.visits.values())
        return {path for visit in self.visits.values() for path in visit.changed}

    def _visit(self, host: str, arguments: object, supply: Supply, wanted: Callable[[], bool]) -> Visit:
        def once() -> Visit:
            with Conversation(self._errands, host, _SYNC, arguments, wanted) as talk:
                return supply.serve(talk)

        try:
            found = persistently(self._errands, host, once, lambda: supply.gained, wanted, self._meter.say)
        finally:
            self._meter.done(host)
        if found.paths:
            self._arrived(host)
        return found


def _order(number: int, request: SyncRequest, tree: Tree) -> dict[str, Any]:
    return {
        "number": number,
        "manifest": tree.digest,
        "size": len(tree.manifest),
        "earlier": list(tree.earlier),
        "name": request.name,
        "remote": request.remote,
    }


def _gone(packed: Packed, restless: Collection[str]) -> list[str]:
    """What is to be said of files that were to travel, and are not there any more."""
    there = {entry.path for tree in packed.trees for entry in tree.entries}
    gone = sorted(path for path in restless if path not in there)
    return [f"--sync: {listed(gone)} vanished on the way: left out"] if gone else []


def _restless(changed: Sequence[str]) -> JobError:
    what = f"files that change while they are read can't travel: {listed(list(map(repr, changed)))}"
    return JobError(
        [Fault("--sync", what, "leave them out with lines in .launchignore, or wait until they are done")]
    )

"""``--sync``: bring folders to all hosts. Only what a host lacks travels (see `launcher.agent.store`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from launcher.errors import ConnectionLost, Fault, HostsError, JobError
from launcher.luggage.base import Errands
from launcher.luggage.leftout import left_out_line
from launcher.luggage.mending import persistently
from launcher.luggage.meter import Meter, Share
from launcher.luggage.parallel import on_all
from launcher.luggage.parcels import Parcels, pieces
from launcher.luggage.progress import Progress, counted, human, listed
from launcher.luggage.requests import SyncRequest
from launcher.luggage.talk import Conversation
from launcher.luggage.walk import Tree, travels, walk
from launcher.model.luggage import LuggageError, unspell

_SYNC, _FINISH = "launcher.agent.store.receive:sync", "launcher.agent.store.work:finish"
#: How often all is looked at again because of files that have changed, others each time.
_MOST_ROUNDS = 4
#: Files that a remark names.
_MOST_NAMED = 3
#: Bytes of contents that a host's cache may hold after a sync; with its spare trees that makes 2 GiB.
CACHE_LIMIT = 3 * 1024**3 // 2


class Packed(NamedTuple):
    """Folders that were looked at, ready to travel."""

    requests: Sequence[SyncRequest]
    trees: Sequence[Tree]
    #: Where in the first folder the tasks run.
    subfolder: str
    without: Sequence[str]

    @property
    def remarks(self) -> list[str]:
        """What the user should know: things that can't travel."""
        return [
            f"--sync: {tree.root}/{path} is a socket, a pipe or a device: left out"
            for tree in self.trees
            for path in tree.left_out[:1]
        ] + [
            *(
                f"--sync: and {len(tree.left_out) - 1} more of this kind in {tree.root}"
                for tree in self.trees
                if len(tree.left_out) > 1
            ),
            *self.restless_remarks,
        ]

    @property
    def restless_remarks(self) -> list[str]:
        """What the user should know of files that did not rest while they were looked at."""
        return [
            f"--sync: {listed(paths, _MOST_NAMED)} in {tree.root} {what}"
            for tree in self.trees
            for paths, what in (
                (tree.vanished, "vanished while it was looked at: left out"),
                (
                    tree.copies.names if tree.copies else (),
                    "changed while it was read: what travels is a copy",
                ),
            )
            if paths
        ]


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


def pack(
    requests: Sequence[SyncRequest],
    cwd: str,
    without: Sequence[str] = (),
    trusted: bool = True,
    restless: Collection[str] = (),
) -> Packed:
    """Look at the folders: nothing travels yet.

    Args:
        requests: at least one; tasks run in the first.
        cwd: the launcher's folder; tasks run in the same one on the hosts, if it travels.
        without: paths that do not travel, whatever the rules say: the run's own folder.
        trusted: whether what is remembered of the last time counts.
        restless: files that change all the time, relative to their folder.

    Raises:
        JobError: something can't be read; or the launcher's folder does not travel.
    """
    without = [os.path.realpath(path) for path in without]
    trees = [walk(request.folder, without, trusted, restless) for request in requests]
    subfolder = requests[0].inside(cwd) or ""
    if not travels(trees[0], subfolder):
        what = f"the current folder {subfolder!r} of {requests[0].text!r} is left out by its ignore rules"
        raise JobError(
            [Fault("--sync", what, "tasks could not run there: start it from a folder that travels")]
        )
    return Packed(requests, trees, subfolder, without)


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
    told: list[str] = []
    try:

        def bring(packed: Packed) -> dict[str, _Visit]:
            return _bring(errands, hosts, packed, job, meter, progress, fanout, arrived)

        visits = bring(packed)
        sent = sum(visit.sent for visit in visits.values())
        restless: set[str] = set()
        for _ in range(_MOST_ROUNDS):
            changed = {path for visit in visits.values() for path in visit.changed}
            if not changed:
                break
            restless |= changed
            packed = pack(packed.requests, os.getcwd(), packed.without, trusted=False, restless=restless)
            told = [*packed.restless_remarks, *_gone(packed, restless)]
            visits = bring(packed)
            sent += sum(visit.sent for visit in visits.values())
        else:
            raise _restless(sorted(restless))
        for text in told:
            meter.say(text)
        result = _result(packed, visits, sent, meter.read().moved, time.monotonic() - since)
        summary = "\n".join([_summary(result, len(hosts)), *(left_out(packed) if sent else ())])
        return result
    finally:
        progress.end(summary)


class _Visit(NamedTuple):
    """What came of one host."""

    #: Where each folder is.
    paths: Sequence[str]
    sent: int
    #: Files that were others when they were sent; if there are any, nothing was put in place.
    changed: Sequence[str] = ()


def _bring(
    errands: Errands,
    hosts: Sequence[str],
    packed: Packed,
    job: str,
    meter: Meter,
    progress: Progress,
    fanout: int,
    arrived: Callable[[str], None],
) -> dict[str, _Visit]:
    parcels = Parcels(packed.trees)
    arguments = {
        "job": job,
        "limit": CACHE_LIMIT,
        "trees": [*map(_order, range(len(packed.trees)), *_both(packed))],
    }

    def visit(host: str, wanted: Callable[[], bool]) -> _Visit:
        supply = _Supply(packed, parcels, meter)

        def once() -> _Visit:
            with Conversation(errands, host, _SYNC, arguments, wanted) as talk:
                return supply.serve(talk)

        try:
            found = persistently(errands, host, once, lambda: supply.gained, wanted, meter.say)
        finally:
            meter.done(host)
        if found.paths:
            arrived(host)
        return found

    outcome = on_all(hosts, visit, fanout, progress.tick)
    if outcome.failed:
        raise HostsError(outcome.failed.values())
    return outcome.done


def _both(packed: Packed) -> tuple[Sequence[SyncRequest], Sequence[Tree]]:
    return packed.requests, packed.trees


def _order(number: int, request: SyncRequest, tree: Tree) -> dict[str, Any]:
    return {
        "number": number,
        "manifest": tree.digest,
        "size": len(tree.manifest),
        "name": request.name,
        "remote": request.remote,
    }


class _Supply:
    """Gives one host what it asks for, over as many connections as it takes."""

    def __init__(self, packed: Packed, parcels: Parcels, meter: Meter) -> None:
        self._packed = packed
        self._parcels = parcels
        self._share = Share(meter)
        #: Over connections that broke.
        self._sent = 0
        #: Which tree was asked for last, and how little of it: what the host has it does not ask for again.
        self.gained = (-1, 0)

    def serve(self, talk: Conversation) -> _Visit:
        """Until it has all."""
        try:
            while True:
                said = talk.answer()
                if "done" in said:
                    return _Visit(said["done"], self._sent + talk.sent)
                if "bad" in said:
                    return _Visit((), self._sent + talk.sent, said["bad"])
                try:
                    self._give(talk, said)
                except (LuggageError, KeyError, IndexError, TypeError) as error:
                    raise talk.broken(error) from error
        except ConnectionLost:
            self._sent += talk.sent
            raise
        finally:
            self._share.drop()

    def _give(self, talk: Conversation, said: dict[str, Any]) -> None:
        trees = self._packed.trees
        if said["need"] == "manifests":
            for number in unspell(said["which"], len(trees)):
                for frame in pieces(trees[number].manifest):
                    talk.send(frame)
            return
        entries = trees[said["tree"]].entries
        which = unspell(said["which"], len(entries))
        size = sum(entries[index].size for index in which)
        self.gained = (int(said["tree"]), -size)
        self._share.expect(size)
        for parcel in self._parcels.contents(said["tree"], which):
            talk.send(parcel.frame)
            self._share.move(parcel.size)


def _gone(packed: Packed, restless: Collection[str]) -> list[str]:
    """What is to be said of files that were to travel, and are not there any more."""
    there = {entry.path for tree in packed.trees for entry in tree.entries}
    gone = sorted(path for path in restless if path not in there)
    return [f"--sync: {listed(gone, _MOST_NAMED)} vanished on the way: left out"] if gone else []


def _restless(changed: Sequence[str]) -> JobError:
    named = ", ".join(map(repr, changed[:5])) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
    what = f"files that change while they are read can't travel: {named}"
    return JobError(
        [Fault("--sync", what, "leave them out with lines in .launchignore, or wait until they are done")]
    )


def _result(packed: Packed, visits: dict[str, _Visit], sent: int, moved: int, seconds: float) -> SyncResult:
    workdirs = {host: os.path.join(visit.paths[0], packed.subfolder) for host, visit in visits.items()}
    files, size = sum(tree.files for tree in packed.trees), sum(tree.size for tree in packed.trees)
    workdirs = {host: path.rstrip("/") for host, path in workdirs.items()}
    return SyncResult(workdirs, files, size, sent, moved, seconds)


def _summary(result: SyncResult, hosts: int) -> str:
    """What the folders hold, and what had to be sent of it to all hosts together."""
    what = f"{counted(result.files, 'file')} ({human(result.size)}) to {counted(hosts, 'host')}"
    sent = f"{human(result.moved)} sent" if result.moved else "nothing sent"
    return f"synced {what}, {sent}, in {result.seconds:.1f} s"


def left_out(packed: Packed) -> list[str]:
    """What the ignore rules kept here, a line a folder."""
    single = len(packed.trees) == 1
    both = zip(*_both(packed), strict=True)
    lines = (left_out_line(tree.root, tree.ignored, "" if single else request.name) for request, tree in both)
    return [line for line in lines if line]


def finish(errands: Errands, hosts: Sequence[str], job: str, fanout: int) -> dict[str, str]:
    """Remove the folders of a run from all hosts.

    Returns:
        What went wrong, by host: it is the end of the run, and no reason for it to fail.
    """

    def visit(host: str, wanted: Callable[[], bool]) -> None:
        with Conversation(errands, host, _FINISH, {"job": job}, wanted) as talk:
            talk.answer()

    return on_all(hosts, visit, fanout, lambda: None).failed

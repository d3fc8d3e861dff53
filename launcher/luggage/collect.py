"""``--collect``: fetch what tasks have made from their hosts, also after a job that failed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from launcher.luggage.base import Errands
from launcher.luggage.landing import Arrival, Landing
from launcher.luggage.meter import Meter
from launcher.luggage.parallel import on_all
from launcher.luggage.progress import Progress, counted, human, listed, shortened
from launcher.luggage.requests import Wanted
from launcher.luggage.talk import Conversation
from launcher.model.luggage import FILE, PLAIN, Entry, Frames, LuggageError, understood, unpacked

_COLLECT = "launcher.agent.store.give:collect"
#: Folders that the line at the end names.
_MOST_NAMED = 2


class Collected(NamedTuple):
    """What a collect did."""

    files: int
    size: int
    #: What was not there or could not be read: no failure of the job.
    remarks: tuple[str, ...]
    #: What kept things that are there from being fetched, a line each, host first.
    failures: tuple[str, ...]


def collect(
    errands: Errands, wanted: Sequence[Wanted], job: str, progress: Progress, fanout: int
) -> Collected:
    """Fetch all that is wanted, from all hosts at once.

    What can be had is fetched, whatever fails.
    """
    hosts = list(dict.fromkeys(one.host for one in wanted))
    meter, since = Meter(hosts), time.monotonic()

    def visit(host: str, still_wanted: Callable[[], bool]) -> _Visit:
        mine = [one for one in wanted if one.host == host]
        arguments = {"job": job, "wanted": [{"base": one.base, "path": one.path} for one in mine]}
        try:
            with (
                Conversation(errands, host, _COLLECT, arguments, still_wanted) as talk,
                _Visit(host, mine, meter) as here,
            ):
                here.take_all(talk)
                return here
        finally:
            meter.done(host)

    summary = ""
    progress.begin("collecting", meter)
    try:
        outcome = on_all(hosts, visit, fanout, progress.tick)
        visits = list(outcome.done.values())
        failures = [text for one in visits for text in one.failures]
        result = Collected(
            sum(one.files for one in visits),
            sum(one.size for one in visits),
            tuple(text for one in visits for text in one.remarks),
            (*failures, *outcome.failed.values()),
        )
        into = {folder for one in visits for folder in one.into}
        summary = _summary(result, len(hosts), into, time.monotonic() - since)
        return result
    finally:
        progress.end(summary)


def _summary(result: Collected, hosts: int, into: Iterable[str], seconds: float) -> str:
    what = f"{counted(result.files, 'file')} ({human(result.size)}) from {counted(hosts, 'host')}"
    where = listed([shortened(path) for path in _tops(into)], _MOST_NAMED)
    return f"collected {what}{where and f' into {where}'} in {seconds:.1f} s"


def _tops(folders: Iterable[str]) -> list[str]:
    """Where several tasks have a folder each, the folder that those are in."""
    found = sorted(set(folders))
    return found if len(found) == 1 else sorted({os.path.dirname(path) for path in found})


class _Visit:
    """What arrives from one host. A context manager."""

    def __init__(self, host: str, wanted: Sequence[Wanted], meter: Meter) -> None:
        self._host = host
        self._wanted = wanted
        self._meter = meter
        self._frames = Frames()
        self._landing: Landing | None = None
        self._item = 0
        self._arrival: Arrival | None = None
        #: The file that comes could not be written: what comes of it is passed over.
        self._skips = False
        self._over = False
        self.files = self.size = 0
        self.remarks: list[str] = []
        self.failures: list[str] = []
        #: The folders here that files arrived in.
        self.into: set[str] = set()

    def take_all(self, talk: Conversation) -> None:
        """Take what comes, until the host says that it was all.

        Raises:
            TransportError: the host failed, or the connection broke.
        """
        try:
            while not self._over:
                for kind, payload in self._frames.feed(unpacked(*talk.hear())):
                    self._take(kind, payload)
        except (LuggageError, KeyError, IndexError, TypeError, ValueError) as error:
            raise talk.broken(error) from error
        self._leave()

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == PLAIN:
            self._content(payload)
            return
        said: dict[str, Any] = understood(payload)
        if "over" in said:
            self._over = True
        elif "end" in said:
            self._end(said)
        elif "total" in said:
            self._enter(said["item"])
            self._meter.expect(said["total"][1])
        elif "entry" in said:
            self._enter(said["item"])
            self._begin(Entry(*said["entry"]))
        else:
            self._remark(said["item"], str(said["remark"]))

    def _remark(self, item: int, text: str) -> None:
        self.remarks.append(f"{self._host}: {self._wanted[item].task}: {text}")

    def _enter(self, item: int) -> None:
        if self._landing is None or item != self._item:
            self._leave()
            self._item, self._landing = item, Landing(self._wanted[item].into)

    def _leave(self) -> None:
        """One thing that was wanted is complete."""
        if self._landing is None:
            return
        with self._landing:
            try:
                self._landing.finish()
            except OSError as error:
                self._failed(".", error)
        self._landing = None

    def _begin(self, entry: Entry) -> None:
        assert self._landing is not None
        self._skips = False
        try:
            if entry.kind == FILE:
                self._arrival = self._landing.file(entry)
            else:
                self._landing.put(entry)
        except OSError as error:
            self._failed(entry.path, error)
            self._skips = True

    def _content(self, data: bytes) -> None:
        self._meter.move(len(data))
        if self._skips:
            return
        if self._arrival is None:
            raise LuggageError("content of nothing")
        try:
            self._arrival.write(data)
        except OSError as error:
            self._failed("a file", error)
            self._abandon()
            self._skips = True

    def _end(self, said: dict[str, Any]) -> None:
        arrival, self._arrival = self._arrival, None
        if not said["end"]:
            self._remark(self._item, str(said["remark"]))
            if arrival is not None:
                arrival.abandon()
            return
        if arrival is None:
            return
        try:
            arrival.complete(said["end"])
        except OSError as error:
            self._failed(str(error.filename or "a file"), error)
            return
        self.into.add(self._wanted[self._item].into)
        self.files += 1
        self.size += arrival.size

    def _failed(self, path: str, error: OSError) -> None:
        """Nothing of the host's: it can't be written here."""
        into = self._wanted[self._item].into
        self.failures.append(f"{self._host}: {path!r} can't be put into {into}: {error.strerror}")

    def _abandon(self) -> None:
        if self._arrival is not None:
            self._arrival.abandon()
            self._arrival = None

    def __enter__(self) -> _Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self._abandon()
        if self._landing is not None:
            self._landing.__exit__()
            self._landing = None

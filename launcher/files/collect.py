"""``--collect``: fetch what tasks have made from their hosts, also after a job that failed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.agent.transfer import FOLDER, MAX_ENTRIES, Landing, check_entry
from launcher.errors import ProtocolError, TransportError
from launcher.files.progress import Meter, Progress, shortened
from launcher.files.requests import Wanted
from launcher.files.session import Conversation, on_all, persistently
from launcher.protocol import FileData, FileEnd, FileEntry, FileRemark, FilesDone, FilesFollow
from launcher.text import byte_size, counted, listed
from launcher.transports.base import Leased

#: Remarks of a host about one thing, and failures here, and how long each may be.
_MOST_REMARKS, _LONGEST_REMARK = 25, 2000


class Collected(NamedTuple):
    """What a collect did."""

    files: int
    size: int
    #: What was not there or could not be read: no failure of the job.
    remarks: tuple[str, ...]
    #: What kept things that are there from being fetched, a line each, host first.
    failures: tuple[str, ...]
    #: The hosts whose failures these are.
    failed: tuple[str, ...] = ()


def collect(
    errands: Leased,
    wanted: Sequence[Wanted],
    job: str,
    progress: Progress,
    fanout: int,
    deadline: float | None = None,
) -> Collected:
    """Fetch all that is wanted, from all hosts at once.

    What can be had is fetched, whatever fails. A file that is on its way when a connection breaks comes
    again from its beginning over the next one; what arrived before does not.

    Args:
        errands: on all hosts.
        wanted: what to fetch.
        job: the run.
        progress: shows it.
        fanout: how many hosts at once.
        deadline: when to give up what is not here (monotonic seconds); ``None``: never.
    """
    hosts = list(dict.fromkeys(one.host for one in wanted))
    meter, since, summary = Meter(hosts), time.monotonic(), ""
    fetches = {
        host: _Fetch(host, [one for one in wanted if one.host == host], meter, deadline) for host in hosts
    }

    def visit(host: str, cancelled: threading.Event) -> None:
        fetch = fetches[host]

        def once() -> None:
            arguments = {"job": job, "wanted": fetch.order()}
            with Conversation(errands, host, "give", arguments, cancelled) as talk:
                fetch.take_all(talk)

        try:
            persistently(errands, host, once, cancelled, meter.say)
        except TransportError as error:
            raise TransportError("; ".join(filter(None, (str(error), fetch.missing())))) from error
        finally:
            meter.done(host)

    progress.begin("collecting", meter)
    try:
        outcome = on_all(hosts, visit, fanout, progress.tick)
        lacking = {host: text for host, text in outcome.failed.items() if fetches[host].lacks}
        result = Collected(
            sum(fetch.files for fetch in fetches.values()),
            sum(fetch.size for fetch in fetches.values()),
            (
                *(text for fetch in fetches.values() for text in fetch.texts(fatal=False)),
                *(text for host, text in outcome.failed.items() if host not in lacking),
            ),
            (*(text for fetch in fetches.values() for text in fetch.texts(fatal=True)), *lacking.values()),
            tuple(host for host, fetch in fetches.items() if host in lacking or fetch.texts(fatal=True)),
        )
        into = {folder for fetch in fetches.values() for folder in fetch.into}
        summary = _summary(result, len(hosts), into, time.monotonic() - since)
        return result
    finally:
        progress.end(summary)


def _summary(result: Collected, hosts: int, into: Iterable[str], seconds: float) -> str:
    what = f"{counted(result.files, 'file')} ({byte_size(result.size)}) from {counted(hosts, 'host')}"
    folders = sorted(into)
    if len(folders) > 1:  # several tasks have a folder each: the folder that those are in
        folders = sorted({os.path.dirname(path) for path in folders})
    where = listed([shortened(path) for path in folders])
    return f"collected {what}{where and f' into {where}'} in {seconds:.1f} s"


class _Fetch:
    """What is fetched from one host, over as many connections as it takes."""

    def __init__(self, host: str, wanted: Sequence[Wanted], meter: Meter, deadline: float | None) -> None:
        self._host = host
        self._wanted = wanted
        self.meter = meter
        self._deadline = deadline
        #: Items of which all has come, and the files that came of each: path, size, time.
        self._done: set[int] = set()
        self._had: dict[int, set[tuple[str, int, int]]] = {number: set() for number in range(len(wanted))}
        self.files = self.size = self._entries = self._remarks = 0
        #: By item: the text, and whether it is a failure.
        self._texts: dict[int, dict[tuple[str, bool], None]] = {number: {} for number in range(len(wanted))}
        #: The folders here that files arrived in.
        self.into: set[str] = set()

    def order(self) -> list[dict[str, object]]:
        """What is still to be fetched, for the remote command."""
        return [
            {"number": number, "base": one.base, "path": one.path, "had": sorted(self._had[number])}
            for number, one in enumerate(self._wanted)
            if number not in self._done
        ]

    def missing(self) -> str:
        """What was not fetched, in words."""
        left = [one for number, one in enumerate(self._wanted) if number not in self._done]
        names = listed([f"{one.path!r} of {one.task}" for one in left])
        came = f" ({counted(self.files, 'file')} came)" if self.files else ""
        return f"not fetched: {names}{came}" if left else ""

    @property
    def lacks(self) -> bool:
        """Whether something that must come has not."""
        return any(not one.spare for number, one in enumerate(self._wanted) if number not in self._done)

    def texts(self, fatal: bool) -> list[str]:
        """Failures, or remarks; what need not come makes remarks only."""
        return [
            text
            for number, texts in self._texts.items()
            for text, failed in texts
            if (failed and not self._wanted[number].spare) == fatal
        ]

    def take_all(self, talk: Conversation) -> None:
        """Take what comes, until the host says that it was all.

        Raises:
            TransportError: the host failed, or the connection broke.
        """
        for number in self._had.keys() - self._done:
            self._texts[number].clear()  # will be said again
        self._remarks = 0
        item: _Item | None = None
        try:
            while not isinstance(message := talk.get(), FilesDone):
                if self._deadline is not None and time.monotonic() > self._deadline:
                    raise TransportError(f"{self._host}: out of time")
                if isinstance(message, FileRemark):
                    self.say(message.item, message.text)
                elif isinstance(message, FilesFollow):
                    if item is not None:
                        item.complete()
                    item = _Item(self, self._wanted_item(message.item), message)
                elif item is None:
                    raise ProtocolError(f"{type(message).__name__} at the wrong moment")
                else:
                    item.take(message)
            if item is not None:
                item.complete()
        except ProtocolError as error:
            raise talk.misunderstood(error) from error
        finally:
            if item is not None:
                item.close()
        self._done.update(self._had)

    def _wanted_item(self, number: int) -> Wanted:
        if number not in self._had or number in self._done:
            raise ProtocolError(f"nothing was asked for under the number {number}")
        return self._wanted[number]

    def say(self, number: int, text: str) -> None:
        """The host says something about an item."""
        self._remarks += 1
        if self._remarks > _MOST_REMARKS * len(self._wanted):
            raise ProtocolError("it sends too many remarks")
        self._add(number, f"{self._host}: {self._wanted_item(number).task}: {text}", False)

    def fail(self, number: int, path: str, error: OSError) -> None:
        """Something can't be written here."""
        into = self._wanted[number].into
        self._add(number, f"{self._host}: {path!r} can't be put into {into}: {error.strerror}", True)

    def _add(self, number: int, text: str, failed: bool) -> None:
        if len(self._texts[number]) < _MOST_REMARKS:
            self._texts[number][text[:_LONGEST_REMARK], failed] = None

    def begun(self) -> None:
        """One more entry arrives."""
        self._entries += 1
        if self._entries > 2 * MAX_ENTRIES:
            raise ProtocolError("it sends too many entries")

    def came(self, number: int, file: FileEntry) -> None:
        """A file has arrived as it is."""
        self._had[number].add((file.path, file.size, file.mtime_ns))
        self.into.add(self._wanted[number].into)
        self.files += 1
        self.size += file.size

    def over(self, number: int) -> None:
        """All of an item has come."""
        self._done.add(number)
        self._had[number].clear()


class _Item:
    """One thing that was asked for, while it arrives."""

    def __init__(self, fetch: _Fetch, wanted: Wanted, follows: FilesFollow) -> None:
        self._fetch = fetch
        self._number = follows.item
        self._landing = Landing(wanted.into)
        self._file = FileEntry("", FOLDER)
        self._folders: list[FileEntry] = []
        #: The file that arrives can't be written here: its bytes are passed over.
        self._skips = False
        self._left = max(0, follows.size)
        fetch.meter.expect(self._left)

    def take(self, message: object) -> None:
        """An entry, or part of a file.

        Raises:
            ProtocolError: it is neither.
        """
        try:
            if isinstance(message, FileEntry):
                self._fetch.begun()
                check_entry(message)
                self._file, self._skips = message, False
                self._landing.put(message)
                if message.kind == FOLDER:
                    self._folders.append(message)
            elif isinstance(message, FileData):
                self._left -= len(message.data)
                self._fetch.meter.move(len(message.data))
                if not self._skips:
                    self._landing.write(message.data)
            elif not isinstance(message, FileEnd):
                raise ProtocolError(f"{type(message).__name__} at the wrong moment")
            elif not self._skips:
                self._landing.end()
                if not message.torn:
                    self._fetch.came(self._number, self._file)
        except OSError as error:
            self._skips = True
            self._landing.abandon()
            self._fetch.fail(self._number, self._file.path, error)

    def complete(self) -> None:
        """All of it has come."""
        try:
            self._landing.finish(self._folders)
        except OSError as error:
            self._fetch.fail(self._number, ".", error)
        self.close()
        self._fetch.over(self._number)

    def close(self) -> None:
        """Remove what is half here."""
        self._landing.close()
        self._fetch.meter.expect(-self._left)
        self._left = 0

"""``--collect``: fetch what tasks have made from their hosts, also after a job that failed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.agent.transfer import FOLDER, MAX_ENTRIES, Landing, check_entry
from launcher.errors import ProtocolError, TransportError
from launcher.files.progress import Meter, Progress, shortened
from launcher.files.requests import Item
from launcher.files.session import Conversation, on_all
from launcher.protocol import FileData, FileEnd, FileEntry, FileRemark, FilesDone, FilesFollow
from launcher.text import byte_size, counted, listed
from launcher.transports.base import Hosts

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
    #: The hosts that have a failure.
    failed: tuple[str, ...] = ()


def collect(
    commands: Hosts,
    items: Sequence[Item],
    job: str,
    progress: Progress,
    fanout: int,
    deadline: float | None = None,
) -> Collected:
    """Fetch items from all hosts at once.

    What can be had is fetched, whatever fails.

    Args:
        commands: on all hosts.
        items: what to fetch.
        job: the run.
        progress: shows it.
        fanout: how many hosts at once.
        deadline: when to give up what is not here (monotonic seconds); ``None``: never.
    """
    by_host: dict[str, list[_Arriving]] = {}
    for item in items:
        by_host.setdefault(item.host, []).append(_Arriving(item))
    meter, since, summary = Meter(by_host), time.monotonic(), ""

    def visit(host: str, cancelled: threading.Event) -> None:
        arguments = {"job": job, "items": [item.order(number) for number, item in enumerate(by_host[host])]}
        try:
            with Conversation(commands, host, "give", arguments, cancelled) as talk:
                _take_all(talk, by_host[host], meter, deadline)
        except TransportError as error:
            raise TransportError(f"{error}{_missing(by_host[host])}") from error
        finally:
            meter.done(host)

    progress.begin("collecting", meter)
    try:
        outcome = on_all(list(by_host), visit, fanout, progress.tick)
        result = _result(by_host, outcome.failed)
        into = {item.item.into for of_host in by_host.values() for item in of_host if item.came}
        summary = _summary(result, len(by_host), into, time.monotonic() - since)
        return result
    finally:
        progress.end(summary)


def _result(items: Mapping[str, Sequence[_Arriving]], errors: Mapping[str, str]) -> Collected:
    """What came of it. What is spare and did not come is a remark."""
    remarks, failures, failed = [], [], []
    for host, of_host in items.items():
        fatal = [text for item in of_host if not item.item.spare for text in item.failures]
        remarks += [text for item in of_host for text in item.remarks]
        remarks += [text for item in of_host if item.item.spare for text in item.failures]
        failures += fatal
        if fatal or (host in errors and any(not item.done and not item.item.spare for item in of_host)):
            failed.append(host)
    failures += [text for host, text in errors.items() if host in failed]
    remarks += [text for host, text in errors.items() if host not in failed]
    files = sum(len(item.came) for of_host in items.values() for item in of_host)
    size = sum(size for of_host in items.values() for item in of_host for _, size, _ in item.came)
    return Collected(files, size, tuple(remarks), tuple(failures), tuple(failed))


def _missing(items: Sequence[_Arriving]) -> str:
    """What was not fetched from a host, in words."""
    left = [f"{item.item.path!r} of {item.item.task}" for item in items if not item.done]
    files = sum(len(item.came) for item in items)
    came = f" ({counted(files, 'file')} came)" if files else ""
    return f"; not fetched: {listed(left)}{came}" if left else ""


def _summary(result: Collected, hosts: int, into: Iterable[str], seconds: float) -> str:
    what = f"{counted(result.files, 'file')} ({byte_size(result.size)}) from {counted(hosts, 'host')}"
    folders = sorted(into)
    if len(folders) > 1:  # several tasks have a folder each: the folder that those are in
        folders = sorted({os.path.dirname(path) for path in folders})
    where = listed([shortened(path) for path in folders])
    return f"collected {what}{where and f' into {where}'} in {seconds:.1f} s"


def _take_all(talk: Conversation, items: Sequence[_Arriving], meter: Meter, deadline: float | None) -> None:
    """Take what a host sends, until it says that it was all.

    Raises:
        TransportError: the host failed, or the connection broke.
    """
    for item in items:
        item.begin_again()
    current: _Arriving | None = None
    left = 0
    try:
        while not isinstance(message := talk.get(), FilesDone):
            if deadline is not None and time.monotonic() > deadline:
                raise TransportError(f"{items[0].item.host}: out of time")
            if isinstance(message, FileRemark):
                _item(items, message.item).remark(message.text)
            elif isinstance(message, FilesFollow):
                if current is not None:
                    current.complete()
                current = _item(items, message.item)
                meter.expect(message.size - left)
                left = message.size
            elif current is None:
                raise ProtocolError(f"{type(message).__name__} at the wrong moment")
            else:
                if isinstance(message, FileData):
                    left -= len(message.data)
                    meter.move(len(message.data))
                current.take(message)
        for item in items:
            item.complete()
    except ProtocolError as error:
        raise talk.misunderstood(error) from error
    finally:
        meter.expect(-left)
        for item in items:
            item.landing.close()


def _item(items: Sequence[_Arriving], number: int) -> _Arriving:
    if not 0 <= number < len(items) or items[number].done:
        raise ProtocolError(f"nothing was asked for under the number {number}")
    return items[number]


class _Arriving:
    """One thing that is fetched, over as many connections as it takes."""

    def __init__(self, item: Item) -> None:
        self.item = item
        #: All of it is here.
        self.done = False
        #: Files that came as they are: path, size, time.
        self.came: set[tuple[str, int, int]] = set()
        #: From the host; and what can't be written here.
        self.remarks: list[str] = []
        self.failures: list[str] = []
        self.landing = Landing(item.into)
        self._file = FileEntry("", FOLDER)
        self._folders: dict[str, FileEntry] = {}
        self._entries = 0

    def order(self, number: int) -> dict[str, object]:
        """What the remote command is asked for."""
        return {"number": number, "base": self.item.base, "path": self.item.path, "had": sorted(self.came)}

    def begin_again(self) -> None:
        """The remarks on it come again, if it is not complete."""
        if not self.done:
            self.remarks, self.failures, self._entries = [], [], 0

    def remark(self, text: str) -> None:
        """The host says something about it."""
        if len(self.remarks) == _MOST_REMARKS:
            raise ProtocolError("too many remarks")
        self.remarks.append(f"{self.item.host}: {self.item.task}: {text[:_LONGEST_REMARK]}")

    def take(self, message: object) -> None:
        """An entry, or part of a file.

        Raises:
            ProtocolError: it is neither.
        """
        try:
            if isinstance(message, FileEntry):
                self._entries += 1
                if self._entries > 2 * MAX_ENTRIES:
                    raise ProtocolError("too many entries")
                check_entry(message)
                self._file = message
                if message.kind == FOLDER:
                    self._folders[message.path] = message
                self.landing.put(message)
            elif isinstance(message, FileData):
                self.landing.write(message.data)
            elif not isinstance(message, FileEnd):
                raise ProtocolError(f"{type(message).__name__} at the wrong moment")
            elif self.landing.end() and not message.torn:
                self.came.add((self._file.path, self._file.size, self._file.mtime_ns))
        except OSError as error:
            self.landing.skip()
            self._failed(self._file.path, error)

    def _failed(self, path: str, error: OSError) -> None:
        if len(self.failures) < _MOST_REMARKS:
            into = self.item.into
            self.failures.append(f"{self.item.host}: {path!r} can't be put into {into}: {error.strerror}")

    def complete(self) -> None:
        """All of it has come."""
        if not self.done:
            self.done = True
            try:
                self.landing.finish(self._folders.values())
            except OSError as error:
                self._failed(".", error)
            self.landing.close()

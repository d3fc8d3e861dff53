"""``--collect``: copy what tasks have made from their hosts, also after a job that failed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.agent.transfer import MAX_ENTRIES, Landing
from launcher.errors import ProtocolError, TransportError
from launcher.files.requests import Item, with_tilde
from launcher.files.session import Conversation, Progress, on_all
from launcher.protocol import FileData, FileEntry, FileRemark, FilesDone, FilesFollow
from launcher.text import byte_size, counted, listed
from launcher.transports.base import Hosts

#: Remarks of a host about one thing, and failures here, and how long each may be.
_MOST_REMARKS, _LONGEST_REMARK = 25, 2000
#: Bytes that files may grow while they are fetched, all of one item together, besides their size.
_MOST_GROWTH = 1024**3


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
    progress: Progress,
    fanout: int,
    deadline: float | None = None,
) -> Collected:
    """Fetch items from all hosts at once. What can be had is fetched, whatever fails.

    Args:
        commands: run programs of ours on all hosts.
        items: what to fetch.
        progress: shows it.
        fanout: how many hosts at once.
        deadline: when to give up what is not here (monotonic seconds); ``None``: never.
    """
    by_host: dict[str, list[_Arriving]] = {}
    for item in items:
        by_host.setdefault(item.host, []).append(_Arriving(item))

    def visit(host: str, cancelled: threading.Event) -> None:
        arriving = by_host[host]
        orders = [{"base": one.item.base, "path": one.item.path} for one in arriving]
        try:
            with Conversation(commands, host, "give", {"items": orders}, cancelled) as talk:
                _take_all(talk, arriving, progress)
        except TransportError as error:
            left = [f"{one.item.path!r} of {one.item.task}" for one in arriving if not one.done]
            came = counted(sum(one.files for one in arriving), "file")
            raise TransportError(f"{error}; not fetched: {listed(left)} ({came} came)") from error

    lines: list[str] = []
    try:
        failed = on_all(list(by_host), visit, fanout, progress, deadline).failed
        result = _result(by_host, failed)
        what = f"{counted(result.files, 'file')} ({byte_size(result.size)})"
        folders = {one.item.into for arriving in by_host.values() for one in arriving if one.files}
        if len(folders) > 1:  # several tasks have a folder each: the folder that those are in
            folders = {os.path.dirname(path) for path in folders}
        into = f" into {listed(sorted(map(with_tilde, folders)))}" if folders else ""
        hosts = counted(len(by_host), "host")
        lines = [f"collected {what} from {hosts}{into} in {progress.seconds:.1f} s"]
        return result
    finally:
        progress.end(*lines)


def _result(by_host: Mapping[str, Sequence[_Arriving]], failed: Mapping[str, str]) -> Collected:
    arriving = [one for items in by_host.values() for one in items]
    failures = [text for one in arriving for text in one.failures]
    names = [host for host, items in by_host.items() if host in failed or any(one.failures for one in items)]
    return Collected(
        sum(one.files for one in arriving),
        sum(one.size for one in arriving),
        tuple(text for one in arriving for text in one.remarks),
        (*failures, *failed.values()),
        tuple(names),
    )


def _take_all(talk: Conversation, items: Sequence[_Arriving], progress: Progress) -> None:
    """Take what a host sends, until it reports the end.

    Raises:
        TransportError: the host failed.
    """
    current: _Arriving | None = None
    try:
        while not isinstance(message := talk.get(), FilesDone):
            if isinstance(message, (FileRemark, FilesFollow)) and not 0 <= message.item < len(items):
                raise ProtocolError(f"nothing was asked for under the number {message.item}")
            if isinstance(message, FileRemark):
                items[message.item].remark(message.text)
            elif isinstance(message, FilesFollow):
                if current is not None:
                    current.complete()
                current = items[message.item]
                current.begin(message.size)
                progress.expect(message.size)
            elif current is None:
                raise ProtocolError(f"{type(message).__name__} at the wrong moment")
            else:
                current.take(message)
                progress.move(len(message.data) if isinstance(message, FileData) else 0)
        for item in items:
            item.complete()
    except ProtocolError as error:
        raise talk.misunderstood(error) from error
    finally:
        for item in items:
            item.landing.close()


class _Arriving:
    """One thing that is fetched."""

    def __init__(self, item: Item) -> None:
        self.item = item
        #: All of it is here.
        self.done = False
        #: Files that came as they are, and their bytes.
        self.files = self.size = 0
        #: From the host; and what can't be written here.
        self.remarks: list[str] = []
        self.failures: list[str] = []
        self.landing = Landing(item.into)
        self._path = "."
        #: Entries and bytes that may still come.
        self._entries, self._bytes = 2 * MAX_ENTRIES, 0

    def begin(self, size: int) -> None:
        """So many bytes follow.

        Raises:
            TransportError: there is no room for them here.
        """
        if self.done or self._bytes:
            raise ProtocolError("something is sent twice")
        self._bytes = 2 * size + _MOST_GROWTH
        parent = self.item.into
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        free = shutil.disk_usage(parent).free
        if size > free:
            text = f"{byte_size(size)} come, and {byte_size(free)} are free at {parent}"
            raise TransportError(f"{self.item.host}: disk full here: {text}")

    def remark(self, text: str) -> None:
        """The host reports something about it."""
        if len(self.remarks) == _MOST_REMARKS:
            raise ProtocolError("too many remarks")
        self.remarks.append(f"{self.item.host}: {self.item.task}: {text[:_LONGEST_REMARK]}")

    def take(self, message: object) -> None:
        """An entry, or part of a file.

        Raises:
            ProtocolError: it is neither, or too much comes.
        """
        if isinstance(message, FileEntry):
            self._path = message.path
            self._entries -= 1
        elif isinstance(message, FileData):
            self._bytes -= len(message.data)
        if self._entries < 0 or self._bytes < 0:
            raise ProtocolError("too many entries or bytes")
        try:
            file = self.landing.take(message)
        except OSError as error:
            self._fail(error)
            return
        if file is not None:
            self.files += 1
            self.size += file.size

    def complete(self) -> None:
        """All of it has come."""
        if not self.done:
            self.done, self._path = True, "."
            try:
                self.landing.finish()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        if len(self.failures) < _MOST_REMARKS:
            where = f"{self._path!r} can't be put into {self.item.into}"
            self.failures.append(f"{self.item.host}: {where}: {error.strerror}")

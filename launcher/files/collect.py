"""``--collect``: copy what tasks have made from their hosts, also after a job that failed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass
class _Fetch:
    """How far one item is."""

    item: Item
    done: bool = False
    #: Files that came as they are, and their bytes.
    files: int = 0
    size: int = 0
    #: From the host; and what can't be written here.
    remarks: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


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
    fetches = [_Fetch(item) for item in items]
    hosts = list(dict.fromkeys(item.host for item in items))

    def visit(host: str, cancelled: threading.Event) -> None:
        mine = [fetch for fetch in fetches if fetch.item.host == host]
        orders = [{"base": fetch.item.base, "path": fetch.item.path} for fetch in mine]
        try:
            with Conversation(commands, host, "give", {"items": orders}, cancelled) as talk:
                for fetch in mine:
                    _take(talk, fetch, progress)
        except TransportError as error:
            left = [f"{fetch.item.path!r} of {fetch.item.task}" for fetch in mine if not fetch.done]
            came = counted(sum(fetch.files for fetch in mine), "file")
            raise TransportError(f"{error}; not fetched: {listed(left)} ({came} came)") from error

    lines: list[str] = []
    try:
        _, lost = on_all(hosts, visit, fanout, progress, deadline)
        files, size = sum(fetch.files for fetch in fetches), sum(fetch.size for fetch in fetches)
        folders = {fetch.item.into for fetch in fetches if fetch.files}
        if len(folders) > 1:  # several tasks have a folder each: the folder that those are in
            folders = {os.path.dirname(path) for path in folders}
        into = f" into {listed(sorted(map(with_tilde, folders)))}" if folders else ""
        amount = f"{counted(files, 'file')} ({byte_size(size)}) from {counted(len(hosts), 'host')}"
        lines = [f"collected {amount}{into} in {progress.seconds:.1f} s"]
        failed = {fetch.item.host for fetch in fetches if fetch.failures} | lost.keys()
        remarks = [text for fetch in fetches for text in fetch.remarks]
        failures = [text for fetch in fetches for text in fetch.failures] + list(lost.values())
        names = (host for host in hosts if host in failed)
        return Collected(files, size, tuple(remarks), tuple(failures), tuple(names))
    finally:
        progress.end(*lines)


def _take(talk: Conversation, fetch: _Fetch, progress: Progress) -> None:
    """Take what a host sends for an item. What can't be written here is noted.

    Raises:
        TransportError: the host failed, or there is no room here.
    """
    host, into = fetch.item.host, fetch.item.into
    landing, path = Landing(into), "."
    entries, room = 2 * MAX_ENTRIES, 0

    def fail(error: OSError) -> None:
        if len(fetch.failures) < _MOST_REMARKS:
            fetch.failures.append(f"{host}: {path!r} can't be put into {into}: {error.strerror}")

    try:
        while not isinstance(message := talk.get(), FilesDone):
            if isinstance(message, FileRemark):
                fetch.remarks.append(f"{host}: {fetch.item.task}: {message.text[:_LONGEST_REMARK]}")
            elif isinstance(message, FilesFollow):
                if room or message.size < 0:
                    raise ProtocolError("FilesFollow at the wrong moment")
                _check_room(host, into, message.size)
                room = 2 * message.size + _MOST_GROWTH
                progress.expect(message.size)
            else:
                if isinstance(message, FileEntry):
                    path = message.path
                    entries -= 1
                elif isinstance(message, FileData):
                    room -= len(message.data)
                    progress.move(len(message.data))
                try:
                    file = landing.take(message)
                except OSError as error:
                    fail(error)
                    continue
                if file is not None:
                    fetch.files += 1
                    fetch.size += file.size
            if entries < 0 or room < 0 or len(fetch.remarks) > _MOST_REMARKS:
                raise ProtocolError("too many entries, bytes or remarks")
        fetch.done, path = True, "."
        landing.finish()
    except OSError as error:
        fail(error)
    except ProtocolError as error:
        raise talk.misunderstood(error) from error
    finally:
        landing.close()


def _check_room(host: str, into: str, size: int) -> None:
    while not os.path.isdir(into):
        into = os.path.dirname(into)
    free = shutil.disk_usage(into).free
    if size > free:
        text = f"{byte_size(size)} come, and {byte_size(free)} are free at {into}"
        raise TransportError(f"{host}: disk full here: {text}")

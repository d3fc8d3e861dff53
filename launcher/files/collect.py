"""``--collect``: copy what tasks have made from their hosts, also after a job that failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.agent.transfer import FILE, MAX_ENTRIES, Landing
from launcher.errors import ProtocolError, TransportError
from launcher.files.copying import Conversation, Copying
from launcher.files.requests import Item, with_tilde
from launcher.protocol import FileEntry, FileRemark, FilesDone, FilesFollow
from launcher.text import byte_size, counted, listed

#: Remarks of a host about one thing, and failures here, and how long each may be.
_MOST_NOTES, _LONGEST_NOTE = 20, 2000


@dataclass
class Collected:
    """What came from a host, or from all."""

    files: int = 0
    size: int = 0
    #: What was not there or could not be read: no failure of the job.
    remarks: list[str] = field(default_factory=list)
    #: What kept things that are there from being fetched, a line each, host first.
    failures: list[str] = field(default_factory=list)
    #: The hosts that have a failure.
    failed: list[str] = field(default_factory=list)
    #: The folders here that files went to.
    folders: set[str] = field(default_factory=set)


def collect(copying: Copying, items: Sequence[Item]) -> Collected:
    """Fetch items from all hosts at once. What can be had is fetched, whatever fails."""
    hosts = {item.host: Collected() for item in items}

    def visit(host: str) -> None:
        mine = [item for item in items if item.host == host]
        asked = [{"base": item.base, "path": item.path} for item in mine]
        result = hosts[host]
        left = [f"{item.path!r} of {item.task}" for item in mine]
        try:
            with copying.command(host, "give", {"items": asked}) as talk:
                for item in mine:
                    _take(copying, talk, item, result)
                    del left[0]
        except TransportError as error:
            text = f"not fetched: {listed(left)} ({counted(result.files, 'file')} came)"
            raise TransportError(f"{error}; {text}") from error

    _, lost = copying.on_all(list(hosts), visit)
    total = Collected()
    for host, result in hosts.items():
        total.files += result.files
        total.size += result.size
        total.remarks += result.remarks
        total.folders |= result.folders
        failures = [*result.failures, *([lost[host]] if host in lost else ())]
        total.failures += failures
        total.failed += [host] if failures else []
    folders = total.folders
    if len(folders) > 1:  # several tasks have a folder each: the folder that those are in
        folders = {os.path.dirname(path) for path in folders}
    into = f" into {listed(sorted(map(with_tilde, folders)))}" if folders else ""
    amount = f"{counted(total.files, 'file')} ({byte_size(total.size)}) from {counted(len(hosts), 'host')}"
    copying.report(f"collected {amount}{into} in {copying.seconds:.1f} s")
    return total


def _take(copying: Copying, talk: Conversation, item: Item, result: Collected) -> None:
    """Take what a host sends for an item. What can't be written here is a failure, and the rest goes on.

    Raises:
        TransportError: the host failed, or the disk here is full.
        ProtocolError: the host sent what it may not send.
    """
    landing, remarks, failures = Landing(talk, item.into), 0, 0

    def note(texts: list[str], count: int, text: str) -> None:
        """Keep the first remarks or failures."""
        if count <= _MOST_NOTES:
            more = "; there is more of this kind" if count == _MOST_NOTES else ""
            texts.append(f"{item.host}: {text[:_LONGEST_NOTE]}{more}")

    while not isinstance(message := talk.get(FileRemark, FilesFollow, FileEntry, FilesDone), FilesDone):
        if isinstance(message, FileRemark):
            remarks += 1
            if remarks > MAX_ENTRIES:
                raise ProtocolError("too many remarks")
            note(result.remarks, remarks, f"{item.task}: {message.text}")
        elif isinstance(message, FilesFollow):
            try:
                landing.expect(message)
            except OSError as error:
                raise TransportError(f"{item.host}: disk full here: {error.strerror}") from error
            copying.add(message.size)
        else:
            try:
                landing.land(message)
            except OSError as error:
                failures += 1
                text = f"{message.path!r} can't be put into {item.into}: {error.strerror}"
                note(result.failures, failures, text)
                continue
            if message.kind == FILE:
                result.files += 1
                result.size += message.size
                result.folders.add(item.into)

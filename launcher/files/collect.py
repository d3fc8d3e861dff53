"""``--collect``: copy files of tasks from their hosts, even after a job that failed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher.agent.transfer import MAX_ENTRIES, DestinationTree
from launcher.backends.connections import with_tilde
from launcher.common.errors import ProtocolError, TransportError
from launcher.common.protocol import FileEntry, FileNotice, FilesDone, FilesFollow
from launcher.common.text import byte_size, duration, join_names, plural, sanitize_host_text
from launcher.files.copying import FileTransfer, ProgramStream
from launcher.files.requests import Item

#: Messages about one item, at most.
_MAX_MESSAGES = 3 * MAX_ENTRIES
#: Notices, and failures, of a host that are kept.
_MAX_NOTES = 20


@dataclass
class Collected:
    """The result for one host."""

    #: The items that have begun; for each of them:
    items: list[Item] = field(default_factory=list)
    landings: list[DestinationTree] = field(default_factory=list)
    #: Paths that do not exist or can't be read: not a failure of the job.
    notices: list[str] = field(default_factory=list)
    #: Why existing files could not be copied.
    failures: list[str] = field(default_factory=list)
    #: Items that are not there, and the notices about them.
    missing: dict[Item, str] = field(default_factory=dict)

    @property
    def files(self) -> int:
        """Number of files that have arrived."""
        return sum(len(destination.files) for destination in self.landings)


def collect(transfer: FileTransfer, items: Sequence[Item]) -> dict[str, Collected]:
    """Copy items from all hosts at once. A failure of one does not stop the others.

    Returns:
        The results by host; notices and failures begin with its name.
    """
    results = {item.host: Collected() for item in items}

    def visit(host: str) -> None:
        result, own = results[host], [item for item in items if item.host == host]
        requested = [{"base": item.base, "path": item.path} for item in own]
        try:
            with transfer.command(host, "send", {"items": requested}) as stream:
                for item in own:
                    result.items.append(item)
                    result.landings.append(DestinationTree(stream, item.into))
                    _take(transfer, stream, item, result)
        except TransportError as error:
            missing = [f"{item.path!r} of {item.task}" for item in own[max(0, len(result.landings) - 1) :]]
            text = f"not fetched: {join_names(missing)} (fetched: {plural(result.files, 'file')})"
            raise TransportError(f"{error}; {text}") from error

    _, failed = transfer.on_all(list(results), visit, "collecting")
    for host, text in failed.items():
        results[host].failures.append(text)
    _note_missing(results)
    landings = [
        destination for result in results.values() for destination in result.landings if destination.files
    ]
    size = sum(entry.size for destination in landings for entry in destination.files)
    folders = {destination.top for destination in landings}
    if len(folders) > 1:  # several tasks have a folder each: the folder that those are in
        folders = {os.path.dirname(path) for path in folders}
    into = f" into {join_names(sorted(map(with_tilde, folders)))}" if folders else ""
    files = plural(sum(result.files for result in results.values()), "file")
    amount = f"{files} ({byte_size(size)}) from {plural(len(results), 'host')}"
    transfer.report(f"collected {amount}{into} in {duration(transfer.seconds)}")
    return results


def _note_missing(results: Mapping[str, Collected]) -> None:
    """Add notices of paths that are not there, unless only tasks of other roles make the path."""
    missing = {item for result in results.values() for item in result.missing}
    roles: dict[str, set[str]] = {}
    for result in results.values():
        for item in result.items:
            if item not in missing:
                roles.setdefault(item.path, set()).add(item.role)
    for result in results.values():
        for item, text in result.missing.items():
            if not item.role or item.role in roles.get(item.path, {item.role}):
                _note(result.notices, item, text)


def _note(texts: list[str], item: Item, text: str) -> None:
    """Add a text about an item, up to a number of them."""
    if len(texts) <= _MAX_NOTES:
        texts.append(f"{item.host}: {text if len(texts) < _MAX_NOTES else 'there is more of this kind'}")


def _take(transfer: FileTransfer, stream: ProgramStream, item: Item, result: Collected) -> None:
    """Receive an item. A file that can't be written here is a failure; the others still arrive.

    Raises:
        TransportError: the host failed, or the disk here is full.
        ProtocolError: the host sent a wrong message.
    """
    destination = result.landings[-1]

    for _ in range(_MAX_MESSAGES):
        message = stream.get(FileNotice, FilesFollow, FileEntry, FilesDone)
        if isinstance(message, FilesDone):
            return
        if isinstance(message, FileNotice):
            text = f"{item.task}: {message.text}"
            if message.missing:
                result.missing[item] = text
            else:
                _note(result.notices, item, text)
        elif isinstance(message, FilesFollow):
            try:
                destination.expect(message.size)
            except OSError as error:
                raise TransportError(f"{item.host}: {item.into}: {error.strerror}") from error
            transfer.add(message.size)
        else:
            try:
                destination.land(message)
            except OSError as error:
                text = f"{sanitize_host_text(message.path)!r} can't be put into {item.into}: {error.strerror}"
                _note(result.failures, item, text)
    raise ProtocolError("too many messages")

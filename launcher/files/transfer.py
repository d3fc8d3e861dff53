"""Copies files to and from many hosts at once: ``--sync``, ``--output-dirs`` and ``--collect``.

A launch makes a `FileTransfer`, which runs a remote command on each host, shows the progress and keeps the
time limit. `sync` copies folders to the hosts before the job, and sends only what a host lacks. `collect`
copies files of tasks from their hosts, even after a job that failed. What a host sends must never be trusted.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from launcher.agent.identity import machine_id
from launcher.agent.transfer import (
    FILE,
    MAX_ENTRIES,
    SYNC_MARK,
    DestinationTree,
    TransferStream,
    digest,
    list_of,
    send_entries,
)
from launcher.backends.connections import ProgramRunner, for_each, with_tilde
from launcher.backends.programs import RemoteProgram
from launcher.common.errors import HostsError, ProtocolError, StartTimeoutError, TransportError
from launcher.common.protocol import FileData, FileEntry, FileNotice, FilesDone, FilesFollow, FilesNeeded
from launcher.common.record import Record
from launcher.common.text import byte_size, duration, join_names, last_line, plural, sanitize_host_text
from launcher.event_loop import EventLoop, await_readable
from launcher.files.requests import Item
from launcher.files.walk import SourceTree, left_out
from launcher.messages import say

T = TypeVar("T")

# A host is given up after so long without a byte. Before that, it may wait for the lock of another launch.
_STALL_SECONDS = 600.0
_POLL_SECONDS = 0.05
# How long to wait at first when a host accepts no more bytes. Each further wait is twice as long. The pipe is
# usually empty again after the first one, but no descriptor becomes readable to show that.
_FIRST_WAIT_SECONDS = 0.001


class FileTransfer:
    """One copy to or from several hosts at once: it runs the remote commands, and counts bytes and time.

    Args:
        commands: Runs programs of ours on the hosts. None if no host takes part.
        fanout: How many hosts are copied to or from at once.
        seconds: The time limit.
        loop: The event loop of the links to the hosts, which runs while hosts are waited for. None if no loop
            must run, or another thread runs it.
        quiet: Whether to tell the user nothing.
    """

    def __init__(
        self,
        commands: ProgramRunner | None,
        fanout: int,
        seconds: float = math.inf,
        loop: EventLoop | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        """Start the time of a copy to or from several hosts."""
        self._commands, self._fanout, self._loop, self._quiet = commands, fanout, loop, quiet
        self._started_at = time.monotonic()
        self._deadline = self._started_at + seconds
        #: Whether all further work is to fail, because `cancel` was called, or Ctrl-C has ended `on_all`.
        self.is_cancelled = False
        #: Guards `size` and `moved`, which the threads of all hosts change.
        self._lock = threading.Lock()
        #: For all hosts together: how many bytes of files are to be copied, and how many were copied.
        self.size = self.moved = 0

    @property
    def seconds(self) -> float:
        """The seconds since this transfer was made."""
        return time.monotonic() - self._started_at

    @property
    def is_late(self) -> bool:
        """Whether the time limit was exceeded."""
        return time.monotonic() > self._deadline

    def add(self, size: int = 0, moved: int = 0) -> None:
        """Count bytes for the progress. Any thread may call this.

        Args:
            size: How many further bytes are to be copied.
            moved: How many further bytes were copied.
        """
        with self._lock:
            self.size += size
            self.moved += moved

    def report(self, text: str) -> None:
        """Tell the user something about the copy, unless the transfer is to be quiet."""
        if not self._quiet:
            say(text)

    def on_all(
        self, hosts: Sequence[str], work: Callable[[str], T], step: str
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Call a function for each host, in a thread for each of them, and wait until all are done.

        Args:
            hosts: The names of the hosts, each once.
            work: Called with the name of a host. It may raise TransportError.
            step: The name of the work, for progress messages.

        Returns:
            The results by host, and the errors of the hosts that failed. The text of an error begins with the
            name of the host.
        """

        def progress() -> str:
            """Return the message about the wait, with the bytes once their number is known."""
            moved = min(self.moved, self.size)  # What fails is written again as a whole.
            return f"{step}, {byte_size(moved)} of {byte_size(self.size)} so far" if self.size else step

        try:
            done, failed = for_each(hosts, work, progress, self._fanout, self._loop, quiet=self._quiet)
        except BaseException:
            # After Ctrl-C, threads may still be copying. Their next `check` fails.
            self.is_cancelled = True
            raise
        return done, {host: f"{host}: {text}" for host, text in failed.items()}

    def cancel(self) -> None:
        """Make all further work of this transfer fail. Any thread may call this."""
        self.is_cancelled = True

    @contextmanager
    def command(self, host: str, entry: str, arguments: object) -> Iterator[ProgramStream]:
        """Return a context in which a remote command of `launcher.agent.files` runs on a host.

        Args:
            host: The name of the host.
            entry: The name of the function.
            arguments: The arguments of the function.

        Yields:
            The stream of messages to and from the remote command.

        Raises:
            TransportError: The host failed or sent nothing for too long, or the time is over. The error
                contains the name of the host.
        """
        self.check(host)
        assert self._commands is not None
        command = self._commands.run(host, f"launcher.agent.files:{entry}", arguments)
        try:
            yield ProgramStream(self, host, command)
        except ProtocolError as error:
            raise TransportError(f"{host}: wrong message from its remote command: {error}") from error
        finally:
            command.close()

    def check(self, host: str) -> None:
        """Check that the work for a host may continue.

        Raises:
            TransportError: The time is over, or the user has cancelled the copy.
        """
        if self.is_cancelled or self.is_late:
            why = "was stopped by the time limit" if self.is_late else "was cancelled"
            raise TransportError(f"{host}: the copy {why}")


class ProgramStream(TransferStream):
    """The messages to and from a remote command on one host.

    All methods raise TransportError if the host failed or sent nothing for too long, or if the time is over,
    and ProtocolError if the host violates the protocol.

    Args:
        transfer: The transfer to which the remote command belongs.
        host: The name of the host.
        command: The remote command.
    """

    def __init__(self, transfer: FileTransfer, host: str, command: RemoteProgram) -> None:
        """Prepare to exchange messages with a remote command that was just started."""
        super().__init__(host)
        self._transfer, self._command = transfer, command
        #: When the host last sent or accepted bytes. After too long a silence it is given up.
        self._moved_at = time.monotonic()

    def moved(self, size: int) -> None:
        """Count bytes of files that were sent or have arrived, for the progress of all hosts."""
        self._transfer.add(moved=size)

    def _write(self, data: bytes) -> None:
        """Send bytes to the host, and wait whenever it accepts no more.

        The host must not send anything meanwhile, except the reason why it failed.

        Args:
            data: The bytes.

        Raises:
            TransportError: The host has failed, or has accepted nothing for too long.
            ProtocolError: The host sends something else.
        """
        view, wait_seconds = memoryview(data), _FIRST_WAIT_SECONDS
        while view:
            try:
                count = self._command.send(view)
            except TransportError:
                # The host may have sent a message that says why it failed. Then this raises a better error.
                self.get()
                raise
            view = view[count:]
            if count:
                wait_seconds = _FIRST_WAIT_SECONDS
                self._moved_at = time.monotonic()
                self._transfer.check(self._host)
                continue
            # The host accepts no bytes at the moment.
            unexpected = self._read(wait_seconds)
            wait_seconds = min(2 * wait_seconds, _POLL_SECONDS)
            if unexpected:
                self._received += self._decoder.feed(unexpected)
                # If the message says why the host failed, this raises that error.
                self.get()
                raise ProtocolError("it sends and does not receive")

    def _read(self, wait_seconds: float = _POLL_SECONDS) -> bytes:
        """Wait for bytes from the host, and return them. If none arrive in time, they are empty."""
        self._transfer.check(self._host)
        if time.monotonic() > self._moved_at + _STALL_SECONDS:
            silent = f"no file data for {_STALL_SECONDS:.0f}s; does another copy keep it busy?"
            raise TransportError(f"{self._host}: {silent}")
        await_readable(self._command, wait_seconds)
        data = self._command.recv(256 * 1024)
        # None means that nothing has arrived, and no bytes that the remote command has ended.
        if data is None:
            return b""
        if not data:
            raise self._end_error()
        self._moved_at = time.monotonic()
        return data

    def _end_error(self) -> TransportError:
        """Return the error about a remote command that has ended too early, with its last line on stderr."""
        # The connection to the host may have failed before the command ran.
        if error := self._command.start_error():
            return error
        # Its output has ended, so its status should be known within this time.
        status = self._command.wait(2.0)
        how = "was killed" if status is None else f"exited with {status}"
        printed = last_line(self._command.stderr())
        last = f"; its last line: {printed}" if printed else ""
        return TransportError(f"{self._host}: the remote command {how}{last}")


# The list of a tree is sent in messages of at most this size.
_MESSAGE_BYTES = 128 * 1024


class OutputFolders(Record):
    """The folders to make on hosts for the results of tasks (``--output-dirs``)."""

    #: The names of the folders, by host.
    names: Mapping[str, Sequence[str]]
    #: Whether all users may write to the folders, because tasks may run as any user.
    for_all_users: bool = False


def sync(
    transfer: FileTransfer,
    hosts: Sequence[str],
    trees: Sequence[SourceTree],
    run_name: str,
    outputs: OutputFolders | None = None,
    optional: Collection[str] = (),
) -> dict[str, Sequence[str]]:
    """Copy folders to all hosts, and make a folder there for the results of each task.

    Args:
        transfer: Runs the remote commands.
        hosts: The names of the hosts.
        trees: The folders to copy.
        run_name: The name of the run.
        outputs: The folders for the results, or None if no task needs one.
        optional: The names of hosts that may fail.

    Returns:
        For each host that did not fail, the paths of the copies, followed by the path of the folder that
        contains the folders for results.

    Raises:
        HostsError: Hosts failed. The error contains a line for each, and nothing of the copy is visible on
            them.
        StartTimeoutError: Hosts failed because the time is over.
    """
    syncing = _Sync(transfer, trees, run_name, outputs or OutputFolders({}))
    done, failed = transfer.on_all(hosts, syncing.copy_to, "syncing")
    # When the time is over, even hosts that may fail have kept the job from starting.
    if failed and transfer.is_late:
        raise StartTimeoutError(failed.values())
    # Some host has failed that must not.
    if failed.keys() - optional:
        raise HostsError(failed.values())
    for text in failed.values():
        transfer.report(f"{text}: no task of a lost host will run there")
    syncing.report(len(done))
    return done


class _Sync:
    """Copies folders to hosts. `copy_to` is called for several hosts at once, in a thread for each.

    Args:
        transfer: Runs the remote commands.
        trees: The folders to copy.
        run_name: The name of the run.
        outputs: The folders for the results of tasks.
    """

    def __init__(
        self, transfer: FileTransfer, trees: Sequence[SourceTree], run_name: str, outputs: OutputFolders
    ) -> None:
        """Prepare what is the same for all hosts: the lists of the folders to copy."""
        self._transfer = transfer
        self._trees = trees
        self._run_name = run_name
        self._outputs = outputs
        #: The paths that could not be copied as they are, each with the reason.
        self._problems: set[tuple[str, str]] = set()
        #: The trees as `launcher.agent.files.receive` expects them.
        self._described: list[dict[str, str | None]] = []
        #: The compressed list of each tree.
        self._lists: list[bytes] = []
        for tree in trees:
            # The key identifies the folder, so that a host finds the copy of an earlier run.
            key = digest(f"{os.uname().nodename}:{machine_id()}:{tree.request.folder}")
            place = {"name": tree.request.name, "remote": tree.request.remote, "key": key}
            self._described.append(place)
            self._lists.append(zlib.compress(list_of(key, tree.entries.values()).encode("ascii")))

    def copy_to(self, host: str) -> Sequence[str]:
        """Copy the folders to a host, and make its folders for results.

        Args:
            host: The name of the host.

        Returns:
            The paths of the copies, followed by the path of the folder that contains the folders for results.

        Raises:
            TransportError: The host failed, or the time is over.
        """
        arguments = {
            "job": self._run_name,
            "trees": self._described,
            "outputs": list(self._outputs.names.get(host, ())),
            "mode": 0o777 if self._outputs.for_all_users else 0o700,
        }
        with self._transfer.command(host, "receive", arguments) as stream:
            for tree, data in zip(self._trees, self._lists, strict=True):
                self._send(stream, tree, data)
            paths: Sequence[str] = stream.get(FilesDone).paths
            if len(paths) != len(self._trees) + 1:
                raise ProtocolError(f"{len(paths)} paths")
            return paths

    def _send(self, stream: ProgramStream, tree: SourceTree, data: bytes) -> None:
        """Send a host the list of a tree, then the entries for which it asks.

        Args:
            stream: The stream to the host.
            tree: The tree.
            data: The compressed list of the tree.
        """
        # The list travels before the entries, in the form of a file of this name.
        stream.put(FileEntry(SYNC_MARK, FILE, size=len(data)))
        for start in range(0, len(data), _MESSAGE_BYTES):
            stream.put(FileData(data[start : start + _MESSAGE_BYTES]))
        # The answer contains one byte for each entry, which is 1 if the host needs it.
        needed = [*itertools.compress(tree.entries.values(), stream.get(FilesNeeded).data)]
        # The progress that the user sees counts only what is copied.
        self._transfer.add(size=sum(entry.size for entry in needed))
        sources = ((f"{tree.request.folder}/{entry.path}", entry) for entry in needed)
        send_entries(stream, sources, self._note_problem)
        stream.put(FilesDone())

    def _note_problem(self, path: str, why: str) -> None:
        """Keep why a file could not be copied as it is, once for all hosts."""
        self._problems.add((path, why))

    def report(self, hosts: int) -> None:
        """Tell the user how much was copied to a number of hosts, and what could not be copied as it is."""
        paths_by_reason: dict[str, list[str]] = {}
        for path, why in sorted(self._problems):
            paths_by_reason.setdefault(why, []).append(path)
        for why, paths in sorted(paths_by_reason.items()):
            self._transfer.report(f"--sync: {join_names(paths)} {why}")
        # Only folders for results were made.
        if not self._trees:
            return
        files, size = sum(tree.files for tree in self._trees), sum(tree.size for tree in self._trees)
        moved = self._transfer.moved
        sent = f"{byte_size(moved)} sent" if moved else "nothing sent"
        folders = f"{plural(files, 'file')} ({byte_size(size)}) to {plural(hosts, 'host')}"
        self._transfer.report(f"synced {folders}, {sent}, in {duration(self._transfer.seconds)}")
        # Whoever syncs an unchanged folder again has seen what is left out before.
        for text in left_out(self._trees) if moved else ():
            self._transfer.report(text)


def finish(transfer: FileTransfer, hosts: Sequence[str], run_name: str) -> dict[str, str]:
    """Remove the folder of a run from all hosts.

    Args:
        transfer: Runs the remote commands.
        hosts: The names of the hosts.
        run_name: The name of the run.

    Returns:
        The errors by host. They are no reason to fail the run.
    """

    def remove_folder(host: str) -> None:
        """Remove the folder of the run from one host, and wait until that is done."""
        with transfer.command(host, "finish", {"job": run_name}) as stream:
            stream.get(FilesDone)

    _, failed = transfer.on_all(hosts, remove_folder, "removing the folders of this run")
    return failed


# The largest number of messages that a host may send about one item.
_MAX_MESSAGES = 3 * MAX_ENTRIES
# The largest number of notices, and of failures, that are kept of one host.
_MAX_NOTES = 20


@dataclass
class Collected:
    """What was collected from one host."""

    #: The items whose copy has started.
    items: list[Item] = field(default_factory=list)
    #: For each of them, the folder to which it is copied.
    destinations: list[DestinationTree] = field(default_factory=list)
    #: Messages about paths that do not exist or cannot be read. They are no failure of the job.
    notices: list[str] = field(default_factory=list)
    #: Messages about existing files that could not be copied.
    failures: list[str] = field(default_factory=list)
    #: The items that do not exist on the host, each with the notice about it.
    missing: dict[Item, str] = field(default_factory=dict)

    @property
    def files(self) -> int:
        """The number of files that have arrived."""
        return sum(len(destination.files) for destination in self.destinations)


def collect(transfer: FileTransfer, items: Sequence[Item]) -> dict[str, Collected]:
    """Copy items from all their hosts at once, and report the amount to the user.

    The failure of a host does not stop the others. It is in the results.

    Args:
        transfer: Runs the remote commands.
        items: What to copy from which host.

    Returns:
        The results by host. The text of each notice and failure begins with the name of the host.
    """
    results = {item.host: Collected() for item in items}
    # `_collect_from` fills the result of each host. What it returns is of no interest.
    _, failed = transfer.on_all(list(results), partial(_collect_from, transfer, items, results), "collecting")
    for host, text in failed.items():
        results[host].failures.append(text)
    _note_missing(results)
    # The folders that something has arrived in.
    size = 0
    folders: set[str] = set()
    for result in results.values():
        for destination in result.destinations:
            if destination.files:
                size += sum(entry.size for entry in destination.files)
                folders.add(destination.top)
    # If several tasks have a folder each, only the folders that contain those are named.
    if len(folders) > 1:
        folders = {os.path.dirname(path) for path in folders}
    into = f" into {join_names(sorted(map(with_tilde, folders)))}" if folders else ""
    files = plural(sum(result.files for result in results.values()), "file")
    amount = f"{files} ({byte_size(size)}) from {plural(len(results), 'host')}"
    transfer.report(f"collected {amount}{into} in {duration(transfer.seconds)}")
    return results


def _collect_from(
    transfer: FileTransfer, items: Sequence[Item], results: Mapping[str, Collected], host: str
) -> None:
    """Copy the items of one host, and record what has arrived in its result.

    Args:
        transfer: Runs the remote commands.
        items: The items of all hosts.
        results: The results of all hosts.
        host: The name of the host.

    Raises:
        TransportError: The host has failed. The error says which items are missing.
    """
    result, host_items = results[host], [item for item in items if item.host == host]
    requested = [{"base": item.base, "path": item.path} for item in host_items]
    try:
        with transfer.command(host, "send", {"items": requested}) as stream:
            for item in host_items:
                result.items.append(item)
                result.destinations.append(DestinationTree(stream, item.into))
                _receive(transfer, stream, item, result)
    except TransportError as error:
        # The last item that has started is not complete.
        complete = max(0, len(result.items) - 1)
        missing = [f"{item.path!r} of {item.task}" for item in host_items[complete:]]
        text = f"not fetched: {join_names(missing)} (fetched: {plural(result.files, 'file')})"
        raise TransportError(f"{error}; {text}") from error


def _note_missing(results: Mapping[str, Collected]) -> None:
    """Add the notices about missing items to the results.

    A path that tasks of all roles were asked for may be made by some roles only. So it is not reported as
    missing if it was found somewhere, but on no task of the same role.
    """
    #: By path, the roles whose tasks have made it.
    roles: dict[str, set[str]] = {}
    for result in results.values():
        for item in result.items:
            if item not in result.missing:
                roles.setdefault(item.path, set()).add(item.role)
    for result in results.values():
        for item, text in result.missing.items():
            # An item has no role if the user has named the tasks.
            was_found_nowhere = item.path not in roles
            if not item.role or was_found_nowhere or item.role in roles[item.path]:
                _note(result.notices, item, text)


def _note(texts: list[str], item: Item, text: str) -> None:
    """Add a message about an item to a list of at most `_MAX_NOTES`, and say once that there are more.

    Args:
        texts: The list, which is changed.
        item: The item, whose host the message names.
        text: The message.
    """
    if len(texts) < _MAX_NOTES:
        texts.append(f"{item.host}: {text}")
    elif len(texts) == _MAX_NOTES:
        texts.append(f"{item.host}: there is more of this kind")


def _receive(transfer: FileTransfer, stream: ProgramStream, item: Item, result: Collected) -> None:
    """Receive an item, which is a path that the user collects from one task, from its host.

    - `FileNotice`: something is missing or was not copied as it is, which the user is told at the end.
    - `FilesFollow`: the size of all files, for which the disk must have room.
    - `FileEntry`: a file, folder or link, which is made here. If that fails, the failure is recorded, and the
      other files still arrive.
    - `FilesDone`: the item is complete.

    Args:
        transfer: Counts the announced bytes.
        stream: The stream from the host.
        item: The item.
        result: The result of the host. The last of its ``destinations`` is the folder for this item.

    Raises:
        TransportError: The host has failed, or the disk of this machine is full.
        ProtocolError: The host has sent a wrong message, or too many.
    """
    destination = result.destinations[-1]
    # The number is limited, because a host that never stops sending must not keep the launcher from ending.
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
                path = sanitize_host_text(message.path)
                _note(result.failures, item, f"{path!r} cannot be put into {item.into}: {error.strerror}")
    raise ProtocolError("too many messages")

"""Copying files as messages: what both ends of ``--sync`` and ``--collect`` share.

`launcher.agent.files` uses it on the hosts, and `launcher.files.transfer` in the launcher. The messages are
those of `launcher.common.protocol.FILE_RECORDS`. A sender must send exactly as many bytes of a file as it has
announced. Neither end may trust the paths of the other. Bytes of a path that are not UTF-8 are lone
surrogates in strings (PEP 383).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections import deque
from contextlib import contextmanager, suppress
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Tuple

from launcher.common.errors import ProtocolError, TransportError
from launcher.common.protocol import FILE_RECORDS, Decoder, FileData, FileEntry, FilesFailed, encode
from launcher.common.text import byte_size

#: The kinds of a `FileEntry`.
FILE = "f"
FOLDER = "d"
LINK = "l"
#: A tree with more entries is not copied as a whole.
MAX_ENTRIES = 500_000
#: The file in a synced folder that lists what was copied there. It is never copied.
SYNC_MARK = ".tf-launcher-sync"
_SYNC_NOTE = "This folder was copied here by launch --sync, which needs this file to do so again."
#: The folder, beside the trees of a run, that contains a folder for each task.
OUTPUTS_FOLDER = ".tf-launcher-output"
#: Why a socket, pipe or device is not copied.
SPECIAL_FILE_REASON = "neither file, folder nor link: left out"
# All files together may have grown by so much between the announcement of their size and the copy.
_MAX_GROWTH_BYTES = 1024**3
# Small messages are collected, and sent together when they have this size.
_BATCH_BYTES = 256 * 1024
_READ_BYTES = 128 * 1024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def entry_of(path: str, status: os.stat_result, source: str) -> FileEntry:
    """Return the entry that describes a file, folder or link in messages and lists.

    The mode of a folder always allows its owner to write to it, so that files can arrive in the copy.

    Args:
        path: The path in the tree.
        status: The status of the file, folder or link.
        source: The path on this machine.

    Raises:
        OSError: It is a socket, pipe or device (`SPECIAL_FILE_REASON`), or a link that cannot be read.
    """
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISREG(status.st_mode):
        return FileEntry(path, kind=FILE, mode=mode, size=status.st_size, mtime_ns=status.st_mtime_ns)
    if stat.S_ISDIR(status.st_mode):
        return FileEntry(path, FOLDER, mode | 0o700)
    if stat.S_ISLNK(status.st_mode):
        return FileEntry(path, LINK, target=os.readlink(source))
    raise OSError(0, SPECIAL_FILE_REASON)


#: Called with the path on this machine of what cannot be sent as it is, and the reason.
OnProblem = Callable[[str, str], None]
#: Called with a path in a tree, and whether that is a folder. Returns whether to leave it out.
IsLeftOut = Callable[[str, bool], bool]


def entries_below(
    top: str, name: str, on_problem: OnProblem, is_left_out: IsLeftOut = lambda path, is_folder: False
) -> Iterator[Tuple[str, FileEntry]]:
    """Yield a file, or a folder and everything in it. Each folder comes before its content.

    Args:
        top: The path of a file or folder, or of a link to one, which is followed. Links below it are not.
        name: The path of ``top`` in the tree. If it is empty, ``top`` itself is not yielded.
        on_problem: Called with the path of what cannot be copied, and the reason.
        is_left_out: Called with a path in the tree, and whether that is a folder. Returns whether to leave it
            out. By default nothing is left out.

    Yields:
        A path on this machine, and the entry for it.
    """
    # Paths that were not visited yet, each here and in the tree.
    waiting, count = deque([(top, name)]), 0
    while waiting:
        source, path = waiting.popleft()
        try:
            # A link that leads nowhere cannot be followed, and is sent as a link.
            is_followed = source == top and os.path.exists(top)
            status = os.stat(source) if is_followed else os.lstat(source)
            # Of a folder that is left out, the content is not visited either.
            if path and is_left_out(path, stat.S_ISDIR(status.st_mode)):
                continue
            entry = entry_of(path, status, source)
            names = sorted(os.listdir(source)) if entry.kind == FOLDER else []
        except FileNotFoundError:
            # It was removed at this moment.
            continue
        except OSError as error:
            on_problem(source, error.strerror or str(error))
            continue
        count += 1
        if count > MAX_ENTRIES:
            on_problem(top, f"holds more than {MAX_ENTRIES} files: the others are left out")
            return
        if path:
            yield source, entry
        prefix = f"{path}/" if path else ""
        # `SYNC_MARK` is the list that an earlier sync has left in its copy. It describes that copy only.
        waiting.extend((f"{source}/{item}", prefix + item) for item in names if item != SYNC_MARK)


def digest(text: str) -> str:
    """Return a short name for a path or another text, which can be the name of a file."""
    return hashlib.blake2b(os.fsencode(text), digest_size=10).hexdigest()


def list_of(key: str, entries: Iterable[FileEntry]) -> str:
    """Return the text of a `SYNC_MARK`, which lists what was copied to a tree.

    Args:
        key: The key that identifies the folder of which the tree is a copy.
        entries: The entries of the tree.
    """
    return json.dumps([_SYNC_NOTE, key, [*entries]])


def parse_list(text: str) -> Tuple[str, Dict[str, FileEntry]]:
    """Return the key of a tree and its entries by path, from the text of its `SYNC_MARK`.

    Args:
        text: What `list_of` has returned, from the other end or from a file that a task may have changed.

    Raises:
        ValueError, TypeError, LookupError, ProtocolError: The text is something else.
    """
    # The first item is a note for people who read the file.
    _, key, rows = json.loads(text)
    entries = {row[0]: FileEntry(*row) for row in rows}
    for entry in entries.values():
        check_entry(entry)
    return key, entries


class TransferStream:
    """Sends and receives messages about files. A subclass defines `_write` and `_read`.

    Args:
        host: The name of the host at the other end. It is empty if the launcher is at the other end.
    """

    def __init__(self, host: str = "") -> None:
        """Prepare to exchange messages about files with another machine."""
        self._host = host
        # A host is not trusted. Without a name, the launcher is at the other end.
        self._decoder = Decoder(from_agent=bool(host), host=host, only=FILE_RECORDS)
        #: Messages that have arrived and that `get` has not returned yet.
        self._received: Deque[Any] = deque()
        #: The bytes of messages that were put and not sent yet.
        self._out = bytearray()

    def _write(self, data: bytes) -> None:
        """Send all these bytes to the other end."""
        raise NotImplementedError

    def _read(self) -> bytes:
        """Wait for bytes from the other end, and return them. They may be empty."""
        raise NotImplementedError

    def moved(self, size: int) -> None:
        """Be told that bytes of files were sent or have arrived. A subclass may count them."""

    def put(self, message: Any) -> None:
        """Send a message, perhaps later together with others. `flush` and `get` send it at once."""
        for buffer in encode(message):
            self._out += buffer
        if len(self._out) >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send all messages that were put and not sent."""
        data, self._out = bytes(self._out), bytearray()
        self._write(data)

    def get(self, *kinds: Any) -> Any:
        """Wait for the next message from the other end, and return it.

        Args:
            kinds: The records that it may be. Without any, it may be each of `FILE_RECORDS`.

        Raises:
            ProtocolError: The other end has sent something else.
            TransportError: The other end has sent `FilesFailed`, because it cannot continue.
        """
        # The other end may wait for these before it sends anything.
        if self._out:
            self.flush()
        while not self._received:
            self._received += self._decoder.feed(self._read())
        message = self._received.popleft()
        if isinstance(message, FilesFailed):
            raise TransportError(f"{self._host}: {message.why}")
        if kinds and not isinstance(message, kinds):
            raise ProtocolError(f"{type(message).__name__} at the wrong moment")
        return message


def send_entries(
    stream: TransferStream, entries: Iterable[Tuple[str, FileEntry]], on_problem: OnProblem
) -> None:
    """Send entries and the content of files. Files that changed while they were read are sent once more.

    Args:
        stream: The stream to the other end.
        entries: The entries to send, each with its path on this machine.
        on_problem: Called with the path of a file that could not be sent as it is, and the reason.
    """
    changed: List[Tuple[str, FileEntry]] = []
    # The first round fills `changed`, so that the second round sends those files again.
    for is_second_round, pairs in ((False, entries), (True, changed)):
        for source, entry in pairs:
            # A folder or a link has no content.
            if entry.kind != FILE:
                stream.put(entry)
                continue
            try:
                has_changed = _send_file(stream, source, entry.path)
            except OSError as error:
                is_missing = isinstance(error, FileNotFoundError)
                on_problem(source, "vanished: left out" if is_missing else error.strerror or str(error))
                continue
            if has_changed and is_second_round:
                on_problem(source, "changed while it was read: the copy may mix old and new content")
            # The other end replaces its copy when the file arrives again.
            elif has_changed:
                changed.append((source, entry))


def _send_file(stream: TransferStream, source: str, path: str) -> bool:
    """Send the entry and the content of a file.

    Exactly as many bytes are sent as the entry announces. If the file has become shorter, or cannot be read,
    zeros are sent for the rest.

    Args:
        stream: The stream to the other end.
        source: The path of the file on this machine.
        path: The path of the file in the tree.

    Returns:
        Whether the file changed while it was read.

    Raises:
        OSError: The file cannot be opened, or it is no longer a file. Then nothing was sent.
    """
    # If a pipe has taken the place of the file, opening it without O_NONBLOCK would block until a
    # process writes to it.
    with open(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        entry = entry_of(path, before, source)
        if entry.kind != FILE:
            raise OSError(0, SPECIAL_FILE_REASON)
        stream.put(entry)
        remaining, is_cut_short = entry.size, False
        while remaining:
            data = b""
            # A disk or a file server may fail. That counts as the end of the file.
            with suppress(OSError):
                data = b"" if is_cut_short else file.read(min(remaining, _READ_BYTES))
            is_cut_short = not data
            # The other end waits for as many bytes as were announced, so zeros take their place.
            data = data or bytes(min(remaining, _READ_BYTES))
            stream.put(FileData(data))
            stream.moved(len(data))
            remaining -= len(data)
        after = os.fstat(file.fileno())
        return is_cut_short or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)


def check_entry(entry: FileEntry) -> None:
    """Check an entry from the other end: it must not lead out of its tree.

    Raises:
        ProtocolError: It does, or it is neither file, folder nor link.
    """
    parts = entry.path.split("/")
    # An empty part comes from an empty or absolute path, or from two slashes in a row.
    if "\0" in entry.path + entry.target or any(part in ("", ".", "..") for part in parts):
        raise ProtocolError(f"{entry.path[:200]!r} is not a path within a tree")
    if entry.kind not in (FILE, FOLDER, LINK) or entry.size < 0 or not 0 <= entry.mode <= 0o777:
        raise ProtocolError(f"{entry.path[:200]!r} is neither file, folder nor link")


class DestinationTree:
    """A folder in which entries arrive, each of them complete or not at all, and none outside of the folder.

    The paths come from another machine. So they are opened folder by folder, and links are not followed.

    Args:
        stream: The stream from the other end.
        top: The path of the folder, which is made when the first entry arrives.
    """

    def __init__(self, stream: TransferStream, top: str) -> None:
        """Prepare a folder in which entries will arrive. It is made with the first one."""
        #: The stream from which the content of files is received, and the path of the folder.
        self._stream, self.top = stream, top
        #: The entries that have arrived, by their paths in the tree.
        self.entries: Dict[str, FileEntry] = {}
        #: How many bytes of files may still arrive. It is 0 until the other end has announced files.
        self._bytes_left = 0

    @property
    def files(self) -> List[FileEntry]:
        """The files among the entries that have arrived."""
        return [entry for entry in self.entries.values() if entry.kind == FILE]

    def expect(self, size: int) -> None:
        """Prepare for files that the other end has announced, and check that the disk has room for them.

        Args:
            size: The bytes of all files together.

        Raises:
            ProtocolError: The other end must not announce files now.
            OSError: The disk is too full.
        """
        # Files must be announced once only, because each announcement allows more bytes.
        if size < 0 or self._bytes_left:
            raise ProtocolError("FilesFollow at the wrong moment")
        if size:
            os.makedirs(self.top, exist_ok=True)
            free = shutil.disk_usage(self.top).free
            if size > free:
                text = f"disk full: {byte_size(size)} are needed, and {byte_size(free)} are free"
                raise OSError(errno.ENOSPC, text, self.top)
        # Files that change while they are sent are sent twice.
        self._bytes_left = 2 * size + _MAX_GROWTH_BYTES

    def land(self, entry: FileEntry) -> None:
        """Make a file, folder or link. The content of a file is received from the stream.

        The copy gets the modification time that was announced. If the file has changed since, it has another
        time by now, so the next sync sends it again.

        Args:
            entry: What to make.

        Raises:
            ProtocolError: The other end has sent something that it must not send.
            OSError: This entry cannot be made here. Later ones can still be received.
        """
        # The other end is not trusted: it must not write outside of the tree, or fill the disk.
        check_entry(entry)
        self._bytes_left -= entry.size
        if self._bytes_left < 0:
            raise ProtocolError("more bytes than announced")
        above, _, name = entry.path.rpartition("/")
        # Only a file is followed by its content.
        pieces = self.pieces(entry) if entry.kind == FILE else iter(())
        try:
            # This makes the folder, or the one that will contain the file or link.
            with self._folder(entry.path if entry.kind == FOLDER else above) as folder:
                if entry.kind == FOLDER:
                    os.fchmod(folder, entry.mode)
                else:
                    self._make(entry, folder, name, pieces)
        except OSError:
            # The next entry arrives after the rest of this content, which is dropped.
            for _ in pieces:
                pass
            raise
        self.entries[entry.path] = entry

    def pieces(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content of a file as it arrives.

        Args:
            entry: The entry, which announces the size of the file.

        Raises:
            ProtocolError: The other end has sent too many bytes, or none.
        """
        remaining = entry.size
        while remaining:
            data = self._stream.get(FileData).data
            if not 0 < len(data) <= remaining:
                raise ProtocolError(f"{len(data)} bytes of {entry.path!r}, which has {remaining} more")
            remaining -= len(data)
            self._stream.moved(len(data))
            yield data

    def _make(self, entry: FileEntry, folder: int, name: str, pieces: Iterable[bytes]) -> None:
        """Make a file or link under a temporary name, then rename it, so that no reader sees a part of it.

        Args:
            entry: The entry of the file or link.
            folder: A descriptor of the folder in which to make it.
            name: The name in this folder.
            pieces: The content of a file.
        """
        temporary = f".tf-launcher-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            if entry.kind == LINK:
                os.symlink(entry.target, temporary, dir_fd=folder)
            else:
                with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.writelines(pieces)
                    file.flush()
                    os.fchmod(file.fileno(), entry.mode)
                    os.utime(file.fileno(), ns=(entry.mtime_ns, entry.mtime_ns))
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            # After the rename there is no such file.
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)

    @contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        """Return a context with a descriptor of a folder in this tree. Missing folders are made.

        The folders of the path are opened one after another, each from the descriptor of the one above, so
        that no link that another process puts there can lead out of the tree.

        Args:
            path: The path of the folder in the tree. It is empty for the top.

        Raises:
            OSError: A part of the path is a link, or something else than a folder.
        """
        os.makedirs(self.top, exist_ok=True)
        fd = os.open(self.top, _FOLDER_FLAGS)
        try:
            for part in filter(None, path.split("/")):
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
                above, fd = fd, os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
                os.close(above)
            yield fd
        finally:
            os.close(fd)

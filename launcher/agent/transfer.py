"""Copying files as messages: what both ends of ``--sync`` and ``--collect`` share.

The messages are those of `launcher.common.protocol.FILE_RECORDS`. Exactly the announced size of a file is
sent. Paths are strings in which bytes that are not UTF-8 are lone surrogates (PEP 383).
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

FILE = "f"
FOLDER = "d"
LINK = "l"
#: Entries that a tree may have.
MAX_ENTRIES = 500_000
#: The file in a synced folder that lists what was copied there. It is never copied.
SYNC_MARK = ".tf-launcher-sync"
_SYNC_NOTE = "This folder was copied here by launch --sync, which needs this file to do so again."
#: The folder beside the trees of a run where its tasks have a folder each.
OUTPUTS_FOLDER = ".tf-launcher-output"
#: Why a socket, pipe or device is not copied.
SPECIAL_FILE_REASON = "neither file, folder nor link: left out"
#: Bytes that files may have grown since they were announced, all together.
_MAX_GROWTH_BYTES = 1024**3
#: Bytes of messages that are sent together, and of a file that are read at once.
_BATCH_BYTES = 256 * 1024
_READ_BYTES = 128 * 1024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def entry_of(path: str, status: os.stat_result, source: str) -> FileEntry:
    """Return the entry of a file, folder or link. A folder's owner may always write to it.

    Args:
        path: Its path in the tree.
        status, source: Of the file; where it is.

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


def entries_below(
    top: str,
    name: str,
    problem: Callable[[str, str], None],
    left_out: Callable[[str, bool], bool] = lambda path, is_folder: False,
) -> Iterator[Tuple[str, FileEntry]]:
    """Yield what is at ``top`` and below, folders before their content: where each is, and its entry.

    Args:
        top: A file or folder, or a link to one; links below it are entries of their own.
        name: Its path in the tree; empty: only its content is meant.
        problem: Called with the place of what cannot be copied, and the reason.
        left_out: Called with the path in the tree, and whether it is a folder.
    """
    ahead, count = deque([(top, name)]), 0
    while ahead:
        source, path = ahead.popleft()
        try:
            follow = source == top and os.path.exists(top)
            status = os.stat(source) if follow else os.lstat(source)
            if path and left_out(path, stat.S_ISDIR(status.st_mode)):
                continue
            entry = entry_of(path, status, source)
            names = sorted(os.listdir(source)) if entry.kind == FOLDER else []
        except FileNotFoundError:  # removed in this moment
            continue
        except OSError as error:
            problem(source, error.strerror or str(error))
            continue
        count += 1
        if count > MAX_ENTRIES:
            problem(top, f"holds more than {MAX_ENTRIES} files: the others are left out")
            return
        if path:
            yield source, entry
        prefix = f"{path}/" if path else ""
        ahead.extend((f"{source}/{item}", prefix + item) for item in names if item != SYNC_MARK)


def digest(text: str) -> str:
    """Return a file name for a path or another text."""
    return hashlib.blake2b(os.fsencode(text), digest_size=10).hexdigest()


def list_of(key: str, entries: Iterable[FileEntry]) -> str:
    """Return the text of a `SYNC_MARK`.

    Args:
        key: Of the folder that the tree is a copy of.
        entries: Of the tree.
    """
    return json.dumps([_SYNC_NOTE, key, [*entries]])


def parse_list(text: str) -> Tuple[str, Dict[str, FileEntry]]:
    """Return the key and the entries in the text of a `SYNC_MARK`.

    Raises:
        ValueError, TypeError, LookupError, ProtocolError: It is something else.
    """
    _, key, rows = json.loads(text)
    entries = {row[0]: FileEntry(*row) for row in rows}
    for entry in entries.values():
        check_entry(entry)
    return key, entries


class TransferStream:
    """Sends and receives messages about files. A subclass has `_write` and `_read`.

    Args:
        host: Name of the host at the other end; empty: the launcher is there.
    """

    def __init__(self, host: str = "") -> None:
        self._host = host
        self._decoder = Decoder(bool(host), host, only=FILE_RECORDS)
        self._received: Deque[Any] = deque()
        self._out = bytearray()

    def _write(self, data: bytes) -> None:
        """Send all of it."""
        raise NotImplementedError

    def _read(self) -> bytes:
        """Wait for more bytes; may return none."""
        raise NotImplementedError

    def moved(self, size: int) -> None:
        """So many bytes of files were sent, or have arrived."""

    def put(self, message: Any) -> None:
        """Send a message, together with later ones; `flush` and `get` send it now."""
        for buffer in encode(message):
            self._out += buffer
        if len(self._out) >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was put."""
        data, self._out = bytes(self._out), bytearray()
        self._write(data)

    def get(self, *kinds: Any) -> Any:
        """Return the next message.

        Args:
            kinds: The records that it may be; without one: any.

        Raises:
            ProtocolError: The other end sent something else.
            TransportError: The command there cannot go on.
        """
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
    stream: TransferStream,
    entries: Iterable[Tuple[str, FileEntry]],
    problem: Callable[[str, str], None],
) -> None:
    """Send entries, each with the path it is read from. Files that changed meanwhile are sent once more.

    Args:
        stream: To the other end.
        entries: Each with the path of its file here.
        problem: Called with the path and the reason where a file could not be sent as it is.
    """
    changed: List[Tuple[str, FileEntry]] = []
    for again, pairs in ((False, entries), (True, changed)):
        for source, entry in pairs:
            if entry.kind != FILE:
                stream.put(entry)
                continue
            try:
                torn = _send_file(stream, source, entry.path)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                problem(source, "vanished: left out" if missing else error.strerror or str(error))
                continue
            if torn and again:
                problem(source, "changed while it was read: the copy may mix old and new content")
            elif torn:
                changed.append((source, entry))


def _send_file(stream: TransferStream, source: str, path: str) -> bool:
    """Send exactly as many bytes as announced; zeros stand for what is missing.

    Returns:
        Whether the file changed meanwhile.

    Raises:
        OSError: It cannot be opened, or is no longer a file.
    """
    with open(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        entry = entry_of(path, before, source)
        if entry.kind != FILE:
            raise OSError(0, SPECIAL_FILE_REASON)
        stream.put(entry)
        left, torn = entry.size, False
        while left:
            data = b""
            with suppress(OSError):
                data = b"" if torn else file.read(min(left, _READ_BYTES))
            torn = not data
            data = data or bytes(min(left, _READ_BYTES))
            stream.put(FileData(data))
            stream.moved(len(data))
            left -= len(data)
        after = os.fstat(file.fileno())
        return torn or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)


def check_entry(entry: FileEntry) -> None:
    """Check that an entry stays within its tree.

    Raises:
        ProtocolError: It does not, or is of no kind that can be made.
    """
    parts = entry.path.split("/")
    if "\0" in entry.path + entry.target or any(part in ("", ".", "..") for part in parts):
        raise ProtocolError(f"{entry.path[:200]!r} is not a path within a tree")
    if entry.kind not in (FILE, FOLDER, LINK) or entry.size < 0 or not 0 <= entry.mode <= 0o777:
        raise ProtocolError(f"{entry.path[:200]!r} is neither file, folder nor link")


class DestinationTree:
    """A folder in which entries arrive: each complete or not at all, none outside it.

    Paths come from another machine. They are walked folder by folder without following links.

    Args:
        stream: From the other end.
        top: The folder; made when the first entry arrives.
    """

    def __init__(self, stream: TransferStream, top: str) -> None:
        self._stream, self.top = stream, top
        #: What has arrived, by path.
        self.entries: Dict[str, FileEntry] = {}
        #: Bytes that may still come.
        self._size = 0

    @property
    def files(self) -> List[FileEntry]:
        """Those of the entries that are files."""
        return [entry for entry in self.entries.values() if entry.kind == FILE]

    def expect(self, size: int) -> None:
        """Files of so many bytes follow.

        Raises:
            ProtocolError: The other end may not announce this.
            OSError: The disk is too full for it.
        """
        if size < 0 or self._size:
            raise ProtocolError("FilesFollow at the wrong moment")
        if size:
            os.makedirs(self.top, exist_ok=True)
            free = shutil.disk_usage(self.top).free
            if size > free:
                text = f"disk full: {byte_size(size)} are needed, and {byte_size(free)} are free"
                raise OSError(errno.ENOSPC, text, self.top)
        self._size = 2 * size + _MAX_GROWTH_BYTES

    def land(self, entry: FileEntry) -> None:
        """Make an entry; the bytes of a file are read from the stream.

        A file that changed while it was read has another time here, so that the next sync sends it again.

        Raises:
            ProtocolError: The other end sent something else.
            OSError: This entry cannot be made; later ones may come.
        """
        check_entry(entry)
        self._size -= entry.size
        if self._size < 0:
            raise ProtocolError("more bytes than announced")
        above, _, name = entry.path.rpartition("/")
        pieces = self.pieces(entry) if entry.kind == FILE else iter(())
        try:
            with self._folder(entry.path if entry.kind == FOLDER else above) as folder:
                if entry.kind == FOLDER:
                    os.fchmod(folder, entry.mode)
                else:
                    self._make(entry, folder, name, pieces)
        except OSError:
            for _ in pieces:  # the next entry comes after them
                pass
            raise
        self.entries[entry.path] = entry

    def pieces(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content of a file as it arrives."""
        left = entry.size
        while left:
            data = self._stream.get(FileData).data
            if not 0 < len(data) <= left:
                raise ProtocolError(f"{len(data)} bytes of {entry.path!r}, which has {left} more")
            left -= len(data)
            self._stream.moved(len(data))
            yield data

    def _make(self, entry: FileEntry, folder: int, name: str, pieces: Iterable[bytes]) -> None:
        """Make a file or link under another name, then give it its own."""
        new = f".tf-launcher-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            if entry.kind == LINK:
                os.symlink(entry.target, new, dir_fd=folder)
            else:
                with open(os.open(new, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.writelines(pieces)
                    file.flush()
                    os.fchmod(file.fileno(), entry.mode)
                    os.utime(file.fileno(), ns=(entry.mtime_ns, entry.mtime_ns))
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(OSError):
                os.unlink(new, dir_fd=folder)

    @contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        """A descriptor of a folder below the top, which is made where it is missing."""
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

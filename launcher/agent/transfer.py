"""Copying files as messages: what both ends of ``--sync`` and ``--collect`` share.

The messages are those of `launcher.protocol.FILES`. Exactly the announced size of a file is sent. Paths are
strings in which bytes that are not UTF-8 are lone surrogates (PEP 383).
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Tuple

from launcher.errors import ProtocolError
from launcher.protocol import FILES, Decoder, FileData, FileEnd, FileEntry, encode

FILE, FOLDER, LINK = "f", "d", "l"
#: Entries that a tree may have.
MAX_ENTRIES = 500_000
#: The file in a synced folder that lists what was copied there.
SYNC_MARK = ".tf-launcher-sync"
#: The folder beside the trees of a run where its tasks have a folder each.
OUTPUTS = ".tf-launcher-output"
#: Bytes of messages that are sent together, and of a file that are read at once.
_BATCH, _PIECE = 256 * 1024, 128 * 1024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def entry_at(source: str, path: str, status: os.stat_result) -> Optional[FileEntry]:
    """The entry for what is at ``source``; ``None`` for a socket, pipe or device."""
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISREG(status.st_mode):
        return FileEntry(path, FILE, mode, status.st_size, status.st_mtime_ns)
    if stat.S_ISDIR(status.st_mode):
        return FileEntry(path, FOLDER, mode)
    if stat.S_ISLNK(status.st_mode):
        return FileEntry(path, LINK, target=os.readlink(source))
    return None


def check_entry(entry: FileEntry) -> None:
    """Pass an entry that stays within its tree.

    Raises:
        ProtocolError: it does not, or is of no kind that can be made.
    """
    parts = entry.path.split("/")
    if "\0" in entry.path + entry.target or any(part in ("", ".", "..") for part in parts):
        raise ProtocolError(f"{entry.path[:200]!r} is not a path within a tree")
    if entry.kind not in (FILE, FOLDER, LINK) or entry.size < 0 or not 0 <= entry.mode <= 0o777:
        raise ProtocolError(f"{entry.path[:200]!r} is neither file, folder nor link")


class FileStream:
    """Sends and receives messages about files. A subclass has `_write`, which sends all, and `_read`.

    Args:
        host: name of the host at the other end; empty: the launcher is there.
    """

    def __init__(self, host: str = "") -> None:
        self._decoder = Decoder(bool(host), host, only=FILES)
        self._received: Deque[Any] = deque()
        self._out = bytearray()

    def _write(self, data: bytes) -> None:
        """Send all of it."""
        raise NotImplementedError

    def _read(self) -> bytes:
        """Wait for more bytes."""
        raise NotImplementedError

    def put(self, message: Any) -> None:
        """Send a message, together with later ones; `flush` and `get` send it now."""
        for buffer in encode(message):
            self._out += buffer
        if len(self._out) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Send what was put."""
        data, self._out = bytes(self._out), bytearray()
        self._write(data)

    def get(self) -> Any:
        """The next message.

        Raises:
            ProtocolError: the other end sent something else.
        """
        if self._out:
            self.flush()
        while not self._received:
            self._received += self._decoder.feed(self._read())
        return self._received.popleft()


def send_entries(
    stream: FileStream,
    entries: Iterable[Tuple[str, FileEntry]],
    problem: Callable[[str, str], None],
    sent: Callable[[int], None] = lambda size: None,
) -> None:
    """Send entries, each with the path it is read from. Files that changed meanwhile are sent once more.

    Args:
        stream, entries: what goes where.
        problem: called with the path and the reason where a file could not be sent as it is.
        sent: called with the number of bytes of files that were sent.
    """
    changed: List[Tuple[str, FileEntry]] = []
    for again, pairs in ((False, entries), (True, changed)):
        for source, entry in pairs:
            if entry.kind != FILE:
                stream.put(entry)
                continue
            try:
                torn = _send_file(stream, source, entry.path, sent)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                problem(source, "vanished: left out" if missing else error.strerror or str(error))
                continue
            if torn and again:
                problem(source, "changed while it was read: the copy may mix old and new content")
            elif torn:
                changed.append((source, entry))


def _send_file(stream: FileStream, source: str, path: str, sent: Callable[[int], None]) -> bool:
    """Send exactly as many bytes as announced; zeros stand for what is missing.

    Returns:
        Whether the file changed meanwhile.

    Raises:
        OSError: it can't be opened.
    """
    fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(fd)
        entry = entry_at(source, path, before)
        if entry is None or entry.kind != FILE:
            raise OSError(0, "is not a file any more: left out")
        stream.put(entry)
        left, torn = entry.size, False
        while left:
            data = b""
            with suppress(OSError):
                data = b"" if torn else os.read(fd, min(left, _PIECE))
            torn = not data
            data = data or bytes(min(left, _PIECE))
            stream.put(FileData(data))
            sent(len(data))
            left -= len(data)
        after = os.fstat(fd)
        torn = torn or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)
        stream.put(FileEnd(torn))
        return torn
    finally:
        os.close(fd)


class Landing:
    """A folder in which entries arrive: each complete or not at all, none outside it.

    Paths come from another machine. They are walked folder by folder without following links.

    Args:
        top: its path; made when the first entry arrives.
    """

    def __init__(self, top: str) -> None:
        self._top = top
        #: Modes of the folders that arrived; `finish` sets them.
        self.folders: Dict[str, int] = {}
        #: The file that is arriving, and its bytes to come.
        self._file: Optional[FileEntry] = None
        self._left = 0
        #: Its descriptor (-1: it is skipped), temporary name and folder.
        self._fd, self._new, self._folder = -1, "", -1

    def take(self, message: Any) -> Optional[FileEntry]:
        """Take an entry, bytes of a file, or its end.

        Returns:
            The file that this message completes, but ``None`` if it is skipped or torn.

        Raises:
            ProtocolError: the other end sent something else.
            OSError: this entry can't be made; later ones may come.
        """
        try:
            if isinstance(message, FileEntry):
                self._begin(message)
            elif isinstance(message, FileData):
                self._write(message.data)
            elif isinstance(message, FileEnd):
                return self._end(message.torn)
            else:
                raise ProtocolError(f"{type(message).__name__} at the wrong moment")
        except OSError:
            self._drop()
            raise
        return None

    def _begin(self, entry: FileEntry) -> None:
        check_entry(entry)
        if self._file is not None:
            raise ProtocolError(f"{entry.path!r} begins before {self._file.path!r} has ended")
        if entry.kind == FOLDER:
            self.folders[entry.path] = entry.mode
            os.close(self._open(entry.path))
            return
        if entry.kind == FILE:
            self._file, self._left = entry, entry.size
        above, _, name = entry.path.rpartition("/")
        folder, new = self._open(above), f".tf-launcher-{os.urandom(8).hex()}"
        try:
            if entry.kind == FILE:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._fd = os.open(new, flags, 0o600, dir_fd=folder)
                self._new, self._folder, folder = new, folder, -1
                return
            os.symlink(entry.target, new, dir_fd=folder)
            try:
                os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(new, dir_fd=folder)
                raise
        finally:
            if folder >= 0:
                os.close(folder)

    def _write(self, data: bytes) -> None:
        if self._file is None or len(data) > self._left:
            raise ProtocolError("more bytes than announced")
        self._left -= len(data)
        view = memoryview(data)
        while view and self._fd >= 0:
            view = view[os.write(self._fd, view) :]

    def _end(self, torn: bool) -> Optional[FileEntry]:
        """Give the file its name. A torn one gets another time, so that the next sync sends it again."""
        if self._file is None or self._left:
            raise ProtocolError("fewer bytes than announced")
        entry, self._file = self._file, None
        if self._fd < 0:
            return None
        os.fchmod(self._fd, entry.mode)
        os.utime(self._fd, ns=(entry.mtime_ns, entry.mtime_ns - torn))
        name = entry.path.rpartition("/")[2]
        os.rename(self._new, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._drop()
        return None if torn else entry

    def _drop(self) -> None:
        """Close the file that is arriving, and remove it if it does not have its name yet."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self._new, dir_fd=self._folder)
            os.close(self._fd)
            os.close(self._folder)
            self._fd = -1

    def _open(self, path: str) -> int:
        """A descriptor of a folder below the top, which is made where it is missing."""
        os.makedirs(self._top, exist_ok=True)
        fd = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in filter(None, path.split("/")):
            above = fd
            try:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=above)
                fd = os.open(part, _FOLDER_FLAGS, dir_fd=above)
            finally:
                os.close(above)
        return fd

    def finish(self) -> None:
        """Set the modes of the folders that arrived, the deepest first."""
        for path, mode in sorted(self.folders.items(), reverse=True):
            fd = self._open(path)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Remove what is half here."""
        self._drop()
        self._file = None

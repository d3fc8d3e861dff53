"""Copying files as messages: what both ends of ``--sync`` and ``--collect`` share.

The messages are those of `launcher.protocol.FILES`, compressed several at a time where that helps. Exactly
the announced size of a file is sent. Paths are strings in which bytes that are not UTF-8 are lone surrogates
(PEP 383).
"""

from __future__ import annotations

import os
import stat
import zlib
from collections import deque
from typing import Any, Callable, Deque, Iterable, List, Optional, Tuple

from launcher.errors import ProtocolError
from launcher.protocol import FILES, Decoder, FileData, FileEnd, FileEntry, FilesAlive, FilesPacked, encode

FILE, FOLDER, LINK = "f", "d", "l"
#: Entries that a tree may have.
MAX_ENTRIES = 500_000
#: The file in a synced folder that lists what was brought there.
SYNC_MARK = ".tf-launcher-sync"
#: The folder beside the trees of a run where its tasks have a folder each.
OUTPUTS = ".tf-launcher-output"
#: Bytes of messages that are sent together, and of a file that are read at once.
_BATCH, _PIECE = 256 * 1024, 128 * 1024
#: Batches that are sent as they are after one that did not get smaller.
_AS_THEY_ARE = 8
#: Bytes of unpacked messages in one `FilesPacked`, at most.
_MOST_UNPACKED = 512 * 1024
_PACKABLE = tuple(record for record in FILES if record is not FilesPacked)
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
    """Sends and receives messages about files. A subclass has `_write`, which sends all, and `_wait`.

    Args:
        host: name of the host at the other end; empty: the launcher is there.
    """

    def __init__(self, host: str = "") -> None:
        self._host = host
        self._decoder = Decoder(bool(host), host, only=FILES)
        self._received: Deque[Any] = deque()
        self._out = bytearray()
        self._as_they_are = 0

    def _write(self, data: bytes) -> None:
        """Send all of it."""
        raise NotImplementedError

    def _wait(self) -> None:
        """Wait for more bytes, and add the messages in them to ``_received``."""
        raise NotImplementedError

    def put(self, message: Any) -> None:
        """Send a message, together with later ones; `flush` and `get` send it now."""
        for buffer in encode(message):
            self._out += buffer
        if len(self._out) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Send what was put."""
        data = bytes(self._out)
        self._out.clear()
        if self._as_they_are:
            self._as_they_are -= 1
        elif len(data) > 200:
            packed = zlib.compress(data, 1)
            if len(packed) < len(data) * 0.9:
                data = b"".join(encode(FilesPacked(packed)))
            else:
                self._as_they_are = _AS_THEY_ARE
        self._write(data)

    def get(self) -> Any:
        """The next message, but signs of life.

        Raises:
            ProtocolError: the other end sent something else.
        """
        if self._out:
            self.flush()
        while True:
            message = self._next()
            if message is None:
                self._wait()
            elif not isinstance(message, FilesAlive):
                return message

    def _next(self) -> Any:
        """The next message of those received; ``None``: there is none."""
        if not self._received:
            return None
        message = self._received.popleft()
        if not isinstance(message, FilesPacked):
            return message
        self._received.extendleft(reversed(_unpack(message.data, self._host)))
        return self._next()


def _unpack(data: bytes, host: str) -> List[Any]:
    unpacker = zlib.decompressobj()
    try:
        whole = unpacker.decompress(data, _MOST_UNPACKED)
    except zlib.error as error:
        raise ProtocolError(f"packed messages that can't be unpacked: {error}") from error
    if not unpacker.eof:
        raise ProtocolError("packed messages that are cut, or too many")
    return Decoder(bool(host), host, only=_PACKABLE).feed(whole)


def send_entries(
    stream: FileStream,
    entries: Iterable[Tuple[str, FileEntry]],
    problem: Callable[[str, str], None],
    sent: Callable[[int], None],
) -> None:
    """Send entries, each with the path it is read from. Files that changed meanwhile are sent once more.

    Args:
        stream, entries: what goes where.
        problem: called with the path and the reason where a file could not be sent as it is.
        sent: called with the number of bytes of files that were sent.
    """
    torn: List[Tuple[str, FileEntry]] = []
    for again, pairs in ((False, entries), (True, torn)):
        for source, entry in pairs:
            if entry.kind != FILE:
                stream.put(entry)
                continue
            try:
                stable = _send_file(stream, source, entry.path, sent)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                problem(source, "vanished: left out" if missing else error.strerror or str(error))
                continue
            if not stable and again:
                problem(source, "changed while it was read: the copy may mix old and new content")
            elif not stable:
                torn.append((source, entry))


def _send_file(stream: FileStream, source: str, path: str, sent: Callable[[int], None]) -> bool:
    """Send exactly as many bytes as announced; zeros stand for what is missing.

    Returns:
        Whether the file stayed the same meanwhile.

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
            try:
                data = b"" if torn else os.read(fd, min(left, _PIECE))
            except OSError:
                data = b""
            torn = torn or not data
            data = data or bytes(min(left, _PIECE))
            stream.put(FileData(data))
            sent(len(data))
            left -= len(data)
        after = os.fstat(fd)
        torn = torn or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)
        stream.put(FileEnd(torn))
        return not torn
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
        self._top_fd = -1
        #: The folder used last: most entries arrive in the same one as the entry before.
        self._last = ("", -1)
        #: The file that is arriving, its bytes to come, its descriptor (-1: skipped) and temporary name.
        self._file: Optional[FileEntry] = None
        self._left = 0
        self._fd, self._new = -1, ""

    def put(self, entry: FileEntry) -> None:
        """Make a folder (`finish` sets its mode) or a link, or begin a file.

        Raises:
            OSError: it can't be made.
        """
        if self._file is not None:
            raise ProtocolError(f"{entry.path!r} begins before {self._file.path!r} has ended")
        if entry.kind == FILE:
            self._file, self._left = entry, entry.size
        elif entry.kind == FOLDER:
            self._folder(entry.path)
            return
        folder, name, new = self._place(entry.path)
        if entry.kind == LINK:
            os.symlink(entry.target, new, dir_fd=folder)
            self._rename(folder, new, name)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd, self._new = os.open(new, flags, 0o600, dir_fd=folder), new

    def write(self, data: bytes) -> None:
        """Add bytes to the file that is arriving.

        Raises:
            OSError: they can't be written.
        """
        if self._file is None or len(data) > self._left:
            raise ProtocolError("more bytes than announced")
        self._left -= len(data)
        view = memoryview(data)
        while view and self._fd >= 0:
            view = view[os.write(self._fd, view) :]

    def end(self) -> bool:
        """The file is complete: give it its name, unless it is skipped.

        Returns:
            Whether it is there.

        Raises:
            OSError: it can't be renamed.
        """
        if self._file is None or self._left:
            raise ProtocolError("fewer bytes than announced")
        entry, self._file = self._file, None
        if self._fd < 0:
            return False
        try:
            os.fchmod(self._fd, entry.mode)
            os.utime(self._fd, ns=(entry.mtime_ns, entry.mtime_ns))
            folder, name, _ = self._place(entry.path)
            self._rename(folder, self._new, name)
            return True
        finally:
            os.close(self._fd)
            self._fd = -1

    def skip(self) -> None:
        """The file that is arriving can't be written: remove it, and pass over the bytes that still come."""
        if self._file is None or self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        try:
            os.unlink(self._new, dir_fd=self._place(self._file.path)[0])
        except OSError:  # its folder is gone
            return

    def finish(self, entries: Iterable[FileEntry]) -> None:
        """Set the modes of the folders among these entries, the deepest first."""
        for entry in sorted((one for one in entries if one.kind == FOLDER), reverse=True):
            os.fchmod(self._folder(entry.path), entry.mode)

    def _place(self, path: str) -> Tuple[int, str, str]:
        """The descriptor of an entry's folder, the entry's name, and a temporary name."""
        folder, _, name = path.rpartition("/")
        return self._folder(folder), name, f".tf-launcher-{os.urandom(8).hex()}"

    def _rename(self, folder: int, new: str, name: str) -> None:
        try:
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(new, dir_fd=folder)
            raise

    def _folder(self, path: str) -> int:
        """The descriptor of a folder below the top, made where it is missing; valid until the next call."""
        if self._top_fd < 0:
            os.makedirs(self._top, exist_ok=True)
            self._top_fd = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not path:
            return self._top_fd
        if self._last[0] == path:
            return self._last[1]
        fd = os.dup(self._top_fd)
        try:
            for part in path.split("/"):
                above, fd = fd, _open_folder(fd, part)
                os.close(above)
        except OSError:
            os.close(fd)
            raise
        self._forget()
        self._last = (path, fd)
        return fd

    def _forget(self) -> None:
        if self._last[1] >= 0:
            os.close(self._last[1])
        self._last = ("", -1)

    def close(self) -> None:
        """Remove what is half here, and let go of the folder."""
        self.skip()
        self._file = None
        self._forget()
        if self._top_fd >= 0:
            os.close(self._top_fd)
            self._top_fd = -1


def _open_folder(above: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=above)
    except FileNotFoundError:
        os.mkdir(name, 0o777, dir_fd=above)
        return os.open(name, _FOLDER_FLAGS, dir_fd=above)

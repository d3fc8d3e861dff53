"""A bounded copy of the files of a run, renewed while the run goes on, for viewers on another machine.

`send_files` runs on the machine of the launcher, and writes to a stream what is new again and again. The
other end, `receive_files`, believes nothing of it. A message is a line such as ``append 120 events.jsonl``,
followed by that number of bytes. An empty line ends a round.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from launcher.common.errors import ProtocolError
from launcher.common.trusted_io import open_regular
from launcher.job import RunPaths
from launcher.runs.run import Run, RunState

#: Seconds between two rounds.
_ROUND_SECONDS = 1.0
#: How much of the end of a log is sent first, and of the end of another file.
_LOG_BYTES = 64 * 1024
_FILE_BYTES = 32 << 20
#: A copy that has become this many times as long is replaced by the end of the file.
_MAX_GROWTH = 4
#: All copies together may have at most this size.
_MAX_BYTES = 1 << 30
#: The files that are copied. The report is not: at the end of the run the queue fetches all files.
_NAME_PATTERN = r"plan\.json|(?:events|samples)\.jsonl|logs/[\w-][\w.-]*\.log"
_HEADER_PATTERN = rf"(?P<how>append|replace) (?P<size>\d{{1,8}}) (?P<name>{_NAME_PATTERN})\n"
_MAX_HEADER_BYTES = 1024


def send_files(run: Run, stream: IO[bytes]) -> None:
    """Write the files of a run, and then what is new in them, to a stream until the run has ended.

    Raises:
        BrokenPipeError: The reader has gone.
    """
    # What `_send_new` has returned last for each file, by its name.
    sent = defaultdict[str, tuple[int, int, int]](lambda: (0, 0, 0))
    while True:
        # After a round that began with the run over, nothing is new any more.
        is_over = run.state not in (RunState.RUNNING, RunState.ELSEWHERE)
        for name in _names(run.paths):
            sent[name] = _send_new(stream, run.paths.root, name, sent[name])
        stream.write(b"\n")  # Even if nothing is new, so that it is noticed that the reader has gone.
        stream.flush()
        if is_over:
            return
        time.sleep(_ROUND_SECONDS)


def _names(paths: RunPaths) -> list[str]:
    """Return the names of the files that are copied."""
    names = os.listdir(paths.root)
    with suppress(OSError):
        names += [f"logs/{name}" for name in os.listdir(paths.logs)]
    return [name for name in names if re.fullmatch(_NAME_PATTERN, name, re.ASCII)]


def _send_new(stream: IO[bytes], root: str, name: str, sent: tuple[int, int, int]) -> tuple[int, int, int]:
    """Write what is new in a file, or its end if that is too much or if it is another file.

    The copy of a file that grows for long must not grow with it: when the copy has several times the size of
    a first part, it is replaced by the end of the file, too.

    Args:
        stream: The stream.
        root: The folder of the run.
        name: The name of the file in that folder.
        sent: The inode of the file that was sent last, and where the part that was sent begins and ends.

    Returns:
        The same three numbers after this call, for the next one.

    Raises:
        BrokenPipeError: The reader has gone.
    """
    inode, begin, end = sent
    max_bytes = _LOG_BYTES if name.startswith("logs/") else _FILE_BYTES
    try:
        with open_regular(f"{root}/{name}", links=False) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            if (status.st_ino, size) == (inode, end):
                return sent
            is_more = status.st_ino == inode and end <= size <= begin + _MAX_GROWTH * max_bytes
            if not is_more or size - end > max_bytes:
                is_more, begin, end = False, max(0, size - max_bytes), max(0, size - max_bytes)
            file.seek(end)
            data = file.read(size - end)
    except OSError:  # It is missing, at least now.
        return sent
    stream.write(f"{'append' if is_more else 'replace'} {len(data)} {name}\n".encode() + data)
    return status.st_ino, begin, end + len(data)


def receive_files(stream: IO[bytes], root: str) -> Iterator[None]:
    """Write the files that come from a stream, and yield after each round, until the stream ends.

    Args:
        stream: The stream.
        root: The folder for the copies, which is private and has no logs yet.

    Raises:
        ProtocolError: A message is wrong, or the files are too large.
        OSError: A file cannot be written.
    """
    os.mkdir(f"{root}/logs")
    sizes = Counter[str]()
    while line := stream.readline(_MAX_HEADER_BYTES):
        if line == b"\n":  # A round has ended.
            yield
            continue
        header = re.fullmatch(_HEADER_PATTERN.encode(), line)
        if header is None:
            raise ProtocolError(f"a message about a file is wrong: {line[:100]!r}")
        name, size, is_more = header["name"].decode(), int(header["size"]), header["how"] == b"append"
        data = stream.read(size)
        if len(data) < size:  # The stream has ended within the file.
            return
        sizes[name] = size + (sizes[name] if is_more else 0)
        if sum(sizes.values()) > _MAX_BYTES:
            raise ProtocolError(f"the files are larger than {_MAX_BYTES >> 20} MiB")
        # Readers see the old file or the new one.
        path = f"{root}/{name}"
        with open(path if is_more else f"{path}.new", "ab" if is_more else "wb") as file:
            file.write(data)
        if not is_more:
            os.replace(f"{path}.new", path)

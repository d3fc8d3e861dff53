"""Copies logs, and follows them while they grow. Bytes in, bytes out, in bounded memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.errors import LaunchError
from launcher.output.lines import LineCutter
from launcher.runs.owner import open_regular

if TYPE_CHECKING:
    from typing import BinaryIO

#: Seconds between two looks at logs that grow.
_PERIOD = 0.1

_CHUNK = 1 << 18


class Log:
    """A log file that may not exist yet.

    Copied into a file or a pipe, it is its bytes, with a label before each line. For a terminal its lines
    are cut as the console does: nothing in them moves its cursor, sets its title or fills its clipboard, only
    colours are let through. So are those that are followed with a label, as they take turns with others': a
    progress bar, which has no newline for hours, is shown now and then.

    Args:
        path: the file.
        label: what to put before the bar in front of each line; empty: nothing.
        lines: start with the last so many lines; ``None``: at the beginning.
        terminal: it is written to one.
    """

    def __init__(self, path: str, label: bytes, lines: int | None, terminal: bool = False) -> None:
        self._path = path
        self._prefix = label and label + b" | "
        self._lines = lines
        self._file: BinaryIO | None = None
        #: Whether the last byte written was within a line.
        self._within = False
        self._cutter = LineCutter(self._prefix, label and label + b" + ", terminal)
        #: Whether its lines are cut; once they are, all are.
        self._cut = terminal

    def close(self) -> None:
        """Let go of the file."""
        if self._file:
            self._file.close()

    def write_all(self, out: BinaryIO) -> None:
        """Write all there is, the last line too if it is not whole."""
        while data := self._read():
            self._write(data, out)
        if self._cut:
            out.write(self._cutter.end())
            return
        if self._within and self._prefix:
            out.write(b"\n")
            self._within = False

    def write_new(self, out: BinaryIO) -> bool:
        """Write what is new, as whole lines if they have a label; ``False`` if nothing is."""
        data = self._read()
        self._cut = self._cut or bool(self._prefix)
        if self._cut and not data:
            out.write(self._cutter.snapshot(time.monotonic()))
        self._write(data, out)
        return bool(data)

    def _read(self) -> bytes:
        """The next bytes; empty if there are none now."""
        if self._file is None:
            try:
                self._file = open_regular(self._path)  # open as long as we follow it
            except FileNotFoundError:
                return b""
            except OSError as error:
                raise LaunchError(f"can't read {self._path!r}: {error.strerror}") from error
            if self._lines is not None:
                self._file.seek(start_of_last(self._lines, self._file))
        return self._file.read(_CHUNK)

    def _write(self, data: bytes, out: BinaryIO) -> None:
        """Write bytes, with the prefix before each line that begins in them."""
        if not data:
            return
        if self._cut:
            out.write(self._cutter.feed(data, time.monotonic()))
            return
        if self._prefix:
            ends = data.endswith(b"\n")
            body = data[:-1] if ends else data
            data = body.replace(b"\n", b"\n" + self._prefix) + (b"\n" if ends else b"")
            data = data if self._within else self._prefix + data
            self._within = not ends
        out.write(data)


def copy(logs: Sequence[Log], out: BinaryIO) -> None:
    """Write one log after the other."""
    for log in logs:
        log.write_all(out)
        log.close()


def follow(current: Callable[[], Sequence[Log]], is_over: Callable[[], bool], out: BinaryIO) -> None:
    """Write logs as they grow, until nobody writes to them any more and all is written.

    Args:
        current: the logs; more may come until there are some.
        is_over: whether the run has ended.
        out: where to.
    """
    while True:
        over = is_over()  # asked first: what is written before the end is read after it
        grown = [log.write_new(out) for log in current()]
        if over and not any(grown):
            return copy(current(), out)
        out.flush()
        if not any(grown):
            time.sleep(_PERIOD)


def start_of_last(lines: int, file: BinaryIO) -> int:
    """Where the last so many lines of a file begin; a last line need not be whole."""
    position = file.seek(0, os.SEEK_END)
    if lines == 0:
        return position
    wanted, skip = lines, 1  # the newline that ends the last line does not count
    while position > 0:
        step = min(_CHUNK, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        at = len(block) - skip
        skip = 0
        while (at := block.rfind(b"\n", 0, max(at, 0))) >= 0:
            wanted -= 1
            if wanted == 0:
                return position + at + 1
    return 0

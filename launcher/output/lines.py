"""Turns the raw bytes of a task, cut anywhere, into whole prefixed lines without terminal control."""

from __future__ import annotations

import codecs
import re

from launcher.job import TaskId

#: Seconds without output after which the start of a line is shown without its end.
_QUIET = 2.0
#: Most seconds between two states of a line that a task keeps rewriting.
_LONGEST_WAIT = 60.0
#: Labels are padded to the longest one, up to this many characters.
_LABEL_WIDTH = 40
RESET = "\x1b[0m"
_CONTROLS = bytes(code for code in range(32) if code not in (9, 10)) + b"\x7f"
_REWRITE = re.compile(rb"\r|\x08+")
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)"
#: ``sgr`` is a colour; the rest moves the cursor, sets titles, rings, or is not text.
_NOT_TEXT = re.compile(
    rf"(?P<sgr>\x1b\[[0-9;:]*m)|{_CSI}|{_STRING}|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def labels(hosts: dict[TaskId, str], shown: list[TaskId]) -> dict[TaskId, str]:
    """The label of each task, padded to one width: ``worker/0``, with several hosts ``node1 worker/0``.

    Args:
        hosts: the host of every task of the job.
        shown: the tasks that need a label.
    """
    several = len(set(hosts.values())) > 1 and not all(task.names(host) for task, host in hosts.items())
    names = {task: f"{hosts[task]} {task}" if several else str(task) for task in shown}
    width = min(_LABEL_WIDTH, max(map(len, names.values()), default=0))
    return {task: name.ljust(width) for task, name in names.items()}


def strip_controls(text: str, keep_colours: bool = False) -> str:
    """The text without control characters and escape sequences; tabs and newlines stay."""
    if not keep_colours:
        return _NOT_TEXT.sub("", text)
    return _NOT_TEXT.sub(lambda found: found["sgr"] or "", text)


def has_controls(data: bytes) -> bool:
    """Whether UTF-8 text holds control characters other than tab and newline.

    One memchr for each: ten times as fast as a regular expression.
    """
    for code in _CONTROLS:
        if code in data:
            return True
    return b"\xc2" in data and re.search(b"\xc2[\x80-\x9f]", data) is not None


class LineCutter:
    r"""The lines of one task.

    Plain text passes at the speed of ``memchr`` and ``replace``. Of a line that is rewritten with ``\r`` or
    backspaces the text after the last of them is shown. The text does not depend on where the bytes are cut.

    Args:
        prefix: starts each line.
        continued_prefix: starts the later parts of a line that is longer than ``limit``, or whose start was
            shown before its end came.
        keep_colours: keep colour sequences; each line is reset at its end.
        limit: bytes of a line that wait for its newline.
        interval: seconds before the first state of a rewritten line is shown; doubled with each one.
    """

    def __init__(
        self,
        prefix: bytes,
        continued_prefix: bytes,
        keep_colours: bool = False,
        limit: int = 64 * 1024,
        interval: float = 2.0,
    ) -> None:
        self._prefix = prefix
        self._continued_prefix = continued_prefix
        self._keep = keep_colours
        self._limit = limit
        self._interval = interval
        self._fed_at = 0.0
        self._looked = True
        self._begin_line()

    def _begin_line(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._rewriting = False
        #: A part of this line was shown, and is not in the rest any more.
        self._continued = False
        #: The state of a rewritten line that was shown last.
        self._shown = ""
        self._shown_at = 0.0
        self._wait = self._interval

    @property
    def unfinished(self) -> bool:
        """Whether there is a part of a line to show before its end: ask for a `snapshot` soon."""
        return self._rewriting or (self._size > 0 and not self._looked)

    def feed(self, data: bytes, now: float) -> bytes:
        """Take output; return the lines to show, each with its prefix and newline."""
        self._fed_at, self._looked = now, False
        out: list[bytes] = []
        end = data.rfind(b"\n") + 1
        if end:
            block, data = b"".join((*self._rest, data[:end])), data[end:]
            if self._continued or self._shown:
                first, _, block = block.partition(b"\n")
                out.append(self._last_part(first))
            self._begin_line()
            if block:
                out.append(self._whole_lines(block))
        if data:
            self._rest.append(data)
            self._size += len(data)
            if not self._rewriting and (b"\r" in data or b"\b" in data):
                self._rewriting, self._shown_at = True, now
            if self._size > self._limit:
                out.append(self._parts(b"".join(self._rest)))
        if self._rewriting:
            out.append(self._state(now))
        return b"".join(out)

    def snapshot(self, now: float) -> bytes:
        """What to show of a line before its end: its state if it is rewritten, its start after some quiet."""
        if self._rewriting:
            return self._state(now)
        if self._looked or now - self._fed_at < _QUIET:
            return b""
        self._looked = True
        data = b"".join(self._rest)
        end = whole_characters(data)
        text = strip_controls(data[:end].decode("utf-8", "replace"), self._keep)
        if not strip_controls(text).strip():
            return b""
        shown = self._line(text)
        self._rest, self._size, self._continued = [data[end:]], len(data) - end, True
        return shown

    def end(self) -> bytes:
        """The task prints no more: the rest of its last line."""
        rest = b"".join(self._rest)
        shown = self._last_part(rest) if rest else b""
        self._begin_line()
        return shown

    def _state(self, now: float) -> bytes:
        """The state of a rewritten line, if it is time and the state has changed."""
        if now - self._shown_at < self._wait:
            return b""
        self._shown_at = now
        text = self._last_state(b"".join(self._rest))
        if not text or text == self._shown:
            return b""
        self._shown = text
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        return self._line(text, whole=True)

    def _whole_lines(self, block: bytes) -> bytes:
        """Lines that begin and end in this block."""
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if b"\r" in block or b"\b" in block or self._has_overlong(block):
            shown = []
            for line in block[:-1].split(b"\n"):
                shown.append(self._last_part(line))
                self._begin_line()
            return b"".join(shown)
        if has_controls(block):
            text = strip_controls(block.decode("utf-8", "replace"), self._keep)
            if "\x1b" in text:
                text = "\n".join(map(_closed, text.split("\n")))
            block = text.encode()
        elif not block.isascii():
            block = block.decode("utf-8", "replace").encode()
        return b"%b%b\n" % (self._prefix, block[:-1].replace(b"\n", b"\n" + self._prefix))

    def _has_overlong(self, block: bytes) -> bool:
        at = 0
        while len(block) - at > self._limit:
            at = block.rfind(b"\n", at, at + self._limit + 1) + 1
            if not at:
                return True
        return False

    def _last_part(self, line: bytes) -> bytes:
        """A line up to its end, or what is left of it."""
        parts = self._parts(line) if len(line) > self._limit else b""
        line = b"".join(self._rest) if parts or len(line) > self._limit else line
        line = line.rstrip(b"\r")
        rewritten = self._rewriting = b"\r" in line or b"\b" in line
        text = self._last_state(line)
        if text == self._shown and (text or self._continued):
            return parts
        return parts + self._line(text, whole=rewritten)

    def _parts(self, line: bytes) -> bytes:
        """Show parts of an overlong line, up to the limit each; the rest stays."""
        shown: list[bytes] = []
        while len(line.rstrip(b"\r")) > self._limit:  # these may belong to the newline
            window = line[: self._limit]
            if b"\r" in window or b"\b" in window:
                line = line[max(window.rfind(b"\r"), window.rfind(b"\b")) or 1 :]
                continue
            end = whole_characters(window) or len(window)
            part, line = window[:end], line[end:]
            if has_controls(part) or not part.isascii():
                part = _closed(strip_controls(part.decode("utf-8", "replace"), self._keep)).encode()
            if part:
                prefix = self._continued_prefix if self._continued else self._prefix
                shown.append(b"%b%b\n" % (prefix, part))
                self._continued = True
        if line.endswith(b"\r"):  # any number of these is the same as one
            line = line.rstrip(b"\r") + b"\r"
        self._rest, self._size = [line], len(line)
        return b"".join(shown)

    def _last_state(self, line: bytes) -> str:
        """The text that a line shows: what follows the last rewriting, if there is anything to see."""
        for segment in reversed(_REWRITE.split(line)):
            text = strip_controls(segment.decode("utf-8", "replace"), self._keep)
            if strip_controls(text).strip():
                return text
        return "" if self._rewriting else strip_controls(line.decode("utf-8", "replace"), self._keep)

    def _line(self, text: str, whole: bool = False) -> bytes:
        prefix = self._continued_prefix if self._continued and not whole else self._prefix
        return b"%b%b\n" % (prefix, _closed(text).encode())


def whole_characters(data: bytes | bytearray) -> int:
    """The length of the data without a UTF-8 character that is cut at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])


def _closed(line: str) -> str:
    """The line, with a reset at its end if a colour is on: the next line is another task's."""
    last = line.rfind("\x1b")
    return line if last < 0 or line.startswith((RESET, "\x1b[m"), last) else line + RESET

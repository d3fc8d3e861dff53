"""Raw bytes of a task, cut anywhere, into whole prefixed lines that can't harm a terminal. Pure."""

from __future__ import annotations

import codecs

from launcher.output import escapes
from launcher.output.cells import Cells

#: More text than this without a newline leaves the list of raw chunks for the slow, bounded path.
_HELD = 8192

#: Seconds of quiet after which the start of a line is shown without waiting for its end.
_QUIET = 2.0

#: The longest time between two snapshots of one line, in seconds.
_LONGEST_WAIT = 60.0


class LineCutter:
    """The lines of one task.

    Plain text passes at the speed of ``memchr`` and ``replace``. Everything else goes through
    a small model of a terminal's line: ``\\r`` and ``\\b`` move the cursor, what is then written
    replaces the line from there on, and nothing happens until something is written. So
    ``\\r\\n`` is a newline, and a progress bar is the line's last state.

    The emitted text does not depend on where the bytes were cut into chunks, only on when they
    came: a line is shown before its end by ``snapshot`` if the task is quiet or rewrites it.

    Args:
        prefix: what each line starts with.
        continued_prefix: what the second and later pieces of a line start with: it is overlong, or
            its start was shown before its end came.
        keep_colours: let SGR sequences through; each line is reset at its end.
        limit: characters of a line that are kept back until its newline comes.
        interval: seconds before the first snapshot of a line that keeps being rewritten; doubled
            with each that is shown.
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
        self._between = b"\n" + prefix
        self._continued_prefix = continued_prefix
        self._keep = keep_colours
        self._limit = limit
        self._interval = interval
        self._raw: list[bytes] = []  # the start of a line, not looked at yet
        self._raw_size = 0
        self._open = False  # the start of the line is in the model below
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # an escape sequence cut at the end of a chunk
        self._out: list[bytes] = []
        self._since = 0.0
        self._fed_at = 0.0
        self._looked = True  # nothing came since the quiet was noticed
        self._begin_line()

    def _begin_line(self) -> None:
        self._cells = Cells()
        self._at: int | None = None  # the cursor, where it is not at the end
        self._pieces = 0
        self._rewriting = False
        self._shown: str | None = None
        self._started = ""  # what was shown of it while the task was quiet
        self._wait = self._interval

    @property
    def _text(self) -> str:
        return str(self._cells)

    @property
    def unfinished(self) -> bool:
        """Whether there is the start of a line to show before its end: ask for its ``snapshot`` soon."""
        return self._rewriting or (not self._looked and (self._open or bool(self._raw)))

    def feed(self, data: bytes, now: float) -> bytes:
        """Take what the task printed; return the lines to print, each prefixed and ended."""
        was_rewriting = self._rewriting
        self._fed_at, self._looked = now, False
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._hold(data)
        else:
            whole = self._unhold() + data[:cut] if self._raw else data[:cut]
            self._lines(whole)
            if cut < len(data):
                self._hold(data[cut:])
        if self._rewriting and not was_rewriting:
            self._since = now
        lines = self._taken()
        return lines + self._state(now) if self._rewriting else lines

    def snapshot(self, now: float) -> bytes:
        """What to show of a line that has not ended: its start after some quiet, or its state."""
        return self._state(now) if self._rewriting else self._start(now)

    def _state(self, now: float) -> bytes:
        """The state of a line that keeps being rewritten, if it is time and it has changed."""
        if now - self._since < self._wait:
            return b""
        self._since = now
        text = self._text
        if text == self._shown or not text.strip():
            return b""
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._emit(text)
        self._shown, self._started = text, ""
        return self._taken()

    def _start(self, now: float) -> bytes:
        """The start of a line whose end does not come."""
        if self._looked or now - self._fed_at < _QUIET:
            return b""
        self._looked = True
        if self._raw:
            self._open = True
            self._fold(self._decoder.decode(self._unhold()))
        if self._rewriting or self._text == self._shown or not self._visible():
            return b""
        self._emit(self._text)
        self._shown = self._started = self._text
        return self._taken()

    def _visible(self) -> bool:
        """Whether the line's text holds anything but blanks and colours that was not shown yet."""
        text = self._text.removeprefix(self._started)
        return bool(escapes.strip(text, False).strip())

    def end(self) -> bytes:
        """The task will print no more: what is left of its last line."""
        self._fold(self._decoder.decode(self._unhold(), final=True))
        self._held = ""
        if self._cells:
            self._end_line()
        self._begin_line()
        self._open = False
        return self._taken()

    def _taken(self) -> bytes:
        lines = b"".join(self._out)
        self._out.clear()
        return lines

    def _unhold(self) -> bytes:
        held = b"".join(self._raw)
        self._raw.clear()
        self._raw_size = 0
        return held

    def _hold(self, data: bytes) -> None:
        """Keep the start of a line: raw, as long as it is short and nothing but text."""
        self._raw.append(data)
        self._raw_size += len(data)
        if self._open or self._raw_size > _HELD or b"\r" in data or b"\b" in data:
            self._open = True
            self._fold(self._decoder.decode(self._unhold()))

    def _lines(self, body: bytes) -> None:
        """Whole lines; the first may have begun in the model."""
        if self._open:
            cut = body.find(b"\n") + 1
            self._fold(self._decoder.decode(body[:cut]))
            self._open = False
            body = body[cut:]
        if body:
            self._fresh_lines(body)

    def _fresh_lines(self, body: bytes) -> None:
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        if escapes.has_controls(body):
            self._marked_lines(body.decode("utf-8", "replace"))
            return
        if not body.isascii():
            body = _valid(body)
        if self._has_overlong(body):
            self._fold(body.decode())
        else:
            self._out += (self._prefix, body[:-1].replace(b"\n", self._between), b"\n")

    def _marked_lines(self, text: str) -> None:
        """Whole lines with control characters or escapes in them."""
        if "\r" in text or "\b" in text:
            self._fold(text)
            return
        text = escapes.strip(text, self._keep)
        if self._has_overlong(text.encode()):
            self._fold(text)
            return
        if "\x1b" in text:
            text = "\n".join(map(escapes.closed, text.split("\n")))
        self._out += (self._prefix, text[:-1].encode().replace(b"\n", self._between), b"\n")

    def _has_overlong(self, body: bytes) -> bool:
        """Whether a line may be longer than the limit (bytes are counted: never fewer than characters)."""
        at = 0
        while len(body) - at > self._limit:
            at = body.rfind(b"\n", at, at + self._limit + 1) + 1
            if not at:
                return True
        return False

    def _fold(self, text: str) -> None:
        """Run text through the model of the line."""
        if self._held:
            text, self._held = self._held + text, ""
        at = 0
        for found in escapes.tokens().finditer(text):
            if found.start() > at:
                self._print(text[at : found.start()])
            at = found.end()
            kind = found.lastgroup
            if kind == "move":
                self._move(found[0])
            elif kind == "partial":
                self._held = found[0]
            elif kind == "sgr" and self._keep:
                self._colour(found[0])
        if at < len(text):
            self._print(text[at:])

    def _print(self, text: str) -> None:
        first, *others = text.split("\n")
        if first:
            self._put(first)
        for other in others:
            self._end_line()
            if other:
                self._put(other)

    def _move(self, how: str) -> None:
        self._rewriting = True
        place = len(self._cells) if self._at is None else self._at
        self._at = 0 if how == "\r" else self._cells.back(place, len(how))

    def _colour(self, sequence: str) -> None:
        """Takes no room: it neither moves the cursor nor overwrites anything."""
        if self._cells and len(self._cells) + len(sequence) > self._limit:
            self._end_piece()
        self._cells.append_colours(sequence)

    def _put(self, text: str) -> None:
        if self._at is not None:
            self._cells.append_colours(self._carried(self._cells.cut(self._at)))
            self._at = None
        while len(self._cells) + len(text) > self._limit:
            room = max(0, self._limit - len(self._cells))
            self._cells.append(text[:room])
            text = text[room:]
            self._end_piece()
        self._cells.append(text)

    def _carried(self, cut: str) -> str:
        """Colours that go on, unless they would fill the line (they never do, but with a tiny limit)."""
        colours = escapes.carried(cut) if self._keep else ""
        return colours if len(colours) <= self._limit // 2 else ""

    def _end_piece(self) -> None:
        text = self._text
        if text != self._started:
            self._emit(text)
        self._cells = Cells()
        self._cells.append_colours(self._carried(text))
        self._at = None
        self._pieces += 1
        self._shown, self._started = None, ""

    def _end_line(self) -> None:
        text = self._text
        if text != self._shown:
            self._emit(text)
        self._begin_line()

    def _emit(self, text: str) -> None:
        goes_on = bool(self._started) and text.startswith(self._started)
        if goes_on:
            text = self._carried(self._started) + text[len(self._started) :]
        prefix = self._continued_prefix if self._pieces or goes_on else self._prefix
        self._out.append(prefix + escapes.closed(text).encode() + b"\n")


def _valid(body: bytes) -> bytes:
    """UTF-8, with U+FFFD for what was not."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return body.decode("utf-8", "replace").encode()
    return body

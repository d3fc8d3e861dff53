"""Converts the raw output of a task, cut anywhere, to lines with a prefix and without control sequences.

The console, ``launch attach`` and ``launch logs`` show tasks by it. It reads and writes nothing itself. A
task may print anything, so no input may raise an exception.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping

from launcher.common.cluster import TaskId

# After this time an unfinished line is shown. If the task rewrites the line, this is its first state, and the
# time until the next state doubles, up to a limit.
_QUIET_SECONDS = 2.0
_MAX_WAIT_SECONDS = 60.0
_NEVER = float("inf")
# Labels are padded to the longest one, up to this width.
_MAX_LABEL_WIDTH = 40
RESET = "\x1b[0m"
_CONTROL_BYTES = bytes(code for code in range(32) if code not in (9, 10)) + b"\x7f"
# One copy of a shorter text is faster than the search for each control character.
_SHORT_TEXT_BYTES = 1024
_REWRITE = rb"\r|\x08+"
#: Matches the lines that `attempt_mark` makes.
ATTEMPT_MARK_PATTERN = rb"(?m)^launch: attempt \d+ starts here\n"
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)"
_CONTROL_CHARACTER = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
#: The group ``sgr`` is a colour. Other matches are control characters and sequences.
_NOT_TEXT = rf"(?P<sgr>\x1b\[[0-9;:]*m)|{_CSI}|{_STRING}|\x1b[ -/]*[0-~]|{_CONTROL_CHARACTER}"


def wants_colour(environ: Mapping[str, str], *, is_tty: bool) -> bool:
    """Return whether to use colours, which the variables NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE decide.

    Args:
        environ: The variables of this process.
        is_tty: Whether the output is a terminal. It decides if no variable does.
    """
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return is_tty and environ.get("TERM") != "dumb"


def coloured(text: str, colour: str) -> str:
    """Return a text in a colour of the terminal, as in ``1;31`` for bold red."""
    return f"\x1b[{colour}m{text}{RESET}"


def labels(hosts: dict[TaskId, str], shown: list[TaskId]) -> dict[TaskId, str]:
    """Return the label of each task: ``worker/0``, or ``node1 worker/0`` if the job runs on several hosts.

    The labels are padded to the same width.

    Args:
        hosts: The host of every task of the job.
        shown: The tasks that need a label.
    """
    # The name of a host that was made for one task, as a container, says no more than that of the task.
    several = len(set(hosts.values())) > 1 and not all(task.is_own_host(host) for task, host in hosts.items())
    names = {task: f"{hosts[task]} {task}" if several else str(task) for task in shown}
    width = min(_MAX_LABEL_WIDTH, max(map(len, names.values()), default=0))
    return {task: name.ljust(width) for task, name in names.items()}


def attempt_mark(attempt: int) -> bytes:
    """Return the line that stands in a task's log before the output of an attempt."""
    return b"launch: attempt %d starts here\n" % attempt


def strip_controls(text: str, *, keep_colours: bool = False) -> str:
    """Return a text without control characters and escape sequences, but with its tabs and newlines.

    Args:
        text: The text.
        keep_colours: Whether to keep the sequences that set colours.
    """
    if text.isprintable() or re.search(_CONTROL_CHARACTER, text) is None:  # This is usual and much faster.
        return text
    if not keep_colours:
        return re.sub(_NOT_TEXT, "", text)
    return re.sub(_NOT_TEXT, lambda found: found["sgr"] or "", text)


def has_controls(data: bytes) -> bool:
    """Return whether UTF-8 text contains control characters other than tab and newline.

    A long text is searched by memchr for each of them, which is ten times as fast as a regular expression.
    """
    if len(data) < _SHORT_TEXT_BYTES:
        if len(data.translate(None, _CONTROL_BYTES)) < len(data):  # It is shorter without these bytes.
            return True
    else:
        for code in _CONTROL_BYTES:  # noqa: SIM110 - any() takes twice as long
            if code in data:
                return True
    # These are the characters U+0080 to U+009F.
    return b"\xc2" in data and re.search(b"\xc2[\x80-\x9f]", data) is not None


class LineCutter:
    r"""A cutter of the output of one task into lines.

    Plain text passes at the speed of ``memchr`` and ``replace``. Of a line that is rewritten with ``\r`` or
    backspaces only the text after the last of them is shown. Lines up to ``limit`` are the same wherever the
    bytes are cut.

    Args:
        prefix: The text before each line.
        continued_prefix: The text before later parts of a line whose start was shown before its end arrived.
        limit: How many bytes of a line wait for its newline. The start of a longer line is shown.
        keep_colours: Whether to keep colour sequences. Colours are reset at the end of each line.
    """

    def __init__(
        self, prefix: bytes, continued_prefix: bytes, limit: int = 64 * 1024, *, keep_colours: bool = False
    ) -> None:
        self.prefix = prefix
        self.continued_prefix = continued_prefix
        self._keeps_colours = keep_colours
        self._limit = limit
        self._begin_line()

    def _begin_line(self) -> None:
        """Forget the last line, because the next byte starts a new one."""
        #: The bytes of this line that were not shown.
        self._unshown: list[bytes] = []
        #: How many bytes these are.
        self._size = 0
        #: Whether the line contains a carriage return or a backspace, as that of a progress bar.
        self._is_rewritten = False
        #: Whether the start of this line was shown, and is no longer in ``_unshown``.
        self._is_continued = False
        #: The state of a rewritten line that was shown last. Empty if none was, as for any other line.
        self._last_state = ""
        #: When to show the line before its end, and the seconds between two states of a rewritten line.
        self._due_at, self._wait_seconds = _NEVER, _QUIET_SECONDS

    @property
    def has_unfinished_line(self) -> bool:
        """Whether a part of a line waits to be shown by `snapshot`."""
        return self._due_at < _NEVER

    def feed(self, data: bytes, now: float) -> bytes:
        """Add output of the task.

        Args:
            data: The output, cut anywhere.
            now: The time by any clock that `snapshot` gets, too.

        Returns:
            The lines to show, each with its prefix and newline.
        """
        shown = b""
        end = data.rfind(b"\n") + 1
        if end:
            shown = self._whole_lines(b"".join((*self._unshown, data[:end])))
            data = data[end:]
            self._begin_line()
        if data:
            self._unshown.append(data)
            self._size += len(data)
            if not self._is_rewritten:  # A rewritten line is due at regular times, whenever it changes.
                self._is_rewritten = b"\r" in data or b"\b" in data
                self._due_at = now + _QUIET_SECONDS
            if self._size > self._limit:
                shown += self._show_long_line()
        return shown

    def snapshot(self, now: float) -> bytes:
        """Return the part of an unfinished line that is due: the state of a rewritten line, or its start.

        Args:
            now: The time by the clock of `feed`.

        Returns:
            The line to show. Empty if none is due.
        """
        if now < self._due_at:
            return b""
        line = b"".join(self._unshown)
        if not self._is_rewritten:
            self._due_at = _NEVER  # Until more of the line arrives.
            end = whole_characters(line)
            return self._show_start(line, end) if _is_visible(self._text_of(line[:end])) else b""
        text = self._state_of(line)
        has_changed = text not in ("", self._last_state)
        if has_changed:
            self._last_state, self._wait_seconds = text, min(2 * self._wait_seconds, _MAX_WAIT_SECONDS)
        self._due_at = now + self._wait_seconds
        return self._prefixed_line(text, is_whole=True) if has_changed else b""

    def end(self) -> bytes:
        """Return the rest of the last line, because the task prints no more."""
        rest = b"".join(self._unshown)
        shown = self._finish_line(rest) if rest else b""
        self._begin_line()
        return shown

    def _whole_lines(self, block: bytes) -> bytes:
        """Return the lines to show for a block of whole lines, each with the prefix that names the task.

        Most blocks are handled as a whole, which is much faster than line by line:

        - The first line is handled alone if its start, or an earlier state of it, was shown already.
        - Each line is handled alone if one of them is rewritten by a carriage return or a backspace, as by a
          progress bar.
        - Other control sequences, and bytes that are no UTF-8, are replaced in the whole block.
        """
        first = b""
        if self._is_continued or self._last_state:
            line, _, block = block.partition(b"\n")
            first = self._finish_line(line)
            self._begin_line()
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if b"\r" in block or b"\b" in block:  # Some line is rewritten.
            return first + b"".join(map(self._finish_line, block[:-1].split(b"\n")))
        if has_controls(block):
            text = self._text_of(block)
            if "\x1b" in text:  # Colours are kept, but none may last beyond its line.
                text = "\n".join(map(_with_reset, text.split("\n")))
            block = text.encode()
        elif not block.isascii():
            block = block.decode("utf-8", "replace").encode()
        prefix = self.prefix
        return first + b"%b%b\n" % (prefix, block[:-1].replace(b"\n", b"\n" + prefix)) if block else first

    def _finish_line(self, line: bytes) -> bytes:
        """Return what to show at the end of a line. Empty if all that the user is to see was shown before.

        - If nothing was shown, the line is, even if it is empty.
        - If its start was shown (`_is_continued`), the rest is, unless that is empty.
        - If states of a rewritten line were shown, its last one is, unless it equals `_last_state`.

        Args:
            line: The bytes of the line without those of a start that was shown, and without its newline.
        """
        line = line.rstrip(b"\r")
        is_rewritten = b"\r" in line or b"\b" in line
        text = self._state_of(line) if is_rewritten else self._text_of(line)
        if text == self._last_state and (text or self._is_continued):
            return b""
        return self._prefixed_line(text, is_whole=is_rewritten)

    def _show_long_line(self) -> bytes:
        """Return the start of a line that is longer than the limit, which is shown before its end arrives.

        Of a rewritten line only the present state is kept. If that is short enough, nothing is shown now.
        """
        line = b"".join(self._unshown)
        if self._is_rewritten:
            line = self._state_of(line).encode()
            if len(line) <= self._limit:
                self._unshown, self._size = [line, b"\r"], len(line) + 1
                return b""
            self._is_rewritten = False
        # A carriage return at the end may belong to the newline, so it is not shown yet.
        return self._show_start(line, whole_characters(line.rstrip(b"\r")))

    def _show_start(self, line: bytes, end: int) -> bytes:
        """Return the start of an unfinished line, which is shown now, and keep the rest.

        Args:
            line: The bytes of the line so far.
            end: How many of them are shown.
        """
        part = line[:end]
        if has_controls(part) or not part.isascii():
            part = _with_reset(self._text_of(part)).encode()
        prefix = self.continued_prefix if self._is_continued else self.prefix
        self._unshown, self._size, self._is_continued = [line[end:]], len(line) - end, True
        return b"%b%b\n" % (prefix, part) if part else b""

    def _state_of(self, line: bytes) -> str:
        """Return the state of a rewritten line: the last visible text between rewritings. It may be empty."""
        for segment in reversed(re.split(_REWRITE, line)):
            if _is_visible(text := self._text_of(segment)):
                return text
        return ""

    def _text_of(self, data: bytes) -> str:
        """Return bytes as text without control sequences, but with colours if these are kept."""
        return strip_controls(data.decode("utf-8", "replace"), keep_colours=self._keeps_colours)

    def _prefixed_line(self, text: str, *, is_whole: bool = False) -> bytes:
        """Return a line to show, with its prefix and newline.

        Args:
            text: The text of the line.
            is_whole: Whether the text is the whole line, although a part of the line was shown before.
        """
        prefix = self.continued_prefix if self._is_continued and not is_whole else self.prefix
        return b"%b%b\n" % (prefix, _with_reset(text).encode())


def clean_lines(data: bytes, *, is_cut: bool) -> list[str]:
    """Return output as lines without control sequences, and without blank lines at its end.

    Args:
        data: The output as the task printed it.
        is_cut: Whether the output is longer, so the first line is incomplete and left out.
    """
    cutter = LineCutter(b"", b"")
    text = (cutter.feed(data, 0.0) + cutter.end()).decode("utf-8", "replace").rstrip()
    lines = text.split("\n") if text else []
    return lines[1:] if is_cut and len(lines) > 1 else lines


def whole_characters(data: bytes | bytearray) -> int:
    """Return the length of the data without an incomplete UTF-8 character at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])  # No character is longer.
    incomplete = decoder.getstate()[0]
    return len(data) - len(incomplete)


def _is_visible(text: str) -> bool:
    """Return whether a text contains more than spaces and control sequences."""
    return bool(strip_controls(text).strip() if "\x1b" in text else text.strip())


def _with_reset(line: str) -> str:
    """Return the line with a reset at its end if it sets a colour.

    The next line may belong to another task.
    """
    last_sequence = line.rfind("\x1b")
    is_reset = last_sequence < 0 or line.startswith((RESET, "\x1b[m"), last_sequence)
    return line if is_reset else line + RESET

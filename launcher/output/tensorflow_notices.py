"""TensorFlow's start-up messages: harmless lines that say nothing about the user's program.

The console, ``launch attach`` and ``launch logs`` show only how many there were: `NoticeCutter` leaves them
out, and `Folding` counts them. Logs and ``--json`` keep them. ``notices.toml`` lists them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.common.record import Record
from launcher.common.text import plural
from launcher.output.lines import LineCutter
from launcher.package_data import read_table

#: The first bytes of all messages: the letter, or that of the year.
_FIRST_BYTES = frozenset(b"IWE2")
#: How lines of Python code, and of absl, begin.
_PYTHON_BEGINNINGS = (b"WARNING:tensorflow:", b"INFO:tensorflow:", b"WARNING:absl:", b"WARNING: All log ")
#: Matches a message of TensorFlow's C++ code in the form of TensorFlow 2.17 and later, which has the name of
#: the file only, of those before it, or of TensorFlow 1.
_MESSAGE_PATTERN = (
    rb"(?:[0-9-]{10} [0-9:.]+: )?(?P<letter>[IWE])(?:0000 00:00:[0-9.]+ +[0-9]+ |"
    rb" (?:\./)?(?:tensorflow|xla|tsl|external/(?:local_xla|local_tsl|org_tensorflow|xla|tsl))/(?:[\w.-]+/)*)"
    rb"(?P<file>[\w.-]+\.(?:cc|h)):[0-9]+\] (?P<text>.*)"
)


class _Rule(Record):
    """The rule for start-up messages of one kind, an entry of ``notices.toml``."""

    #: Matches the start of the text of a message.
    text: re.Pattern[bytes]
    #: Matches the other lines of such a message. None if it has only one.
    rest: re.Pattern[bytes] | None = None
    #: Whether it is left out even if its letter is E.
    probe: bool = False


class _NoticeTable(Record):
    """The content of ``notices.toml``."""

    messages: Sequence[_Rule]
    #: The names of those source files of TensorFlow that print start-up messages, such as ``gpu_device.cc``.
    source_files: frozenset[bytes]
    #: Finds a word such as ``memory`` or ``fail``. A message with such a word stays, because it may explain
    #: what is wrong with a job, unless one of the rules matches it.
    word_that_matters: re.Pattern[bytes]


#: The rule for messages that no entry matches.
_OTHER = _Rule(re.compile(b""))


@functools.cache
def _notice_table() -> _NoticeTable:
    """Return the content of ``notices.toml``, read at the first call.

    That takes some milliseconds, so it is not done for a program without such messages.
    """
    content = read_table("output/notices.toml")
    return _NoticeTable(
        messages=[_rule(entry) for entry in content["message"]],
        source_files=frozenset(name.encode() for name in content["files"]),
        word_that_matters=re.compile("|".join(content["matters"]).encode(), re.IGNORECASE),
    )


def _rule(entry: Mapping[str, Any]) -> _Rule:
    """Return the rule of an entry of ``notices.toml``."""
    rest = re.compile(entry["rest"].encode()) if "rest" in entry else None
    return _Rule(re.compile(entry["text"].encode()), rest, entry.get("probe", False))


def _rule_for(line: bytes) -> _Rule | None:
    """Return the rule for a line with which a start-up message begins. None for any other line."""
    if line.startswith(_PYTHON_BEGINNINGS):
        return _first_match(line)
    message = re.match(_MESSAGE_PATTERN, line) if _may_be_of_cpp(line) else None
    if message is None:
        return None
    is_error, file, text = message["letter"] == b"E", message["file"], message["text"]
    if rule := _first_match(text):
        # Of messages with the letter E only those of `probe` are harmless: TensorFlow has looked for CUDA in
        # vain.
        return rule if rule.probe or not is_error else None
    table = _notice_table()
    is_left_out = not is_error and file in table.source_files and not table.word_that_matters.search(text)
    return _OTHER if is_left_out else None


def _may_be_of_cpp(text: bytes) -> bool:
    """Return whether a text may have a message of C++ code. It's much faster than to match the pattern."""
    return b".cc:" in text or b".h:" in text


def _may_have_messages(lines: bytes) -> bool:
    """Return whether a message may begin in a block of lines.

    Each message has a colon, each one of C++ code a bracket, and each one of Python code an N. memchr finds
    out that a block has none of them, which is faster than a search for words.
    """
    if b":" not in lines:
        return False
    if b"]" in lines and _may_be_of_cpp(lines):
        return True
    return b"N" in lines and (b"WARNING:" in lines or b"INFO:tensorflow:" in lines)


def _first_match(text: bytes) -> _Rule | None:
    """Return the first rule that matches a text. None if none does."""
    return next((rule for rule in _notice_table().messages if rule.text.match(text)), None)


class Folding:
    """The counter of the messages that were left out of the output of some tasks."""

    def __init__(self) -> None:
        #: The number of messages.
        self.count = 0

    def summary(self) -> str:
        """Return one line about all messages that were left out. Empty if there were none."""
        if not self.count:
            return ""
        them = "it" if self.count == 1 else "them"
        return f"hid {plural(self.count, 'TensorFlow start-up message')} (-v shows {them})"


class NoticeCutter(LineCutter):
    """A cutter of the output of one attempt of a task that leaves out TensorFlow's start-up messages.

    Args:
        prefix: The text before each line.
        continued_prefix: The text before later parts of a line.
        folding: Counts the messages that are left out.
        keep_colours: Whether to keep colour sequences.
    """

    def __init__(
        self, prefix: bytes, continued_prefix: bytes, folding: Folding, *, keep_colours: bool = False
    ) -> None:
        super().__init__(prefix, continued_prefix, keep_colours=keep_colours)
        self._folding = folding
        #: Matches the lines that belong to the message before them. None if it has no more lines.
        self._rest: re.Pattern[bytes] | None = None

    def feed(self, data: bytes, now: float) -> bytes:
        """Add output of the task, and return the lines to show."""
        return self._without_messages(super().feed(data, now))

    def snapshot(self, now: float) -> bytes:
        """Return the part of an unfinished line that is due."""
        return self._without_messages(super().snapshot(now))

    def end(self) -> bytes:
        """Return the rest of the last line, because the task prints no more."""
        return self._without_messages(super().end())

    def _without_messages(self, lines: bytes) -> bytes:
        """Return whole lines of the task without start-up messages.

        Most blocks are returned at once, as they have none of the words of first lines of messages.
        """
        if self._rest is None and not _may_have_messages(lines):
            return lines
        start, shown = len(self.prefix), []
        for line in lines.splitlines(keepends=True):
            may_be_left_out = self._rest is not None or line[start] in _FIRST_BYTES
            if not (may_be_left_out and self._observe_line(line)):
                shown.append(line)
        return b"".join(shown)

    def _observe_line(self, line: bytes) -> bool:
        """Note whether the next line begins or continues a message, and return whether it is left out.

        The first line of a message is counted.
        """
        if not line.startswith(self.prefix):  # The start of the line was shown before.
            return False
        text = line[len(self.prefix) : -1]
        if self._rest is not None and self._rest.match(text):
            if not text:  # An empty line ends a message with several lines.
                self._rest = None
            return True
        rule = _rule_for(text)
        self._rest = rule.rest if rule else None
        self._folding.count += rule is not None
        return rule is not None


def without_start_up_messages(lines: Sequence[str]) -> list[str]:
    """Return lines of a task's output, in order, without TensorFlow's start-up messages."""
    cutter = NoticeCutter(b"", b"", Folding())
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    return (cutter.feed(text, 0.0) + cutter.end()).decode("utf-8", "replace").split("\n")[:-1]


def last_of_program(lines: Sequence[str]) -> str:
    """Return the last line that is not a start-up message of TensorFlow, or the last line if all are such.

    Args:
        lines: The lines of a task's output, in order.

    Returns:
        The line. Empty if there are no lines.
    """
    shown = [line for line in without_start_up_messages(lines) if line]
    return (shown or lines or [""])[-1]

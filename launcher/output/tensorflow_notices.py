"""TensorFlow's start-up messages: harmless lines that say nothing about the user's program.

The console, ``launch attach`` and ``launch logs`` show only how many there were: `NoticeCutter` leaves them
out, and `Folding` counts them. Logs and ``--json`` keep them. ``notices.toml`` lists them.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.common.record import Record
from launcher.common.text import plural
from launcher.output.lines import LineCutter
from launcher.package_data import read_table

#: The first bytes of all messages (the letter, or the year), and how those begin that have no time. Other
#: lines are not compared with patterns.
_FIRST_BYTES = frozenset(b"IWE2")
_BEGINNINGS = (b"I0000 ", b"W0000 ", b"E0000 ", b"I ", b"W ", b"E ", b"WARNING:", b"INFO:tensorflow:")
#: Where the letter of a message follows its time, as in ``2024-05-06 07:08:09.123456: I tensorflow/...``.
_AFTER_TIME = slice(26, 28)
#: Matches a message of TensorFlow's C++ code in the form of TensorFlow 2.17 and later, of those before it,
#: or of TensorFlow 1. Its groups are the letter, the file, of which the first form has the name only, and the
#: text.
_MESSAGE_PATTERN = (
    rb"(?:(?P<new>[IWE])0000 00:00:[0-9.]+ +[0-9]+ (?P<name>[\w.-]+\.(?:cc|h))"
    rb"|(?:[0-9-]{10} [0-9:.]+: )?(?P<old>[IWE]) "
    rb"(?P<path>(?:\./)?(?:tensorflow|xla|tsl|external/(?:local_xla|local_tsl|org_tensorflow|xla|tsl))/[\w/.-]+\.(?:cc|h))"
    rb"):[0-9]+\] (?P<text>.*)"
)
#: While a task runs, so many bytes of its output are searched in a second. Nobody can read more than
#: that, and the task must not become slower.
LIVE_BYTES_PER_SECOND = 1 << 16
#: How long nothing must follow a message about waiting until it is shown.
_WAIT_SECONDS = 10.0


class _Rule(Record):
    """The rule for start-up messages of one kind, an entry of ``notices.toml``."""

    #: Matches the start of the text of a message.
    text: re.Pattern[bytes]
    #: Matches the other lines of such a message. None if it has only one.
    rest: re.Pattern[bytes] | None = None
    #: Whether it is shown if nothing follows it.
    waits: bool = False
    #: Whether it is left out even if its letter is E.
    probe: bool = False


class _NoticeTable(Record):
    """The content of ``notices.toml``."""

    messages: Sequence[_Rule]
    #: The rules for lines of Python code.
    lines: Sequence[_Rule]
    #: The names of TensorFlow's files that print start-up messages.
    files: frozenset[bytes]
    #: Finds the words of messages that must stay.
    matters: re.Pattern[bytes]
    #: The rule for all other messages of TensorFlow's files.
    other: _Rule


@functools.cache
def _table() -> _NoticeTable:
    """Read ``notices.toml``. That takes some milliseconds, which only programs with such messages need."""
    content = read_table("output/notices.toml")
    words = "|".join(word for topic in content["matters"] for word in topic["words"])
    return _NoticeTable(
        messages=[_rule(entry) for entry in content["message"]],
        lines=[_rule(entry) for entry in content["line"]],
        files=frozenset(name.encode() for names in content["files"].values() for name in names),
        matters=re.compile(words.encode(), re.IGNORECASE),
        other=_rule({"text": ""}),
    )


def _rule(entry: Mapping[str, Any]) -> _Rule:
    """Return the rule of an entry of ``notices.toml``."""
    rest = re.compile(entry["rest"].encode()) if "rest" in entry else None
    return _Rule(
        re.compile(entry["text"].encode()), rest, entry.get("waits", False), entry.get("probe", False)
    )


def _may_begin_message(line: bytes) -> bool:
    """Return whether a line begins as a message does, which is asked for many lines."""
    return line.startswith(_BEGINNINGS) or line[_AFTER_TIME] == b": "


def _rule_for(line: bytes) -> _Rule | None:
    """Return the rule for a line with which a start-up message begins. None for any other line."""
    is_of_cpp = b".cc:" in line or b".h:" in line
    message = re.match(_MESSAGE_PATTERN, line) if is_of_cpp else None
    if message is None:
        is_of_python = line.startswith((b"WARNING:", b"INFO:tensorflow:"))
        return _first_match(_table().lines, line) if is_of_python else None
    is_error = b"E" in (message["new"], message["old"])
    rule = _first_match(_table().messages, message["text"])
    if rule is not None:
        return rule if rule.probe or not is_error else None
    file = (message["path"] or message["name"]).rpartition(b"/")[2]
    matters = is_error or _table().matters.search(file + b" " + message["text"]) is not None
    return _table().other if file in _table().files and not matters else None


def _first_match(rules: Sequence[_Rule], text: bytes) -> _Rule | None:
    """Return the first rule that matches a text. None if none does."""
    return next((rule for rule in rules if rule.text.match(text)), None)


class Folding:
    """The counter of the messages that were left out of the output of some tasks."""

    def __init__(self) -> None:
        #: The number of messages.
        self.count = 0
        #: How many messages about waiting are shown soon if nothing follows them.
        self.waiting = 0

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
        bytes_per_second: How much output is searched in a second. More is returned as it is.
    """

    def __init__(
        self,
        prefix: bytes,
        continued_prefix: bytes,
        folding: Folding,
        *,
        keep_colours: bool = False,
        bytes_per_second: int = sys.maxsize,
    ) -> None:
        super().__init__(prefix, continued_prefix, keep_colours=keep_colours)
        self._folding, self._bytes_per_second = folding, bytes_per_second
        #: How many bytes of lines were searched in this second, and when it began.
        self._searched = 0
        self._second_began = float("-inf")
        #: The rule of the message to which the next line may belong.
        self._rule: _Rule | None = None
        #: The lines about waiting that nothing has followed, how many messages these are, and since when.
        self._waiting: list[bytes] = []
        self._waiting_messages = 0
        self._waiting_since = 0.0

    @property
    def has_unfinished_line(self) -> bool:
        """Whether a part of a line, or a message about waiting, waits to be shown by `snapshot`."""
        return bool(self._waiting) or super().has_unfinished_line

    def feed(self, data: bytes, now: float) -> bytes:
        """Add output of the task, and return the lines to show."""
        return self._without_messages(super().feed(data, now), now)

    def snapshot(self, now: float) -> bytes:
        """Return what is due: the part of an unfinished line, or a message about waiting."""
        shown = self._without_messages(super().snapshot(now), now)
        is_due = self._waiting and now - self._waiting_since >= _WAIT_SECONDS
        return self._end_waiting(is_shown=True) + shown if is_due else shown

    def end(self) -> bytes:
        """Return the rest of the last line, or a message about waiting, because the task prints no more."""
        shown = self._without_messages(super().end(), 0.0)
        self._rule = None
        return self._end_waiting(is_shown=True) + shown

    def _end_waiting(self, *, is_shown: bool) -> bytes:
        """Return the lines about waiting, which are shown or left out now."""
        lines = b"".join(self._waiting)
        self._folding.waiting -= self._waiting_messages
        self._folding.count += 0 if is_shown else self._waiting_messages
        self._waiting, self._waiting_messages = [], 0
        return lines

    def _without_messages(self, lines: bytes, now: float) -> bytes:
        """Return whole lines of the task without start-up messages.

        Most blocks are returned at once: those without a bracket, which each message of C++ code has, and
        without an N, which each line of Python code has (``WARNING``, ``INFO``). memchr looks for these.
        """
        if not self._is_within and (
            (b"]" not in lines and b"N" not in lines) or self._is_flooded(lines, now)
        ):
            return lines
        start, is_within, shown = len(self.prefix), self._is_within, []
        for line in lines.splitlines(keepends=True):
            if is_within or (line[start] in _FIRST_BYTES and _may_begin_message(line[start:])):
                # A line whose start was shown before has another prefix.
                is_left_out = line.startswith(self.prefix) and self._leaves_out(line, now)
                is_within = self._is_within
                if is_left_out:
                    continue
            shown.append(line)
        return b"".join(shown)

    @property
    def _is_within(self) -> bool:
        """Whether the next line may belong to a message, or ends one about waiting."""
        return self._rule is not None or bool(self._waiting)

    def _is_flooded(self, lines: bytes, now: float) -> bool:
        """Return whether the task prints too much to search these lines, too."""
        if now - self._second_began >= 1.0:
            self._second_began, self._searched = now, 0
        self._searched += len(lines)
        return self._searched > self._bytes_per_second

    def _leaves_out(self, line: bytes, now: float) -> bool:
        """Return whether to leave out the next line, and count it if it begins a message."""
        text = line[len(self.prefix) : -1]
        rule, begins = self._rule, False
        if rule is None or rule.rest is None or not rule.rest.match(text):
            rule, begins = _rule_for(text), True
        # An empty line ends a message with several lines.
        self._rule = rule if text and rule is not None and rule.rest is not None else None
        if rule is not None and rule.waits:
            self._waiting.append(line)
            self._waiting_messages += begins
            self._folding.waiting += begins
            self._waiting_since = now
            return True
        self._end_waiting(is_shown=False)
        self._folding.count += rule is not None and begins
        return rule is not None


def without_start_up_messages(lines: Sequence[str]) -> list[str]:
    """Return lines of a task's output, in order, without TensorFlow's start-up messages."""
    cutter = NoticeCutter(b"", b"", Folding())
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    shown = (cutter.feed(text, 0.0) + cutter.end()).decode("utf-8", "replace")
    return shown.split("\n")[:-1]


def last_of_program(lines: Sequence[str]) -> str:
    """Return the last line that is not a start-up message of TensorFlow, or the last line if all are such.

    Args:
        lines: The lines of a task's output, in order.

    Returns:
        The line. Empty if there are no lines.
    """
    shown = [line for line in without_start_up_messages(lines) if line]
    return (shown or lines or [""])[-1]

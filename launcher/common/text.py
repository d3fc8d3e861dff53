"""Texts for messages: counts, lists, durations, byte sizes, suggestions, names of signals.

Python 3.8 and the standard library only: this module also runs on the hosts.
"""

from __future__ import annotations

import errno
import signal
import time
from typing import Iterable, Mapping, Optional, Sequence

#: Numbers of signals that have a name on this system.
KNOWN_SIGNALS = frozenset(map(int, signal.Signals))
#: Characters of a text of a host that are shown.
_MAX_HOST_TEXT = 2000
#: The part of the letters of two words that a misspelling has in common with the name, at the least.
_MIN_SIMILARITY = 0.75
#: Why no thread or process can be started, and what to look at.
NO_THREAD_REASON = (
    "this system starts no more threads or processes for this user: see `ulimit -u`, and pids.max of the "
    "container or the service"
)


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 40`` for a signal without a name."""
    return f"signal {number}" if number not in KNOWN_SIGNALS else signal.Signals(number).name


def plural(number: int, noun: str, plural: str = "") -> str:
    """``1 task``, ``2,013 tasks``; ``plural`` is for nouns that take more than an s (``processes``)."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def plural_roles(counts: Mapping[str, int]) -> str:
    """``1 chief, 2 workers, 1 ps``, from role -> number of its tasks."""
    return ", ".join(
        plural(number, role, role if role.endswith("s") else "") for role, number in counts.items()
    )


def duration(seconds: Optional[float]) -> str:
    """``0.3s``, ``12s``, ``3m05s``, ``2h07m`` or ``3d04h``; ``-`` if unknown."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    if not minutes:
        return f"{rest}s"
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def byte_size(size: Optional[float], binary: bool = False) -> str:
    """``512 B``, ``3.4 MB``, ``12 GB`` (1 kB is 1000 bytes); ``-`` if unknown.

    Args:
        size: bytes.
        binary: use powers of 1024 (``64 MiB``), as users write limits of memory.
    """
    if size is None:
        return "-"
    step = 1024 if binary else 1000
    units = ("B", "KiB", "MiB", "GiB", "TiB") if binary else ("B", "kB", "MB", "GB", "TB")
    index = 0
    while size >= step - 0.5 and index < len(units) - 1:
        size /= step
        index += 1
    return f"{round(size, 1 if size < 9.95 else None):g} {units[index]}"


def closest_match(written: str, known: Iterable[str]) -> str:
    """The known name of which ``written`` is a misspelling; empty if there is none.

    Case, dashes, underscores and a plural s do not count. A misspelling has more than three quarters of its
    letters in common with the name, in the same order, or all of them in another order; at most one letter is
    missing or too many, two in words of 8 letters or more. The beginning of exactly one known name counts,
    too.

    Args:
        written: the misspelt name; only its first 80 characters are compared.
        known: the correct names.
    """
    from difflib import SequenceMatcher  # noqa: PLC0415 - 2 ms, only for a fault

    word = _normalized(written)
    most, matcher = 1 + (len(word) > 7), SequenceMatcher(b=word)
    found, longer = [], []
    for name in known:
        other = _normalized(name)
        matcher.set_seq1(other)
        alike = matcher.ratio() if abs(len(other) - len(word)) <= most else 0.0
        if alike > _MIN_SIMILARITY or (len(word) > 2 and sorted(word) == sorted(other)):
            found.append((-alike, abs(len(name) - len(written)), name))
        elif len(word) > 2 and other.startswith(word):
            longer.append(name)
    if found:
        return min(found, key=lambda each: each[:2])[2]
    return longer[0] if len(longer) == 1 else ""


def _normalized(name: str) -> str:
    """The name without the differences that do not count."""
    word = name[:80].lower().replace("-", "").replace("_", "")
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def did_you_mean(written: str, known: Sequence[str], otherwise: Optional[str] = None) -> str:
    """``did you mean "count"?``, or another text if no known name is similar.

    Args:
        written: the misspelt name.
        known: the correct names.
        otherwise: the other text; ``None``: a list of all known names.
    """
    guess = closest_match(written, known)
    if guess:
        return f'did you mean "{guess}"?'
    return f"expected one of {', '.join(known)}" if otherwise is None else otherwise


def join_names(names: Sequence[str], most: int = 5) -> str:
    """``a, b, c``; of more than ``most`` names the first, and the number of others: ``a, b and 3 more``."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"


def task_range(role: str, count: int) -> str:
    """Return the names of all tasks of a role: ``worker/0 to worker/3``."""
    return f"{role}/0 to {role}/{count - 1}" if count > 1 else f"{role}/0"


def nothing_started(seconds: float) -> str:
    """The fault of a host that is connected, but where the agent does not answer."""
    return (
        f"the agent has not started there in {seconds:.0f}s; does a start-up file of its login shell "
        "(~/.bashrc?) wait, read standard input, or replace it by fish even if a command is run?"
    )


def escape_controls(text: str) -> str:
    """The text on one line, with escapes for characters that a terminal would interpret."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def sanitize_host_text(text: str) -> str:
    """A text of a host as users see it: on one line, with escapes for control characters, cut.

    So no text of a host can look like a line of launch, or change a terminal.
    """
    return shortened(escape_controls(text.strip()[: _MAX_HOST_TEXT + 1]), _MAX_HOST_TEXT)


def last_line(printed: str, otherwise: str = "") -> str:
    """Return the last line that a program on a host printed, or ``otherwise``; see `sanitize_host_text`."""
    lines = printed.strip().splitlines()
    return sanitize_host_text(lines[-1]) if lines else otherwise


def shortened(line: str, width: int) -> str:
    """The line in at most ``width`` characters."""
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


class Waiting:
    """Times for messages about a wait that begins now: after 2 s, 30 s, then after twice the time each."""

    FIRST, SECOND = 2.0, 30.0

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = self.FIRST

    @property
    def seconds(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._began

    def due(self) -> str:
        """The beginning of a message, ``waiting for``, if it is time for one; else empty."""
        waited = self.seconds
        if waited < self._next:
            return ""
        first = self._next == self.FIRST
        self._next = self.SECOND if waited < self.SECOND else 2 * waited
        return "waiting for" if first else f"still waiting, after {duration(waited)}, for"


def why_not_started(error: OSError) -> str:
    """Return why a program could not be started, for the user."""
    return NO_THREAD_REASON if error.errno == errno.EAGAIN else error.strerror or str(error)

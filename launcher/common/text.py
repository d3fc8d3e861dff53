"""Makes texts for messages: counts, lists, durations, byte sizes, suggestions, names of signals.

All packages use it. It also makes texts of hosts safe to print (`sanitize_host_text`). It runs on hosts, too,
so it must use nothing but Python 3.8 and the standard library.
"""

from __future__ import annotations

import errno
import re
import signal
import time
from typing import Iterable, Mapping, Optional, Sequence

#: The numbers of signals that have a name on this system.
KNOWN_SIGNALS = frozenset(map(int, signal.Signals))
#: Longer texts of hosts are cut to this number of characters.
_MAX_HOST_TEXT = 2000
#: Which part of its letters a misspelling must share with the name, as `difflib` computes it.
_MIN_SIMILARITY = 0.75
#: The user and the password of a URL in what stands before an @. A password may contain anything, but a port
#: is none.
_LOGIN_PATTERN = re.compile(r"(?<=://)[^/\s:@,\[]*:(?!\d+[/?,\s]).*")
#: The message where no thread or process can be started.
NO_THREAD_REASON = (
    "this system starts no more threads or processes for this user: see `ulimit -u`, and pids.max of the "
    "container or the service"
)


def signal_name(number: int) -> str:
    """Return the name of a signal: ``SIGKILL`` for 9, and ``signal 40`` for one without a name."""
    return f"signal {number}" if number not in KNOWN_SIGNALS else signal.Signals(number).name


def plural(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 task`` or ``2,013 tasks``.

    Args:
        number: The number.
        noun: The noun in the singular.
        plural: The noun in the plural, if that is not the singular with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def plural_roles(counts: Mapping[str, int]) -> str:
    """Return the numbers of tasks of roles for a message: ``1 chief, 2 workers, 2 ps``.

    A role that ends with an s, such as ``ps``, is the same in the plural.

    Args:
        counts: By role, the number of its tasks.
    """
    return ", ".join(
        plural(number, role, role if role.endswith("s") else "") for role, number in counts.items()
    )


def duration(seconds: Optional[float]) -> str:
    """Return a duration for users, such as ``0.3s``, ``12s``, ``3m05s`` or ``3d04h``. None becomes ``-``."""
    if seconds is None:
        return "-"
    # From here on, one decimal would show 10.0s.
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
    """Return a size for users: ``512 B``, ``3.4 MB`` or ``12 GB``, where 1 kB is 1000 bytes.

    Args:
        size: The number of bytes. None, which means that it is unknown, becomes ``-``.
        binary: Whether to use powers of 1024 (``64 MiB``), in which users write limits of memory.
    """
    if size is None:
        return "-"
    step = 1024 if binary else 1000
    units = ("B", "KiB", "MiB", "GiB", "TiB") if binary else ("B", "kB", "MB", "GB", "TB")
    index = 0
    # A size that would be rounded to 1000 gets the next unit.
    while size >= step - 0.5 and index < len(units) - 1:
        size /= step
        index += 1
    # Two digits: 9.9 is followed by 10.
    return f"{round(size, 1 if size < 9.95 else None):g} {units[index]}"


def closest_match(written: str, known: Iterable[str]) -> str:
    """Return the known name that the user probably meant by a misspelt one.

    Case, dashes, underscores and a plural s do not count. A misspelling shares more than three quarters of
    its letters with the name in the same order, or all of them in another order. At most one letter is
    missing or superfluous, or two in words of 8 letters or more. The beginning of exactly one known name
    counts, too.

    Args:
        written: The misspelt name, of which only the first 80 characters are compared.
        known: The correct names.

    Returns:
        The most similar name. It is empty if no name is similar enough.
    """
    from difflib import SequenceMatcher  # noqa: PLC0415 - takes 2 ms, and only a fault needs it

    word = _normalized(written)
    max_difference = 2 if len(word) > 7 else 1
    # The matcher prepares its second text once, and compares it with many first ones.
    matcher = SequenceMatcher(b=word)
    # Each similar name follows after how different it is, in letters and in length. Of a longer name, only
    # the beginning was written.
    similar, longer = [], []
    for name in known:
        other = _normalized(name)
        matcher.set_seq1(other)
        # From 0.0 to 1.0, which means equal. It is slow to compute, and useless if the lengths differ much.
        similarity = matcher.ratio() if abs(len(other) - len(word)) <= max_difference else 0.0
        # Words of two letters have too many anagrams and beginnings in common.
        if similarity > _MIN_SIMILARITY or (len(word) > 2 and sorted(word) == sorted(other)):
            similar.append((-similarity, abs(len(name) - len(written)), name))
        elif len(word) > 2 and other.startswith(word):
            longer.append(name)
    if similar:
        # Of equally similar names, the first one counts. The third item is the name.
        return min(similar, key=lambda candidate: candidate[:2])[2]
    return longer[0] if len(longer) == 1 else ""


def _normalized(name: str) -> str:
    """Return a name without case, dashes, underscores and a plural s, for comparisons."""
    # A longer name would only make comparisons slow. The s of a short name, such as "ps", is no plural.
    word = name[:80].lower().replace("-", "").replace("_", "")
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def did_you_mean(written: str, known: Sequence[str], otherwise: Optional[str] = None) -> str:
    """Return what a message says about an unknown name, such as ``did you mean "count"?``.

    Args:
        written: The unknown name.
        known: The correct names.
        otherwise: The text to return if no known name is similar. With None it lists all known names.
    """
    guess = closest_match(written, known)
    if guess:
        return f'did you mean "{guess}"?'
    return f"expected one of {', '.join(known)}" if otherwise is None else otherwise


def join_names(names: Sequence[str], max_names: int = 5) -> str:
    """Return names for a message: ``a, b, c``, or with more than ``max_names`` ``a, b and 3 more``."""
    if len(names) <= max_names:
        return ", ".join(names)
    # "and 1 more" would be no shorter than the name.
    shown = names[: max_names - 1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} more"


def task_range(role: str, count: int) -> str:
    """Return the names of all tasks of a role: ``worker/0 to worker/3``."""
    return f"{role}/0 to {role}/{count - 1}" if count > 1 else f"{role}/0"


def nothing_started(seconds: float) -> str:
    """Return the message about a host to which a connection exists, but whose agent does not answer.

    Args:
        seconds: How long the launcher has waited for the agent.
    """
    return (
        f"the agent has not started there in {seconds:.0f}s; does a start-up file of its login shell "
        "(~/.bashrc?) wait, read standard input, or replace it by fish even if a command is run?"
    )


def escape_controls(text: str) -> str:
    """Return a text on one line, with escapes for line ends and characters that a terminal interprets."""
    if text.isprintable():
        return text
    escaped = [char if char.isprintable() else char.encode("unicode_escape").decode() for char in text]
    return "".join(escaped)


def sanitize_host_text(text: str) -> str:
    """Return a text that a host sent in a form that is safe to print.

    It is one line without control characters, and long texts are cut. So no host can forge lines of launch or
    change the user's terminal.
    """
    return shortened(escape_controls(text.strip()[: _MAX_HOST_TEXT + 1]), _MAX_HOST_TEXT)


def without_passwords(text: str) -> str:
    """Return a text for messages and files, in which no URL contains a password."""
    before, at, after = text.rpartition("@")
    return f"{_LOGIN_PATTERN.sub('***', before)}{at}{after}"


def login_in(url: str) -> str:
    """Return ``USER:PASSWORD`` of a URL, or an empty text if it contains no password."""
    found = _LOGIN_PATTERN.search(url.rpartition("@")[0])
    return found[0] if found else ""


def last_line(printed: str, otherwise: str = "") -> str:
    """Return the last line that a program on a host printed, in a form that is safe to print.

    Args:
        printed: The output of the program.
        otherwise: The text to return if it printed nothing.
    """
    lines = printed.strip().splitlines()
    return sanitize_host_text(lines[-1]) if lines else otherwise


def shortened(line: str, width: int) -> str:
    """Return a line cut to at most ``width`` characters, the last of which is then ``…``."""
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


class Waiting:
    """The schedule of messages about a wait that starts now.

    A message is due after 2 s and after 30 s, and then each time the wait has doubled.
    """

    FIRST_SECONDS = 2.0
    SECOND_SECONDS = 30.0

    def __init__(self) -> None:
        """Start the wait now."""
        #: When the wait began (monotonic).
        self._started = time.monotonic()
        #: How long the wait must last until the next message is due.
        self._next_seconds = self.FIRST_SECONDS

    @property
    def seconds(self) -> float:
        """How many seconds the wait has lasted."""
        return time.monotonic() - self._started

    def due(self) -> str:
        """Return the beginning of the message that is due now, such as ``waiting for``.

        It is empty if no message is due. Each message is due once.
        """
        waited = self.seconds
        if waited < self._next_seconds:
            return ""
        is_first = self._next_seconds == self.FIRST_SECONDS
        self._next_seconds = self.SECOND_SECONDS if waited < self.SECOND_SECONDS else 2 * waited
        return "waiting for" if is_first else f"still waiting, after {duration(waited)}, for"


def why_not_started(error: OSError) -> str:
    """Return why a program could not be started, for the user.

    Args:
        error: What `subprocess` or `os.fork` raised.
    """
    return NO_THREAD_REASON if error.errno == errno.EAGAIN else error.strerror or str(error)

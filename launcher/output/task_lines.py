"""What the last lines of a task say: its traceback, TensorFlow's notices, known mistakes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from launcher.job import TaskId
from launcher.output.lines import LineCutter

#: More chunks than this are joined: a task that prints byte by byte costs no more than others.
_CHUNKS = 256
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
#: Most other lines between the lines of a traceback (a log of another thread).
_MOST_FOREIGN = 10

#: Lines of TensorFlow 2.4 to 2.21 at each start that say nothing about a failure: a part of each.
_NOTICES = (
    "All log messages before absl::InitializeLog() is called are written to STDERR",
    "oneDNN custom operations are on. You may see slightly different numerical results",
    "This TensorFlow binary is optimized ",
    "in other operations, rebuild TensorFlow with the appropriate compiler flags.",
    "Could not find cuda drivers on your machine, GPU will not be used.",
    "TF-TRT Warning: Could not find TensorRT",
    "factory: Attempting to register factory for plugin cu",
    "computation placer already registered. Please check linkage",
)

_NEEDS_FLAGS = "the program expects flags: --flags appends these, {ps_hosts} and the like fill in others"
_REFUSES_FLAGS = "--flags added these: leave it out where the program does not define them"
#: Parts of a line, all of which it has, and the hint for it.
_HINTS = (
    (
        ("ModuleNotFoundError: ",),
        "the Python that ran the task does not have this module; --python chooses another Python",
    ),
    (
        ("EOFError: EOF when reading a line",),
        "the standard input of a task is /dev/null: the program can't read from the terminal",
    ),
    (
        ("Address already in use",),
        "the task's port is held for it: a server binds it only if it sets SO_REUSEADDR (see docs/tasks.md)",
    ),
    (
        ("Attempt to convert a value (PerReplica:",),
        "`model.fit` of Keras 3 can't do that: install tf_keras of TensorFlow's version, and launch with "
        "-x TF_USE_LEGACY_KERAS=1 (`launch check` sees it beforehand)",
    ),
    (("arguments are required: ", "--ps_hosts"), _NEEDS_FLAGS),
    (("arguments are required: ", "--worker_hosts"), _NEEDS_FLAGS),
    (("arguments are required: ", "--job_name"), _NEEDS_FLAGS),
    (("flag --ps_hosts=None: ",), _NEEDS_FLAGS),  # absl
    (("flag --job_name=None: ",), _NEEDS_FLAGS),
    (("unrecognized arguments: ", "--ps_hosts"), _REFUSES_FLAGS),
    (("unrecognized arguments: ", "--worker_hosts"), _REFUSES_FLAGS),
)


class Tails:
    """The last ``size`` bytes of each task's output; a chunk is kept or dropped as a whole."""

    def __init__(self, size: int = 64 * 1024) -> None:
        self._size = size
        self._chunks: dict[TaskId, deque[bytes]] = {}
        self._sizes: dict[TaskId, int] = {}
        self._cut: set[TaskId] = set()

    def add(self, task: TaskId, data: bytes) -> None:
        """The task printed this."""
        chunks = self._chunks.setdefault(task, deque())
        chunks.append(data)
        size = self._sizes.get(task, 0) + len(data)
        while size - len(chunks[0]) >= self._size:
            size -= len(chunks.popleft())
            self._cut.add(task)
        if len(chunks) > _CHUNKS:
            self._chunks[task] = deque((b"".join(chunks),))
        self._sizes[task] = size

    def forget(self, task: TaskId) -> None:
        """The task begins anew."""
        self._chunks.pop(task, None)
        self._sizes.pop(task, None)
        self._cut.discard(task)

    def tail(self, task: TaskId) -> tuple[bytes, bool]:
        """Its last bytes, at most ``size``, and whether there was more before them."""
        data = b"".join(self._chunks.get(task, ()))
        return data[-self._size :], task in self._cut or len(data) > self._size


def clean_lines(data: bytes, cut: bool) -> list[str]:
    """Output as the console shows it, without blank lines at its end.

    Args:
        data: raw bytes.
        cut: there was more before them, so the first line is not whole.
    """
    cutter = LineCutter(b"", b"", interval=float("inf"))
    text = (cutter.feed(data, 0.0) + cutter.end()).decode("utf-8", "replace").rstrip()
    lines = text.split("\n") if text else []
    return lines[1:] if cut and len(lines) > 1 else lines


def without_notices(lines: Sequence[str]) -> list[str]:
    """The lines without those that TensorFlow prints at each start."""
    return [line for line in lines if not any(notice in line for notice in _NOTICES)]


def hints(lines: Sequence[str]) -> list[str]:
    """A hint for each known mistake that these lines show."""
    found = (hint for parts, hint in _HINTS if any(all(part in line for part in parts) for line in lines))
    return list(dict.fromkeys(found))


class Block(NamedTuple):
    """Lines ``start`` to ``end`` (not included)."""

    start: int
    end: int


def last_traceback(lines: Sequence[str]) -> Block | None:
    """The last complete Python traceback; it begins with the first one that it is chained to."""
    found: Block | None = None
    for start, line in enumerate(lines):
        end = _traceback_end(lines, start) if _TRACEBACK in line else 0
        if end:
            found = Block(found.start if found and _is_chained(lines, found.end, start) else start, end)
    return found


def _traceback_end(lines: Sequence[str], start: int) -> int:
    """The line after the exception: the first that is not indented and looks like one; 0 if there is none."""
    prefix = lines[start][: lines[start].index(_TRACEBACK)].removesuffix("+ Exception Group ")
    foreign = 0
    for at in range(start + 1, len(lines)):
        line = lines[at].removeprefix(prefix)
        if line.startswith((" ", "\t")):
            continue
        if re.match(r"[A-Za-z_][\w.]*(?::|$)", line):
            return at + 1
        foreign += 1
        if _TRACEBACK in line or foreign > _MOST_FOREIGN:
            return 0
    return 0


def _is_chained(lines: Sequence[str], end: int, start: int) -> bool:
    between = [line for line in lines[end:start] if line.strip()]
    return 0 < len(between) <= 1 + _MOST_FOREIGN and any(between[-1].endswith(text) for text in _CHAINED)

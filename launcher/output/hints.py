"""What a task's own last lines say about the launch: what the user could do about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

#: What a line holds (all of it), and what to say then.
_HINTS = (
    (
        ("ModuleNotFoundError: ",),
        "the Python that ran the task has no such module; --python chooses another Python",
    ),
    (
        ("EOFError: EOF when reading a line",),
        "a task's input is /dev/null: there is nobody to type something",
    ),
    (
        ("Address already in use",),
        "the task's port is held for it: a server binds it only if it sets SO_REUSEADDR (see docs/tasks.md)",
    ),
    (
        ("unrecognized arguments: ", "--ps_hosts"),
        "--flags added these: leave it out where the program does not know them",
    ),
    (
        ("unrecognized arguments: ", "--worker_hosts"),
        "--flags added these: leave it out where the program does not know them",
    ),
)


def hints(lines: Sequence[str]) -> list[str]:
    """One sentence for each mistake that these lines tell of."""
    found = (said for marks, said in _HINTS if any(all(mark in line for mark in marks) for line in lines))
    return list(dict.fromkeys(found))

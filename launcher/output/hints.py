"""What a task's own last lines say about the launch: what the user could do about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

#: A program that takes its cluster as flags, and one that does not: each got what the other wants.
_TAKES_FLAGS = "the program wants flags: launch --flags appends these, {ps_hosts} and the like fill in others"
_TAKES_NONE = "--flags added these: leave it out where the program does not know them"

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
        ("Attempt to convert a value (PerReplica:",),
        "`model.fit` of Keras 3 can't do that: install tf_keras of TensorFlow's version, and launch with "
        "-x TF_USE_LEGACY_KERAS=1 (`launch check` sees it beforehand)",
    ),
    (("arguments are required: ", "--ps_hosts"), _TAKES_FLAGS),
    (("arguments are required: ", "--worker_hosts"), _TAKES_FLAGS),
    (("arguments are required: ", "--job_name"), _TAKES_FLAGS),
    (("flag --ps_hosts=None: ",), _TAKES_FLAGS),  # absl
    (("flag --job_name=None: ",), _TAKES_FLAGS),
    (("unrecognized arguments: ", "--ps_hosts"), _TAKES_NONE),
    (("unrecognized arguments: ", "--worker_hosts"), _TAKES_NONE),
)


def hints(lines: Sequence[str]) -> list[str]:
    """One sentence for each mistake that these lines tell of."""
    found = (said for marks, said in _HINTS if any(all(mark in line for mark in marks) for line in lines))
    return list(dict.fromkeys(found))

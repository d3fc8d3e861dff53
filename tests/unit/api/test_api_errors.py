"""The exceptions that a program sees."""

from __future__ import annotations

import pickle

import pytest

from launcher.errors import Fault, FeedTimeout, HostsError, InputError, JobFailed, LaunchError, TaskFailed


@pytest.mark.parametrize(
    "error",
    [
        InputError([Fault("a:1", "wrong"), Fault("", "worse", "expected better")]),
        HostsError(["node1: gone"]),
        JobFailed("too late", "/run", 124),
        TaskFailed("worker/0 was killed", "worker/0", "node1", None, 9, "", ["a line"], "/run"),
        TaskFailed("worker/0 raised", "worker/0", "", 1, None, "Traceback...", ["a line"]),
        FeedTimeout("worker/0", 600.0, ["a line"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_they_travel(error: LaunchError):
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_last_lines_are_shown_where_there_is_no_traceback():
    assert "a line" in str(TaskFailed("it was killed", "worker/0", last_lines=["a line"]))
    raised = TaskFailed("it raised", "worker/0", traceback="Traceback: x", last_lines=["a line"])
    assert str(raised) == "it raised\nTraceback: x" and raised.last_lines == ("a line",)

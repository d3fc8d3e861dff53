"""What a task tells of a function that fails."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest

import launcher.feed.remote.data_feed  # noqa: F401 - as in a task that is fed
from launcher.api.context import TFNodeContext
from launcher.api.payload import dumps
from launcher.api.runner import work
from launcher.api.talk import Said, Word


def told(function: Any, results: bool = False) -> Said:
    """What the driver is told when this function is run."""
    said: list[Said] = []
    pickles = [dumps(function, "the function"), dumps(None, "its arguments")]
    assert work(Said(Word.WORK, {"results": results}, pickles), TFNodeContext(), said.append) == 1
    return said[-1]


def test_an_error_of_ours_is_told_without_our_own_functions(capfd: pytest.CaptureFixture[str]):
    def fun(args: Any, ctx: Any) -> None:
        ctx.absolute_path(None)

    def ours(args: Any, ctx: Any) -> None:
        dumps(threading.Lock(), "a lock")

    assert "in absolute_path" in told(fun).facts["traceback"]
    shown = told(ours).facts["traceback"]
    assert 'dumps(threading.Lock(), "a lock")' in shown and "payload.py" not in shown
    assert shown in capfd.readouterr().err


def test_a_result_that_can_not_be_carried():
    said = told(lambda args, ctx: threading.Lock(), results=True)
    assert "the result of the function can't be carried to the program" in said.facts["what"]
    assert "Traceback" not in said.facts["traceback"]
    assert said.facts["what"].endswith(str(said.facts["traceback"]).partition(": ")[2])


def test_what_is_raised_with_a_handler_for_the_end_may_have_come_of_it():
    def fail(args: Any, ctx: Any) -> None:
        raise ValueError

    assert told(fail).facts["unasked"]
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert not told(fail).facts["unasked"]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("end", [lambda: None, lambda: sys.exit(0), sys.exit])
def test_whoever_ends_well_ends_the_feeds_first(end: Any, monkeypatch: pytest.MonkeyPatch):
    order: list[Any] = []
    monkeypatch.setattr("launcher.feed.remote.data_feed.end_all", lambda: order.append("feeds"))
    pickles = [dumps(lambda args, ctx: end(), "the function"), dumps(None, "its arguments")]
    work(Said(Word.WORK, {"results": False}, pickles), TFNodeContext(), lambda said: order.append(said.word))
    assert order == ["feeds", Word.DONE]

"""A task's own connection, without a task."""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.api.members import Member, raised
from launcher.api.payload import dumps
from launcher.api.talk import Said, Word, hear, say
from launcher.feed.listener import Peer
from launcher.feed.remote.arrival import carried
from tests.local.seeing import soon

OURS = list(sys.version_info[:2])


@pytest.fixture
def member() -> Iterator[Member]:
    made = Member(
        "worker/0", b"modules", Said(Word.WORK, {"slot": False}, [b"work"]), lambda member, said: None
    )
    yield made
    made.close()


def coming(member: Member, **hello: Any) -> socket.socket:
    """The task's end of a connection to it."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    member.come(Peer("worker/0", 1, "member", "", {"python": OURS, **hello}, theirs))
    return ours


def test_it_is_given_modules_and_work_and_says_how_that_went(member: Member):
    with coming(member) as line:
        assert carried(line) == b"modules"
        work = hear(line)
        assert work is not None and (work.word, work.facts, bytes(work.pickles[0])) == (
            Word.WORK,
            {"slot": False},
            b"work",
        )
        facts = {"what": "ValueError: x", "traceback": "", "code": 1}
        say(line, Said(Word.RAISED, facts, [dumps(ValueError("x"), "it")]))
        thanks = hear(line)
        assert thanks is not None and thanks.word is Word.THANKS
    assert member.silent.wait(20)
    assert member.outcome is not None and isinstance(raised(member.outcome), ValueError)


def test_another_python_is_told_so(member: Member):
    with (
        coming(member, python=[3, 7]) as line,
        pytest.raises(SystemExit, match=r"worker/0: it runs Python 3\.7"),
    ):
        carried(line)
    assert member.here.wait(20) and "Python 3.7" in member.refused


def test_it_comes_again_after_its_connection_has_broken(member: Member):
    first = coming(member)
    carried(first)
    hear(first)
    with coming(member, again=True) as second:
        say(second, Said(Word.DONE))
        thanks = hear(second)
        assert thanks is not None and thanks.word is Word.THANKS
    first.close()
    assert member.replied.is_set()


def test_an_exception_that_can_not_be_made_here_is_none():
    assert raised(Said(Word.RAISED, {}, [b"no pickle"])) is None
    assert raised(Said(Word.DONE)) is None


def test_a_task_that_reads_nothing_keeps_nobody_at_the_door(member: Member):
    first = coming(member, again=True)
    told: list[BaseException] = []

    def tell() -> None:
        try:
            member.say(Said(Word.START, {"number": 1}, [bytes(5_000_000)]))
        except OSError as error:
            told.append(error)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    assert soon(lambda: select.select([first], [], [], 0)[0], 20)
    comes = threading.Thread(target=lambda: lines.append(coming(member, again=True)), daemon=True)
    lines: list[socket.socket] = []
    comes.start()
    comes.join(20)
    assert lines, "it comes in all the same"
    teller.join(20)
    assert told, "and what was being said has broken off"
    member.say(Said(Word.START, {"number": 1}))
    heard = hear(lines[0])
    assert heard is not None and heard.facts == {"number": 1}
    for line in (first, *lines):
        line.close()

"""Which tasks are there, and who is let in."""

from __future__ import annotations

from launcher.feed.roll import Roll


def test_who_is_there():
    roll = Roll(["worker/0", "worker/1"])
    assert roll.admit("worker/0", 1, "a") == "" and roll.missing == []
    roll.ended("worker/0", 1, "was killed by SIGKILL", again=False)
    assert roll.missing == ["worker/0"] and list(roll.alive) == ["worker/1"]
    assert roll.losses == "worker/0 was killed by SIGKILL"


def test_an_attempt_that_has_ended_is_refused_and_a_later_one_is_there_again():
    roll = Roll(["worker/0"])
    roll.ended("worker/0", 2, "was killed", again=False)
    assert "has ended" in roll.admit("worker/0", 1, "a")
    assert "has ended" in roll.admit("worker/0", 2, "a")
    assert roll.missing == ["worker/0"]
    assert roll.admit("worker/0", 3, "a") == "" and roll.missing == []


def test_who_is_to_come_again_is_awaited():
    roll = Roll(["worker/0"])
    roll.ended("worker/0", 1, "was killed", again=True)
    assert roll.missing == [] and "has ended" in roll.admit("worker/0", 1, "a")


def test_strangers_and_those_who_were_given_up():
    roll = Roll(["worker/0"])
    roll.give_up("a", "away for too long")
    assert "away for too long" in roll.admit("worker/0", 1, "a")
    assert roll.admit("ps/0", 1, "b") == "ps/0 is not fed; fed are worker/0"

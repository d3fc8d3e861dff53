"""The ladder of one task, by the clock; and watermarks and limits."""

from __future__ import annotations

import os
import resource
import signal

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.agent.limits import Limits
from launcher.agent.task import Ending
from launcher.model.watermark import agent_number, is_of_agent, read_watermark, watermark
from launcher.processes import kernel

LADDER = ((15, 10.0), (6, 2.0), (9, 5.0))


def test_a_ladder_is_climbed_when_its_time_has_come():
    ending = Ending(LADDER, 100.0)
    seen = []
    for now in (100.0, 109.9, 110.0, 111.9, 112.0, 116.9):
        assert ending.climb(now)
        seen.append(ending.signal)
    assert seen == [15, 15, 6, 6, 9, 9]
    assert not ending.climb(117.0)


def test_a_new_rung_is_not_sent_yet():
    ending = Ending(LADDER, 0.0)
    ending.sent, ending.group = True, 7
    assert ending.climb(9.0)
    assert _state(ending) == (True, 7)
    assert ending.climb(10.0)
    assert _state(ending) == (False, None)


def _state(ending: Ending) -> tuple[bool, int | None]:
    return ending.sent, ending.group


def test_a_late_climb_gives_each_rung_its_time():
    ending = Ending(LADDER, 0.0)
    assert ending.climb(1000.0)
    assert ending.signal == 6
    assert ending.climb(1001.9)
    assert ending.signal == 6


def test_looks_are_slow_while_asking_and_never_late():
    ending = Ending(LADDER, 0.0)
    assert ending.next_look(1.0, 0.01, 0.25) == 1.25
    assert ending.next_look(9.9, 0.01, 0.25) == 10.0
    ending.climb(10.0)
    ending.climb(12.0)
    assert ending.next_look(12.0, 0.01, 0.25) == 12.01


def test_a_ladder_that_is_over_is_not_looked_at_all_the_time():
    ending = Ending(LADDER, 0.0)
    assert ending.next_look(1000.0, 0.01, 0.25) == 1000.01


@settings(deadline=None)
@given(st.integers(min_value=0), st.integers(min_value=0), st.integers(0, 1 << 24))
def test_watermarks_tell_agents_apart(one: int, other: int, ordinal: int):
    one, other = agent_number(one), agent_number(other)
    number = watermark(one, ordinal)
    assert 0 < number < 1 << 63
    assert is_of_agent(number, one)
    assert is_of_agent(number, other) == (one == other)
    assert not is_of_agent(0, one)


def test_reading_watermarks():
    line = b"Max realtime timeout      %-20s %-20s us        \n"
    head = b"Limit                     Soft Limit           Hard Limit           Units     \n"
    assert read_watermark(head + line % (b"5764607523034234881", b"unlimited")) == 5764607523034234881
    for nothing in (b"", head, head + line % (b"unlimited", b"unlimited"), b"Max realtime timeout "):
        assert read_watermark(nothing) == 0


def test_limits_are_lent_and_taken_back():
    before = {name: resource.getrlimit(name) for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_RTTIME)}
    soft, hard = before[resource.RLIMIT_NOFILE]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        limits = Limits(5)
        limits.make_room(100)
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        number = limits.lend(3)
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        limits.take_back()
        assert kernel.watermark_of(pid) == number == watermark(5, 3)
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == min(soft, 256)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
        assert raised[0] > 400
        assert resource.getrlimit(resource.RLIMIT_RTTIME) == before[resource.RLIMIT_RTTIME]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert kernel.watermark_of(pid) == 0
    finally:
        for name, limit in before.items():
            resource.setrlimit(name, limit)

"""The process that owns a run: never another one with the same pid."""

from __future__ import annotations

from launcher.runs.owner import is_alive, is_elsewhere, open_pidfd, start_ticks
from tests.unit.runs.conftest import Sleeper, owner_of


def test_the_same_pid_at_another_time_is_another_process(sleeper: Sleeper):
    process = sleeper()
    owner = owner_of(process)
    others = [
        owner._replace(start_ticks=owner.start_ticks - 1),
        owner._replace(boot_id="another boot"),
        owner._replace(machine="another machine"),
        owner._replace(pid_namespace="pid:[1]"),
    ]
    for other in others:
        assert not is_alive(other)
        assert open_pidfd(other) is None
    assert process.poll() is None
    assert [is_elsewhere(other) for other in others] == [False, False, True, True]


def test_a_zombie_is_over(sleeper: Sleeper):
    process = sleeper()
    owner = owner_of(process)
    process.kill()
    while start_ticks(process.pid) is not None:
        pass
    assert not is_alive(owner)

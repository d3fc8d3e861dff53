"""Which processes a sweep finds."""

from __future__ import annotations

import pytest

from launcher.agent import processes, sweep
from launcher.agent.processes import Process


def test_a_pid_that_another_process_gets_between_two_looks(monkeypatch: pytest.MonkeyPatch):
    tags = {7: processes.tag(5, 1), 8: processes.tag(5, 2)}

    def look_at(pid: int) -> Process:
        tags.pop(8, None)  # its process has ended, and one without a tag has its pid
        return Process(pid, state="S", parent=1, group=pid, session=pid, start=100)

    monkeypatch.setattr(processes, "all_pids", lambda: [8, 7])
    monkeypatch.setattr(processes, "read_process", look_at)
    monkeypatch.setattr(sweep, "tag_of", lambda pid: tags.get(pid, 0))
    assert [process.pid for process in sweep.tagged()[5]] == [7]

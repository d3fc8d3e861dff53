"""Evidence of an out-of-memory kill: what counts. Real ones are in tests/contract/test_exits.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.agent import host as oom


class Kernel:
    """The files that the kernel would show, and its log."""

    def __init__(self, folder: Path) -> None:
        self.vmstat, self.events, self.log = folder / "vmstat", folder / "memory.events", folder / "kmsg"
        self.counts(machine=3, group=1)
        self.log.touch()

    def counts(self, machine: int, group: int) -> None:
        """What it has counted so far."""
        self.vmstat.write_text(f"oom_killer 9\noom_kill {machine}\nnuma_hit 5\n")
        self.events.write_text(f"low 0\noom 2\noom_kill {group}\noom_group_kill 0\n")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel whose log cannot be read."""
    it = Kernel(tmp_path)
    monkeypatch.setattr(oom, "_MACHINE_COUNTERS", str(it.vmstat))
    monkeypatch.setattr(oom, "_group_count_files", lambda: [str(it.events)])
    monkeypatch.setattr(oom, "KernelLog", lambda: Log(""))
    return it


class Log:
    """A kernel log that says one thing."""

    def __init__(self, text: str, readable: bool = False) -> None:
        self._text = text
        self.readable = readable

    def record_of(self, pid: int) -> str:
        """See `oom.KernelLog`."""
        return self._text


def test_a_count_of_our_group_stands_for_one_process(kernel: Kernel):
    watch = oom.OomWatch()
    kernel.counts(machine=5, group=3)
    assert "from 1 to 3" in watch.evidence(7)
    assert "from 2 to 3" in watch.evidence(8)
    assert watch.evidence(9) == ""


def test_kills_elsewhere_are_not_ours(kernel: Kernel):
    watch = oom.OomWatch()
    kernel.counts(machine=4, group=1)
    assert watch.evidence(7) == ""


def test_the_machines_count_where_there_is_nothing_else(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oom, "_group_count_files", list)
    watch = oom.OomWatch()
    kernel.counts(machine=4, group=1)
    assert "from 3 to 4" in watch.evidence(7)
    assert watch.evidence(8) == ""


def test_the_real_files_are_found():
    assert all(path.startswith("/sys/fs/cgroup") for path in oom._group_count_files())
    assert oom._kill_count(oom._MACHINE_COUNTERS) is not None

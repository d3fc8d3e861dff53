"""Only what an agent of this user started, and has none any more, is ended."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from launcher.model.watermark import agent_number, agent_of, is_of_agent, ordinal_of, watermark
from launcher.processes import kernel, sweep
from tests.local.seeing import soon

#: Becomes what its arguments say, then a sleeping process of a name, with a child that has a mark.
FAMILY = """
import os, resource, sys, time
from launcher.processes import kernel
name, own, mark = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
resource.setrlimit(resource.RLIMIT_RTTIME, (mark, hard))
if os.fork() == 0:
    os.execvp("sleep", ["sleep", "600"])
resource.setrlimit(resource.RLIMIT_RTTIME, (own if own else hard, hard))
if name:
    kernel.become_subreaper(name)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def number() -> int:
    """Of an agent that nobody else has."""
    return agent_number(int.from_bytes(os.urandom(8), "little"))


@pytest.fixture
def family(number: int) -> Iterator[Callable[[str, int], int]]:
    """Starts a parent (its name, its own mark) and a child with a task's mark: the child's pid."""
    parents: list[subprocess.Popen[bytes]] = []
    children: list[int] = []

    def start(name: str, own: int) -> int:
        argv = [sys.executable, "-c", FAMILY, name, str(own), str(watermark(number, 7))]
        parents.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
        stdout = parents[-1].stdout
        assert stdout is not None
        assert stdout.readline() == b"up\n"
        children.extend(kernel.children_of(parents[-1].pid))
        return children[-1]

    yield start
    for parent in parents:
        for process in kernel.descendants_of(parent.pid):
            kernel.send(process, 9)
        parent.kill()
        parent.communicate()


def pids(processes: list[kernel.Process]) -> set[int]:
    return {process.pid for process in processes}


def test_marks_are_told_apart(number: int):
    assert agent_of(watermark(number, 12)) == number
    assert ordinal_of(watermark(number, 12)) == 12
    assert ordinal_of(watermark(number, 0)) == 0
    assert is_of_agent(watermark(number, 12), number)
    assert [agent_of(other) for other in (0, -1, 1000, 2**63 - 1, 4 << 60)] == [None] * 5


def test_a_process_whose_agent_is_gone_is_lost(number: int, family: Callable[[str, int], int]):
    child = family("", 0)
    assert pids(sweep.marked()[number]) == {child}
    assert child in pids(sweep.lost())
    assert os.getpid() not in pids(sweep.lost())


@pytest.mark.parametrize("name", ["launch-agent", "launch-guardian"])
def test_below_an_agent_or_guardian_nobody_is_lost(name: str, number: int, family: Callable[[str, int], int]):
    child = family(name, 0)
    assert child in pids(sweep.marked()[number])
    assert child not in pids(sweep.lost())


def test_while_somebody_keeps_the_mark_nobody_is_lost(number: int, family: Callable[[str, int], int]):
    """A porter, that has no other name here, and whose child the lost one is not."""
    lost = family("", 0)
    keeper = family("", watermark(number, 0))
    assert pids(sweep.marked()[number]) >= {lost, keeper}
    assert not {lost, keeper} & pids(sweep.lost())


def test_of_one_agent_all_are_killed_and_nobody_else(number: int, family: Callable[[str, int], int]):
    child = family("", watermark(number, 0))
    before = subprocess.Popen(["sleep", "600"])
    try:
        assert sweep.sweep(number, 40.0) == []
        assert number not in sweep.marked()
        found = kernel.look_at(child)
        assert found is None or found.ended
        assert before.poll() is None
    finally:
        before.kill()
        before.wait()


def test_a_machine_that_stood_still_has_not_shown_that_something_can_not_be_killed(
    number: int, family: Callable[[str, int], int], monkeypatch: pytest.MonkeyPatch
):
    family("", watermark(number, 0))
    now = 0.0

    def stand_still(process: kernel.Process, sent: int) -> bool:
        nonlocal now
        there = send(process, sent)
        now += 60.0
        soon(lambda: (seen := kernel.look_at(process.pid)) is None or seen.ended)
        return there

    send = kernel.send
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "send", stand_still)
        patch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
        assert sweep.sweep(number, 5.0) == []


def test_carrying_the_mark_is_passed_on_and_can_fail_quietly(number: int):
    code = (
        "import resource, subprocess, sys\n"
        "from launcher.processes import kernel, sweep\n"
        "sweep.carry_mark(int(sys.argv[1]))\n"
        "import os; print(kernel.watermark_of(os.getpid()))\n"
        "child = subprocess.Popen(['sleep', '60']); print(kernel.watermark_of(child.pid)); child.kill()\n"
        "child.wait()\n"
        "resource.setrlimit(resource.RLIMIT_RTTIME, (1000, 1000)); sweep.carry_mark(5)\n"
        "print(resource.getrlimit(resource.RLIMIT_RTTIME))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(number)], capture_output=True, text=True, check=True, timeout=50
    )
    mark = str(watermark(number, 0))
    assert done.stdout.splitlines() == [mark, mark, "(1000, 1000)"]
    assert resource.getrlimit(resource.RLIMIT_RTTIME)[0] != int(mark)

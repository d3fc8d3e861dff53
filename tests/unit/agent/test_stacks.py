"""What an agent answers about stacks, whatever py-spy prints; tasks that admit the agent as their tracer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest

from launcher.agent import processes, stacks
from launcher.agent.spawn import Spawner
from launcher.common.errors import LaunchError
from launcher.common.record import replace
from launcher.common.validation import FieldReader
from launcher.runs.stacks import Stacks


def _thread(name: str | None = "MainThread", frames: int = 1, function: str = "f", **more: object) -> object:
    """A thread of py-spy's JSON."""
    frame = {"name": function, "filename": "/a/b.py", "line": 3}
    return {"pid": 7, "os_thread_id": 7, "thread_name": name, "frames": [frame] * frames, **more}


@pytest.mark.parametrize(
    ("printed", "names"),
    [
        ([_thread()], ["MainThread"]),
        ([_thread("b"), _thread()], ["MainThread", "b"]),
        ([_thread(None)], ["MainThread"]),
        ([_thread(None, os_thread_id=8)], ["unnamed"]),
        ([_thread(f"t{number}", frames=900) for number in range(50)], ["t0"]),
        ([_thread("\x1b[2J", function="\n" * 999)], ["\\x1b[2J"]),
    ],
)
def test_what_tasks_decide_is_bounded(printed: object, names: list[str]):
    """The launcher accepts it, and it is harmless for a terminal."""
    answer = stacks._answer("worker/0", [(0, json.dumps(printed).encode(), b"")])
    assert len(json.dumps(answer)) < 40_000
    read = Stacks(*FieldReader(tasks={"worker/0"}).read(Stacks, answer))
    assert [thread.name for thread in read.threads][: len(names)] == names
    assert all(frame.isprintable() for thread in read.threads for frame in thread.frames)


@pytest.mark.parametrize("printed", [b"", b"{", b"[7]", b'[{"frames": 7}]', b"7", b"[" * 99_999])
def test_what_is_no_answer_of_py_spy(printed: bytes):
    answer = stacks._answer("worker/0", [(1, printed, b"Error: gone\nand more")])
    assert answer == {"tasks": ["worker/0"], "threads": [], "note": "py-spy cannot read it: Error: gone"}


def test_a_python_that_ends_has_no_stack():
    answer = stacks._answer("worker/0", [(0, b"[]", b"")])
    assert answer["threads"] == [] and "no Python code" in answer["note"]


@pytest.mark.parametrize(
    ("scope", "advice"),
    [("1", "exec python"), ("2", "ptrace_scope=1` on"), ("3", "restart"), ("", "--cap-add SYS_PTRACE")],
)
def test_what_allows_it(monkeypatch: pytest.MonkeyPatch, scope: str, advice: str):
    monkeypatch.setattr(processes, "ptrace_scope", lambda: scope)
    note = stacks._answer("worker/0", [(1, b"", b"Error: Permission Denied (os error 1)")])["note"]
    assert "the kernel does not let py-spy read it" in note
    assert advice in note


# ---------------------------------------------------------------------- ptrace_scope=1


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    """What starts tasks where the kernel asks for their permission to be traced."""
    made = Spawner(1)
    made.tracer = os.getpid()
    yield made
    for fd in (made._start_folder, made._null, made._inherited):
        os.close(fd)


def test_a_task_that_admits_its_agent_starts_like_any_other(spawner: Spawner):
    """Except that a fork starts it: its session, its streams and its signals are the same."""
    code = "import os; print(os.getsid(0) == os.getpid(), os.read(0, 1), *os.sched_getaffinity(0), sep='\\n')"
    code += "; print(*(line for line in open('/proc/self/status') if line.startswith('SigBlk')))"
    found = []
    for tracer in (os.getpid(), 0):
        spawner.tracer = tracer
        started = spawner.spawn(spawner.prepare((sys.executable, "-c", code), {}))
        os.waitpid(started.pid, 0)
        found.append(os.read(started.output, 9999))
        os.close(started.output)
    assert found[0] == found[1]
    assert found[0].startswith(b"True\nb''\n")
    assert b"SigBlk:\t0000000000000000" in found[0]


def test_a_task_that_can_not_start_says_why(spawner: Spawner):
    prepared = spawner.prepare(("/bin/true",), {})
    with pytest.raises(LaunchError, match="larger than the kernel allows"):
        spawner.spawn(replace(prepared, argv=["true", *["x" * 100_000] * 200]))
    assert processes.ended_child() in (None, 0)

"""How the Python stacks of tasks are folded and shown."""

from __future__ import annotations

from launcher.common.cluster import TaskId
from launcher.runs.stacks import Stacks, ThreadStack, fold, stack_lines, summary_lines


def _at(task: str, *functions: str, line: int = 7, **more: str) -> Stacks:
    """The stacks of a task whose main thread is in these functions, the innermost first."""
    frames = tuple(f"{function} (train.py:{line})" for function in functions)
    return Stacks((TaskId(task),), (ThreadStack("MainThread", frames),) if functions else (), **more)


def test_the_odd_one_comes_first_and_those_without_stacks_last():
    """Tasks of a role are folded by the places of their main threads."""
    workers = [_at(f"worker/{number}", "wait", "train") for number in (0, 1, 2, 4)]
    groups = fold(
        [
            *workers,
            _at("worker/5", "wait", "train"),
            _at("worker/3", "sleep", "train"),
            _at("ps/0", "wait", "train"),
            _at("ps/1", note="it is no Python program"),
        ]
    )
    assert [group.names for group in groups] == ["worker/3", "ps/0", "worker[0-2,4-5]", "ps/1"]
    assert [*summary_lines(groups)] == [
        "worker/3 in sleep (train.py:7)",
        "ps/0 in wait (train.py:7)",
        "worker[0-2,4-5] in wait (train.py:7)",
    ]
    assert [*stack_lines(groups)][-4:] == [
        "worker[0-2,4-5]: the same",
        "    wait (train.py:7)",
        "    train (train.py:7)",
        "ps/1: it is no Python program",
    ]


def test_another_line_of_the_same_function_is_another_place():
    assert len(fold([_at("worker/0", "step"), _at("worker/1", "step", line=8)])) == 2

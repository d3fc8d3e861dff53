"""The use of GPUs by tasks, as a simulated ``nvidia-smi`` tells it. No real GPU is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from launcher.agent import lookup
from launcher.agent.measuring import GpuUse

GPUS = "0, GPU-aa, 80\n1, GPU-bb, 20\n2, GPU-cc, [N/A]\n"
PROCESSES = "100, GPU-aa, 500\n101, GPU-bb, 300\n102, GPU-bb, [N/A]\n200, GPU-cc, 7\n"


class Simulated:
    """Answers instead of children that run ``nvidia-smi``, and counts how often it is asked."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), 0

    def ask(self, function: Any, seconds: float, *, on_answer: Callable[[bytes], None]) -> None:
        self.asked += 1
        on_answer(self.answers.pop(0).encode())


@pytest.fixture(autouse=True)
def is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "is_command", lambda name: name == "nvidia-smi")


@pytest.mark.parametrize(
    ("assigned", "pids", "expected"),
    [
        ("", {100}, (80.0, 500 << 20)),
        ("", {100, 101, 7}, (50.0, 800 << 20)),
        ("", {7}, (None, 0)),
        ("1", {7}, (20.0, 0)),
        ("0,1", {101}, (50.0, 300 << 20)),
        ("GPU-bb", {102}, (20.0, 0)),
        ("2", {200}, (None, 7 << 20)),
        ("9", {100}, (None, 500 << 20)),
    ],
)
def test_what_a_task_uses(assigned: str, pids: set[int], expected: tuple[float | None, int]):
    children: Any = Simulated(GPUS, PROCESSES)
    gpus = GpuUse(children)
    assert gpus.of(assigned, pids) == (None, 0)
    gpus.refresh(1.0)
    gpus.refresh(1.0)
    assert children.asked == 2, "it is asked anew only some seconds later"
    assert gpus.of(assigned, pids) == expected


@pytest.mark.parametrize(
    "answer", ["", "NVIDIA-SMI has failed because it couldn't communicate", "0, x", "\xff"]
)
def test_a_driver_that_does_not_work_is_not_asked_again(answer: str):
    children: Any = Simulated(answer)
    gpus = GpuUse(children)
    for now in (1.0, 1e6):
        gpus.refresh(now)
    assert children.asked == 1 and gpus.of("0", {1}) == (None, 0)

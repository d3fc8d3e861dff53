# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.common.cluster import TaskId
from launcher.output.tensorflow_notices import (
    Folding,
    TaskFolding,
    last_of_program,
)
from launcher.package_data import read_table

#: A line for each notice, as TensorFlow prints it.
NOTICES = Path(__file__).with_name("start_up_notices.txt")
TASKS_PAGE = Path(__file__).resolve().parents[3] / "docs" / "tasks.md"
W0, W1 = TaskId("worker/0"), TaskId("worker/1")
TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: no such thing
"""


def folds(folding: Folding) -> list[TaskFolding]:
    return [TaskFolding(task, f"{task} | ".encode(), folding) for task in (W0, W1)]


def fed(fold: TaskFolding, text: str) -> str:
    """What is shown of these lines, without the prefix."""
    prefix = fold._prefix.decode()
    lines = "".join(f"{prefix}{line}\n" for line in text.splitlines())
    return fold.feed(lines.encode()).decode().replace(prefix, "")


@pytest.mark.promise("start-up notices are folded on a terminal only; the docs show such lines")
def test_all_notices_are_folded():
    listed = NOTICES.read_text().splitlines()
    assert [line for line in listed if fed(folds(Folding())[0], line)] == []
    notices = read_table("output/notices.toml")
    patterns = (*notices["build"], *notices["server"])
    assert [pattern for pattern in patterns if not any(re.search(pattern, line) for line in listed)] == []
    shown = re.findall(r"^[IWE]0000 .*$", TASKS_PAGE.read_text(), re.M)
    assert shown and set(shown) <= set(listed)


@pytest.mark.parametrize(
    "line",
    [
        "E0000 00:00:1 7 cuda_driver.cc:152] failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error",
        "E0000 00:00:1 7 grpc_server_lib.cc:545] Could not start gRPC server",
        "F0000 00:00:1 7 cpu_feature_guard.cc:57] The TensorFlow library was compiled to use AVX",
        "Waiting for 1/2 tasks to connect",
        "}",
        "",
    ],
)
def test_errors_and_lines_of_the_program_are_no_notices(line: str):
    assert fed(folds(Folding())[0], f"{line}\n") == f"{line}\n"


def test_the_options_of_a_session_end_with_an_empty_line():
    first = "I0000 00:00:1 7 eager_service_impl.cc:355] SessionOptions: goo.gle/debugproto\n"
    options = 'device_count {\n  key: "CPU"\n  value: 1\n}\nallow_soft_placement: true\n\n'
    folding = Folding()
    fold, other = folds(folding)
    assert fed(fold, first + options + "}\nloss: 1\n") == "}\nloss: 1\n"
    assert fed(other, first + "device_count {\nloss: 1\n  2\n") == "loss: 1\n  2\n"
    assert folding.summary().startswith("9 start-up notices of TensorFlow (2 tasks) are in the logs")


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ("", ""),
        ("step 1\n\nstep 2", "step 2"),
        ("step 1\n}", "}"),
        ("step 1\nI0000 00:00:1.5 7 eager_service_impl.cc:355] SessionOptions: \ndevice_count {\n  value: 1\n}", "step 1"),
        ("step 1\nI0000 00:00:1795645751.12   31292 kernel_and_device.cc:101] Ignoring error status when", "step 1"),
        ("step 1\n2024-05-06 07:08:09.123456: W tensorflow/core/data/dataset.cc:997] Input of", "step 1"),
        ("step 1\nE0000 00:00:1.5 7 grpc_server_lib.cc:545] Could not start gRPC server", None),
        ("I0000 00:00:1.5 7 a.cc:1] one\nI0000 00:00:1.5 7 a.cc:1] two", "I0000 00:00:1.5 7 a.cc:1] two"),
    ],
)  # fmt: skip
def test_the_last_line_of_the_program(lines: str, last: str | None):
    assert last_of_program(lines.splitlines()) == (lines.splitlines()[-1] if last is None else last)


def test_only_the_start_of_a_task_has_notices():
    notice = "Initializing CoordinationService\n"
    fold, _ = folds(Folding())
    assert fed(fold, notice + "step 1\n" * 199) == "step 1\n" * 199
    assert fed(fold, notice) == notice


def test_a_traceback_is_whole():
    """Also if it shows a line of the program with the text of a notice."""
    text = TRACEBACK.replace("main()", "raise ValueError('Initializing CoordinationService')")
    fold, _ = folds(Folding())
    assert fed(fold, text + "Initializing CoordinationService\n") == text

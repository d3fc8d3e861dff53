# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.output.tensorflow_notices import (
    Folding,
    NoticeCutter,
    last_of_program,
    without_start_up_messages,
)
from launcher.package_data import read_table

#: Start-up messages and lines that must stay, as TensorFlow prints them.
MESSAGES = Path(__file__).with_name("start_up_notices.txt").read_text()
MATTERS = Path(__file__).with_name("lines_that_matter.txt").read_text()
TASKS_PAGE = Path(__file__).resolve().parents[3] / "docs" / "tasks.md"
OTHER = (
    "I0000 00:00:1.5 7 coordination_service_agent.cc:245] Coordination agent has successfully connected.\n"
)


class Shown:
    """What is shown of the output of a task, without the prefix."""

    def __init__(self) -> None:
        self.folding = Folding()
        self.cutter = NoticeCutter(b"w | ", b"w + ", self.folding)

    def __call__(self, text: str, now: float = 0.0) -> str:
        return self.cutter.feed(text.encode(), now).decode().replace("w | ", "")


def ended(text: str) -> str:
    """What is shown of all output of a task that has ended."""
    shown = Shown()
    return shown(text) + shown.cutter.end().decode().replace("w | ", "")


@pytest.mark.promise("TensorFlow's start-up messages are hidden everywhere, and nothing else is")
def test_all_start_up_messages_are_hidden():
    assert ended(MESSAGES) == ""
    table = read_table("output/notices.toml")
    texts = [re.sub(r"^.*\.(?:cc|h):\d+\] ", "", line) for line in MESSAGES.splitlines()]
    for rule in table["message"]:
        assert rule["origin"]
        assert any(re.match(rule["text"], text) for text in texts), rule["text"]
        assert "rest" not in rule or any(re.match(rule["rest"], text) for text in texts if text), rule["rest"]
    shown = re.findall(r"^[IWE]0000 .*$", TASKS_PAGE.read_text(), re.M)
    assert shown and set(shown) <= set(MESSAGES.splitlines())


@pytest.mark.promise("TensorFlow's start-up messages are hidden everywhere, and nothing else is")
def test_lines_that_matter_stay():
    lines = [line for line in MATTERS.splitlines() if not line.startswith("# ")]
    assert len(set(lines)) > 200
    assert [line for line in lines if ended(f"{line}\n") != f"{line}\n"] == []
    assert ended(MATTERS) == MATTERS
    assert ended("".join(f"{OTHER}{line}\n" for line in lines)).splitlines() == lines


@pytest.mark.parametrize(
    "line",
    [
        "oneDNN custom operations are on",
        "print('I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on')",
        "  I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on",
        "I0000 00:00:1.5 7 my_op.cc:12] step 100",
        "I0000 00:00:1787543360.402374    1233 search.cc:285] Start search",
        "I1129 11:45:08.123456 7364 grpc_server_lib.cc:467] Started server with target: grpc://h:1",
        "I1129 11:45:08.123456 7364 train.py:33] step 100",
        "2024-05-06 07:08:09.123456: I mine/core/my_op.cc:12] step 100",
        "E0000 00:00:1.5 7 grpc_server_lib.cc:467] Started server with target: grpc://h:1",
        "F0000 00:00:1.5 7 cpu_feature_guard.cc:57] The TensorFlow library was compiled to use AVX",
        "INFO:tensorflow:loss = 0.5, step = 100",
        "WARNING:tensorflow:my own warning",
        "WARNING:tensorflow:From train.py:12: f (from mine) is deprecated and will be removed in a future version.",
        "Waiting for 1/2 tasks to connect",
        "To enable the following instructions: AVX2",
        "/job:worker/replica:0/task:1",
        "}",
        "",
    ],
)  # fmt: skip
def test_lines_of_the_program_stay(line: str):
    assert ended(f"{line}\n{line}\n") == f"{line}\n{line}\n"
    assert ended(f"{OTHER}{line}\n{OTHER}") == f"{line}\n"


def test_messages_are_counted_not_their_lines():
    options = "device_count {\n  value: 1\n}\nallow_soft_placement: true\n\n"
    shown = Shown()
    assert (
        shown(f"I0000 00:00:1.5 7 eager_service_impl.cc:355] SessionOptions: \n{options}\n}}\nloss: 1\n")
        == "\n}\nloss: 1\n"
    )
    assert shown.folding.summary() == "hid 1 TensorFlow start-up message (-v shows it)"
    shown(OTHER)
    assert shown.folding.summary() == "hid 2 TensorFlow start-up messages (-v shows them)"


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ("", ""),
        ("step 1\n\nstep 2", "step 2"),
        ("step 1\n}", "}"),
        ("step 1\nI0000 00:00:1.5 7 eager_service_impl.cc:355] SessionOptions: \ndevice_count {\n  value: 1\n}", "step 1"),
        (f"step 1\n{OTHER}", "step 1"),
        ("step 1\n2024-05-06 07:08:09.123456: W tensorflow/core/data/root_dataset.cc:997] Input of", "step 1"),
        ("step 1\nE0000 00:00:1.5 7 grpc_server_lib.cc:545] Could not start gRPC server", None),
        (f"{OTHER}{OTHER}", None),
    ],
)  # fmt: skip
def test_the_last_line_of_the_program(lines: str, last: str | None):
    assert last_of_program(lines.splitlines()) == (lines.splitlines()[-1] if last is None else last)


def test_a_log_without_start_up_messages_is_the_same():
    lines = ["", "a\tb", "\N{BULLET} é", "", "step 1"]
    assert without_start_up_messages(lines) == lines

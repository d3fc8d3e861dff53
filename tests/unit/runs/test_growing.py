"""Files of a run that others write: whatever is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.job import TaskId
from launcher.runs.growing import last_lines, shown_lines
from launcher.runs.run import json_of
from tests.unit.runs.conftest import made

NEW = "20261121-070912-bbbbb"


@pytest.mark.parametrize("text", ["[]", "7", "null", "{", "[" * 100_000, ""])
def test_what_is_no_record(tmp_path: Path, text: str):
    (tmp_path / "file").write_text(text)
    assert json_of(str(tmp_path / "file")) is None
    assert json_of(str(tmp_path / "none")) is None


def test_the_end_of_a_log(state: Path):
    paths = made(NEW)
    Path(paths.log(TaskId("worker/0"))).write_bytes(b"x" * 70_000 + b"\n1%\r2%\r\nlast \xff\n")
    assert last_lines(paths.root, "worker/0", 2) == ["2%", "last \ufffd"]
    assert last_lines(paths.root, "worker/1", 2) == []


def test_lines_are_fit_to_be_shown():
    text = "first\nstep 1\rstep 2\r\n\x1b[31mred\x1b[0m\t\xe9\n" + "x" * 600 + "\n\n"
    assert shown_lines(text, 10) == [
        "first", "step 2", "\\x1b[31mred\\x1b[0m\t\xe9", "x" * 500 + "... (600 characters)"
    ]  # fmt: skip
    assert shown_lines(text, 1) == ["x" * 500 + "... (600 characters)"]
    assert shown_lines("\n", 5) == []

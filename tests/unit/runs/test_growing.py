"""Files of a run that others write: whatever is in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.job import TaskId
from launcher.runs.growing import last_lines, run_of
from launcher.runs.run import json_of
from tests.unit.runs.conftest import made

OLD, NEW = "20261120-070912-aaaaa", "20261121-070912-bbbbb"


@pytest.mark.parametrize("text", ["[]", "7", "null", "{", "[" * 100_000, ""])
def test_what_is_no_record(tmp_path: Path, text: str):
    (tmp_path / "file").write_text(text)
    assert json_of(str(tmp_path / "file")) is None
    assert json_of(str(tmp_path / "none")) is None


def test_the_run_of_a_launcher(state: Path):
    made(OLD)
    (state / OLD / "launcher.json").write_text('{"pid": 7}')
    made(NEW)
    (state / NEW / "launcher.json").write_text("[]")
    assert run_of(7, os.environ) == str(state / OLD)
    assert run_of(8, os.environ) is None


def test_the_end_of_a_log(state: Path):
    paths = made(NEW)
    Path(paths.log(TaskId("worker/0"))).write_bytes(b"x" * 70_000 + b"\n1%\r2%\r\nlast \xff\n")
    assert last_lines(paths.root, "worker/0", 2) == ["2%", "last \ufffd"]
    assert last_lines(paths.root, "worker/1", 2) == []

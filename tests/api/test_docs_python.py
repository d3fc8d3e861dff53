"""Every program of docs/python-api.md is run, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.timeout(60)


class Shown(NamedTuple):
    """A program, and lines that it prints."""

    program: str
    lines: list[str]


def shown() -> list[Shown]:
    page = (DOCS / "python-api.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.M | re.S)
    return [Shown(program, lines.splitlines()) for program, lines in found]


def test_every_program_is_shown_with_what_it_prints():
    assert len(shown()) == (DOCS / "python-api.md").read_text().count("```python") >= 6


@pytest.mark.parametrize("example", shown(), ids=lambda example: example.lines[0][:40])
def test_it_prints_what_the_page_says(example: Shown, tmp_path: Path):
    (tmp_path / "program.py").write_text(example.program)
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    missing = [line for line in example.lines if line not in ended.stdout.splitlines()]
    assert not missing, ended.stdout + ended.stderr

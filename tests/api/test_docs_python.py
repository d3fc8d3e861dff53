"""Every program of docs/python-api.md and README.md is run, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.timeout(180)


class Shown(NamedTuple):
    """A program, and lines that it prints."""

    program: str
    lines: list[str]


def shown() -> list[Shown]:
    page = (DOCS / "python-api.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.M | re.S)
    return [Shown(program, lines.splitlines()) for program, lines in found]


def test_the_program_of_the_readme(tmp_path: Path):
    (program,) = re.findall(r"^```python\n(.*?)^```", (DOCS.parent / "README.md").read_text(), re.M | re.S)
    ended = ran(program, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_program_is_shown_with_what_it_prints():
    assert len(shown()) == (DOCS / "python-api.md").read_text().count("```python") >= 6


def ran(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """How a program went in a folder of its own."""
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=150
    )


@pytest.mark.parametrize("example", shown(), ids=lambda example: example.lines[0][:40])
def test_it_prints_the_output_of_the_page(example: Shown, tmp_path: Path):
    ended = ran(example.program, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    missing = [line for line in example.lines if line not in ended.stdout.splitlines()]
    assert not missing, ended.stdout + ended.stderr

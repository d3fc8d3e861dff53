"""Every example of the documents is run: what a reader copies works, and prints what the page says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import Ended, Launch, executable

TOP = Path(__file__).resolve().parents[2]
#: Those of "on several machines" are run by tests/ssh.
PAGES = [page for page in sorted((TOP / "docs").glob("*.md")) if page.name != "several-machines.md"]
API = TOP / "docs" / "python-api.md"
DOCUMENTS = [TOP / "README.md", *PAGES, TOP / "hostfiles" / "README.md"]


class Example(NamedTuple):
    """A line of a ``sh`` block, and the exit code its comment promises."""

    document: str
    line: str
    code: int


def blocks(language: str, page: Path) -> list[str]:
    """The blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def examples() -> list[Example]:
    found = []
    for document in DOCUMENTS:
        for line in "".join(blocks("sh", document)).splitlines():
            promised = re.search(r"# exit (\d+)$", line)
            found.append(Example(document.name, line, int(promised[1]) if promised else 0))
    return found


def test_there_are_examples():
    assert len(examples()) >= 10


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.line[:50])
def test_example_does_what_it_promises(example: Example, launch: Launch, tmp_path: Path):
    folder = tmp_path / "reader"
    folder.mkdir()
    for name in ("examples", "hostfiles"):
        (folder / name).symlink_to(TOP / name)
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "hello.py").write_text(blocks("python", TOP / "docs" / "start.md")[0])
    executable(folder / "launch", f'#!/bin/sh\nexec {sys.executable} -m launcher "$@"\n')
    environ = {"PATH": f"{folder}:{os.environ['PATH']}"}
    launch(example.line, cwd=folder, env=environ, command=["sh", "-c"], timeout=150, code=example.code)


def test_the_job_file_in_the_documents_fits_its_hostfile(launch: Launch, tmp_path: Path):
    """A reader copies both."""
    (tmp_path / "hostfiles").symlink_to(TOP / "hostfiles")
    (tmp_path / "here").mkdir()
    job = tmp_path / "here" / "job.yaml"
    job.write_text(blocks("yaml", TOP / "docs" / "jobfile.md")[0])
    shown = launch.here(job, "--dry-run", code=0).out
    names = ["chief", "worker", "ps", "dispatcher", "evaluator", "metrics"]
    assert not [name for name in names if f"\n# {name}/0 on " not in shown]
    assert "\n# worker/2 on gpu01" in shown


# ---------------------------------------------------------------------- programs that use the Python API


class Shown(NamedTuple):
    """A program, and lines that it prints."""

    program: str
    lines: list[str]


def shown() -> list[Shown]:
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", API.read_text(), re.M | re.S)
    return [Shown(program, lines.splitlines()) for program, lines in found]


def test_every_program_is_shown_with_what_it_prints():
    assert len(shown()) == len(blocks("python", API)) >= 6


def run(launch: Launch, program: str, folder: Path) -> Ended:
    """Run a program in a folder of its own."""
    (folder / "program.py").write_text(program)
    return launch("program.py", cwd=folder, command=[sys.executable], timeout=150, code=0)


def test_the_program_of_the_readme(launch: Launch, tmp_path: Path):
    (program,) = blocks("python", TOP / "README.md")
    run(launch, program, tmp_path)


@pytest.mark.parametrize("example", shown(), ids=lambda example: example.lines[0][:40])
def test_a_program_prints_the_output_of_the_page(example: Shown, launch: Launch, tmp_path: Path):
    ended = run(launch, example.program, tmp_path)
    missing = [line for line in example.lines if line not in ended.out.splitlines()]
    assert not missing, ended.out + ended.err

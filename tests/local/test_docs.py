"""Every example of the documents is run: what a reader copies works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.config.jobfile import parse_job
from tests.conftest import Launch, executable

TOP = Path(__file__).resolve().parents[2]
#: Those of "on several machines" are run by tests/ssh.
PAGES = [page for page in sorted((TOP / "docs").glob("*.md")) if page.name != "several-machines.md"]
DOCUMENTS = [TOP / "README.md", *PAGES, TOP / "hostfiles" / "README.md"]


class Example(NamedTuple):
    """A line of a ``sh`` block, and the exit code its comment promises."""

    document: str
    line: str
    code: int


def examples() -> list[Example]:
    found = []
    for document in DOCUMENTS:
        for block in re.findall(r"^```sh\n(.*?)^```", document.read_text(), re.M | re.S):
            for line in block.splitlines():
                promised = re.search(r"# exit (\d+)$", line)
                found.append(Example(document.name, line, int(promised[1]) if promised else 0))
    return found


def test_there_are_examples():
    assert len(examples()) >= 10


@pytest.mark.timeout(180)
@pytest.mark.parametrize("example", examples(), ids=lambda example: example.line[:50])
def test_example_does_what_it_promises(example: Example, launch: Launch, tmp_path: Path):
    folder = tmp_path / "reader"
    folder.mkdir()
    for name in ("examples", "hostfiles"):
        (folder / name).symlink_to(TOP / name)
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "hello.py").write_text(program_of_the_first_page())
    executable(folder / "launch", f'#!/bin/sh\nexec {sys.executable} -m launcher "$@"\n')
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "XDG_STATE_HOME": str(launch.home)}
    done = subprocess.run(
        ["sh", "-c", example.line], cwd=folder, env=environ, capture_output=True, timeout=150
    )
    assert done.returncode == example.code, done.stderr.decode()


def program_of_the_first_page() -> str:
    """What a reader saves as ``hello.py``."""
    return re.findall(r"^```python\n(.*?)^```", (TOP / "docs" / "start.md").read_text(), re.M | re.S)[0]


def job_file_of_the_documents() -> str:
    return re.findall(r"^```yaml\n(.*?)^```", (TOP / "docs" / "jobfile.md").read_text(), re.M | re.S)[0]


def test_the_job_file_in_the_documents_is_right():
    found = parse_job(job_file_of_the_documents(), "docs/jobfile.md")
    assert not found.faults
    names = ["chief", "worker", "ps", "dispatcher", "evaluator", "metrics"]
    assert [role.name for role in found.roles] == names


def test_the_job_file_in_the_documents_fits_its_hostfile(launch: Launch, tmp_path: Path):
    """A reader copies both."""
    (tmp_path / "hostfiles").symlink_to(TOP / "hostfiles")
    (tmp_path / "here").mkdir()
    job = tmp_path / "here" / "job.yaml"
    job.write_text(job_file_of_the_documents())
    assert "# worker/2 on gpu01" in launch.here(job, "--dry-run", code=0).out

"""``--venv``: tasks run in an environment of ``launch prepare``, or in one that its folder names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch, executable

SHOW = "import os, sys; print(sys.prefix, os.environ['VIRTUAL_ENV'], os.environ['PATH'].split(':')[0])"


def environment(home: Path) -> Path:
    """The environment ``lab`` as ``launch prepare`` makes it; its folder."""
    places = home / ".local/share/tf-launcher/environments"
    folder = places / "0123abcd"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (places / "lab").symlink_to(folder.name)
    (folder / "environment.json").write_text("{}\n")
    os.utime(folder / "environment.json", (1e9, 1e9))
    return folder


@pytest.fixture
def lab(launch: Launch) -> Path:
    """The environment ``lab``."""
    return environment(launch.home)


def test_python_and_other_programs_run_in_it(launch: Launch, lab: Path, tmp_path: Path):
    executable(lab / "bin" / "tool", "#!/bin/sh\necho tool of $VIRTUAL_ENV\n")
    for words in (["--venv", "lab"], ["--venv", lab], ["--preload", "json", "--venv", "lab"]):
        ended = launch(*words, "--workers", "2", "-c", SHOW)
        assert ended.out.count(f"| {lab} {lab} {lab}/bin\n") == 2, ended.out + ended.err
    assert f"| tool of {lab}\n" in launch("--venv", "lab", "tool").out
    (tmp_path / "job.yaml").write_text(f"command: [-c, {SHOW!r}]\nroles: {{worker: 1}}\nvenv: lab\n")
    assert f"| {lab} {lab} {lab}/bin\n" in launch(tmp_path / "job.yaml").out
    ended = launch(tmp_path / "job.yaml", "--python", sys.executable, "-x", "VIRTUAL_ENV=none")
    assert f"| {sys.prefix} none " in ended.out  # the option replaces the key of the job file


def test_a_run_marks_it_as_used(launch: Launch, lab: Path):
    assert ", in the environment lab\n" in launch("--venv", "lab", "--dry-run", "true").out
    assert (lab / "environment.json").stat().st_mtime == 1e9
    launch("--venv", "lab", "true")
    assert (lab / "environment.json").stat().st_mtime > 1e9
    assert launch("--venv", sys.prefix, "true").code == 0
    assert not (Path(sys.prefix) / "environment.json").exists()


def test_its_python_does_not_run(launch: Launch, lab: Path):
    (lab / "bin" / "python").unlink()
    executable(lab / "bin" / "python", "#!/nowhere/python\n")
    ended = launch("--venv", "lab", "true", code=126)
    assert "launch: the Python of the environment 'lab' does not run on localhost\n" in ended.err
    assert "  hint: `launch prepare --hosts localhost --name lab` would make it\n" in ended.err

"""Every example of "on several machines" is run, on several machines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.hostfile import parse_hostfile
from tests.conftest import Launch, executable
from tests.seeing import ROOT
from tests.ssh.lab import Lab

pytestmark = pytest.mark.timeout(180)
PAGE = (ROOT / "docs" / "several-machines.md").read_text()
LINES = [line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]


def test_there_are_examples():
    assert len(LINES) >= 4


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:50])
def test_example_works(line: str, ssh_launch: Launch, lab: Lab, tmp_path: Path):
    folder = tmp_path / "reader"
    folder.mkdir()
    (folder / "hostfiles").symlink_to(ROOT / "hostfiles")
    (folder / "train.py").write_text("print('trained')\n")
    executable(folder / "launch", f'#!/bin/sh\nexec {sys.executable} -m launcher "$@"\n')
    environ = {**os.environ, **ssh_launch.environment(), "PATH": f"{folder}:{os.environ['PATH']}"}
    where = "/" if "--sync" not in line and "check" not in line else folder
    if where == "/":
        line = line.replace("hostfiles/", f"{ROOT}/hostfiles/")
    done = subprocess.run(["sh", "-c", line], cwd=where, env=environ, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()


def test_the_hostfile_is_right():
    text = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    hosts = parse_hostfile(text[0], "hosts.yaml")
    assert [host.name for host in hosts] == ["gpu01", "gpu02", "gpu03", "gpu04", "head"]
    assert hosts[0].venv == "~/tf" and hosts[3].address == "10.0.1.4"

"""The backends of docs/extending.md, through the installed command. The first: tests/contract, too."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.conftest import Launch, install
from tests.contract.sites import example_backends
from tests.ssh.lab import TWO, Lab

pytestmark = pytest.mark.promise("a new backend")


def test_a_backend_by_a_command_line(ssh_launch: Launch, lab: Lab, tmp_path: Path):
    environ = install(tmp_path / "site", "openssh", example_backends()[0])
    script = "import os; open(os.environ['OUTPUT_DIR'] + '/made', 'w').write(os.environ['TASK_INDEX'])"
    (tmp_path / "train.py").write_text(script)
    run = tmp_path / "run"
    words = ["--openssh", *TWO, "--sync", ".", "--output-dirs"]
    ssh_launch(*words, "--run-dir", run, "train.py", env=environ, cwd=tmp_path, timeout=60, code=0)
    assert [(run / "output" / f"worker-{n}" / "made").read_text() for n in range(2)] == ["0", "1"]
    ssh_launch(*words, "--", "sh", "-c", "exit 3", env=environ, cwd=tmp_path, timeout=60, code=3)
    ended = ssh_launch("--openssh", "--hosts", "nowhere.invalid", "true", env=environ, timeout=60, code=125)
    assert "could not be started there: ssh exited with 255 and printed: ssh: Could not resolve" in ended.err


def test_a_backend_that_gets_its_hosts(ssh_launch: Launch, lab: Lab, tmp_path: Path):
    environ = install(tmp_path / "site", "pool", example_backends()[1])
    (tmp_path / "lab.txt").write_text("node1\nnode2\n")
    words = ["--pool", "lab.txt", "--pool-hosts", "2", "--workers", "2", "--workdir", "/"]
    script = "hostname; test $TASK_INDEX = 0 || exit 3"
    ended = ssh_launch(*words, "--", "sh", "-c", script, env=environ, cwd=tmp_path, timeout=60, code=3)
    assert "on 2 hosts" in ended.err
    ended = ssh_launch("--dry-run", *words, "true", env=environ, cwd=tmp_path)
    assert ended.code == 0 and "worker/1 on node2" in ended.out
    ended = ssh_launch("check", *words[:4], env=environ, cwd=tmp_path, timeout=60)
    assert ended.code == 0 and "node2" in ended.out, ended.out + ended.err
    with open(tmp_path / "lab.txt.node1", "w") as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        ended = ssh_launch(*words, "true", env=environ, cwd=tmp_path, timeout=60)
    assert ended.code == 125 and "1 of 2 hosts are free" in ended.err
    ended = ssh_launch("--pool", "nowhere", "true", env=environ, cwd=tmp_path)
    assert ended.code == 2 and "--pool" in ended.err
    ended = ssh_launch("--hosts", "node1", *words, "true", env=environ, cwd=tmp_path)
    assert ended.code == 2 and "--hosts" in ended.err


def test_a_backend_of_an_earlier_version(launch: Launch, tmp_path: Path):
    """The message says what to do."""
    environ = install(tmp_path / "site", "old", "TRANSPORT = None\n")
    ended = launch("--old", "true", env=environ, code=125)
    assert "'old'" in ended.err and "TRANSPORT" in ended.err and "BACKEND" in ended.err

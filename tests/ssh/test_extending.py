"""The transport of docs/extending.md, through the installed command. Its contract: tests/contract."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Launch, install
from tests.contract.sites import example_transport
from tests.ssh.lab import Lab


def test_the_example_transport(ssh_launch: Launch, lab: Lab, tmp_path: Path):
    environ = install(tmp_path / "site", "openssh", example_transport())
    script = "import os; open(os.environ['OUTPUT_DIR'] + '/made', 'w').write(os.environ['TASK_INDEX'])"
    (tmp_path / "train.py").write_text(script)
    run = tmp_path / "run"
    words = ["--openssh", "--hosts", "node1,node2", "--workers", "2", "--sync", ".", "--output-dirs"]
    ended = ssh_launch(*words, "--run-dir", run, "train.py", env=environ, cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    assert [(run / "output" / f"worker-{n}" / "made").read_text() for n in range(2)] == ["0", "1"]
    ended = ssh_launch(*words, "--", "sh", "-c", "exit 3", env=environ, cwd=tmp_path, timeout=60)
    assert ended.code == 3, ended.err
    ended = ssh_launch("--openssh", "--hosts", "nowhere.invalid", "true", env=environ, timeout=60)
    assert ended.code == 125
    assert "could not be started there: ssh exited with 255 and printed: ssh: Could not resolve" in ended.err

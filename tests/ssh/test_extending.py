"""The transport of docs/extending.md, through the installed command. Its contract: tests/contract."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import Launch
from tests.contract.sites import example_transport
from tests.ssh.lab import Lab

START = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from launcher.transports import TRANSPORTS
TRANSPORTS["openssh"] = "openssh"
from launcher.__main__ import main
main()
"""


def test_the_example_transport(ssh_launch: Launch, lab: Lab, tmp_path: Path):
    (tmp_path / "openssh.py").write_text(example_transport())
    script = "import os; open(os.environ['OUTPUT_DIR'] + '/made', 'w').write(os.environ['TASK_INDEX'])"
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-c", START, str(tmp_path)]
    run = tmp_path / "run"
    words = ["--openssh", "--hosts", "node1,node2", "--workers", "2", "--sync", ".", "--output-dirs"]
    ended = ssh_launch.start(*words, "--run-dir", run, "train.py", command=command, cwd=tmp_path).wait(60)
    assert ended.code == 0, ended.err
    assert [(run / "output" / f"worker-{n}" / "made").read_text() for n in range(2)] == ["0", "1"]
    ended = ssh_launch.start(*words, "--", "sh", "-c", "exit 3", command=command, cwd=tmp_path).wait(60)
    assert ended.code == 3, ended.err
    ended = ssh_launch.start("--openssh", "--hosts", "nowhere.invalid", "true", command=command).wait(60)
    assert ended.code == 125
    assert "could not be started there: ssh exited with 255 and printed: ssh: Could not resolve" in ended.err
